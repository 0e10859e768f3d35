"""Kafka, asked through confluent-kafka: which topics are there, from where to where they reach, offsets for times."""

from offsetkeeper.kafka.clients import Isolation
from offsetkeeper.kafka.cluster import Cluster, TopicDescription
from offsetkeeper.kafka.java import java_options

__all__ = ["Cluster", "Isolation", "TopicDescription", "java_options"]
