"""Kafka, asked through confluent-kafka: which topics are there, from where to where they reach, offsets for times."""

from offsetkeeper.kafka.cluster import KafkaCluster
from offsetkeeper.kafka.java import java_options

__all__ = ["KafkaCluster", "java_options"]
