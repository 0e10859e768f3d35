"""Kafka through confluent-kafka: its topics, their bounds, and offsets for times."""

from offsetkeeper.kafka.cluster import KafkaCluster
from offsetkeeper.kafka.java import java_options

__all__ = ["KafkaCluster", "java_options"]
