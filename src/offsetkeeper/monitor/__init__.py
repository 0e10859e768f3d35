"""What runs, at a glance: a page, a JSON API, metrics and alerts, all served from the same looks at store and Kafka."""
