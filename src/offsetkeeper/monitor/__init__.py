"""A page, a JSON API, metrics and alarms of all groups, from the same polls of store and Kafka."""
