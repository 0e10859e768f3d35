"""What runs, at a glance: a page, a JSON API, metrics and alerts, all served from the same polls of store and Kafka."""
