"""Offsets are put into Kafka's own group, by whatever coordinator it has."""

from offsetkeeper.kafka import Cluster
from offsetkeeper.kafka.publish import Publisher
from offsetkeeper.model import Position, TopicPartition
from offsetkeeper.testing.kafka import KafkaServer

PARTITION = TopicPartition("orders", 0)


def test_the_first_group_of_a_cluster_waits_for_its_coordinator() -> None:
    """Its topic is made only then; a query that ends with its first batch has no other try."""
    with KafkaServer() as server:
        server.create_topic(PARTITION.topic)
        with Cluster(server.bootstrap) as cluster:
            publisher = Publisher(cluster, "first")
            assert publisher.publish(lambda: {PARTITION: Position(5)})
            publisher.close()
        assert server.group_offsets("first", [PARTITION]) == {PARTITION: 5}
