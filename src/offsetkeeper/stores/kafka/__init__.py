"""The store in Kafka."""

from offsetkeeper.stores.kafka.store import KafkaStore

__all__ = ["KafkaStore"]
