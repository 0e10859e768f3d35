"""Whether the replicas of topics outlive the loss of a broker. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from offsetkeeper.kafka.facts import Finding, KafkaFacts, Severity

ERROR, WARNING, NOTE = Severity
_REPLICAS = 3
_REASSIGN = " (kafka-reassign-partitions)"


def replication(kafka: KafkaFacts) -> Iterator[Finding]:
    """Return what may lose records of a cluster's topics, or refuse new ones, when a broker is lost."""
    brokers = len(kafka.nodes)
    for topic in kafka.topics:
        if topic.replicas is None:
            continue
        where, least = f"topic {topic.topic}", int(topic.settings.get("min.insync.replicas", "0"))
        if topic.replicas == 1:
            what = "has one replica only: when its broker is lost, so are its records"
            remedy = f"raise its replication factor to {min(_REPLICAS, brokers) if brokers > 1 else _REPLICAS}"
            yield Finding("one-replica", NOTE if brokers == 1 else WARNING, where, what, remedy + _REASSIGN)
        elif least >= topic.replicas:
            what = f"has min.insync.replicas {least} of {topic.replicas}: with one broker away nothing can be written"
            yield Finding("min-insync-high", WARNING, where, what, "set min.insync.replicas one below the replicas")
        elif least == 1 and topic.replicas >= _REPLICAS:
            what = "has min.insync.replicas 1: what was acknowledged may be lost with one broker"
            yield Finding("min-insync-low", WARNING, where, what, "set min.insync.replicas=2, and acks=all")
        elif topic.replicas < min(_REPLICAS, brokers):
            what = f"has {topic.replicas} replicas on {brokers} brokers: with one away, the other alone has what is new"
            remedy = f"raise its replication factor to {_REPLICAS}{_REASSIGN}, and set min.insync.replicas=2"
            yield Finding("few-replicas", WARNING, where, what, remedy)
        asked = min(least, topic.replicas)  # as Kafka 4 has it: one replica alone is written to
        if topic.in_sync is not None and topic.in_sync < asked:
            what = (
                f"has {topic.in_sync} replicas in sync of {asked} that min.insync.replicas asks for: writes are refused"
            )
            yield Finding("below-min-insync", ERROR, where, what, "bring the missing brokers back")
        if topic.settings.get("unclean.leader.election.enable") == "true":
            what = "a replica that is behind may become its leader, and records that were read are replaced by others"
            yield Finding("unclean-election", WARNING, where, what, "set unclean.leader.election.enable=false")
