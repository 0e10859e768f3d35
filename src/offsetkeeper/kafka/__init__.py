"""Kafka, asked through confluent-kafka: which topics are there, from where to where they reach, offsets for times."""

from offsetkeeper.kafka.cluster import Bounds, Cluster, TopicDescription
from offsetkeeper.kafka.java import java_options
from offsetkeeper.kafka.settings import Isolation

__all__ = ["Bounds", "Cluster", "Isolation", "TopicDescription", "java_options"]
