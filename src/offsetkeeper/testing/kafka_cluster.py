"""A real Kafka cluster: three brokers, which are the controllers too, each a process of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from offsetkeeper.testing.artifacts import Progress, fetch_jars
from offsetkeeper.testing.kafka import KafkaServer, new_cluster_id
from offsetkeeper.testing.server import together, wait_until

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType
    from typing import Any

    from confluent_kafka.admin import AdminClient

_NUMBERS = (1, 2, 3)
_LIMIT = 60.0
_SETTINGS = {
    "offsets.topic.replication.factor": "3",
    "min.insync.replicas": "2",
    "broker.session.timeout.ms": "1500",
    "broker.heartbeat.interval.ms": "300",
    "controller.quorum.election.timeout.ms": "300",
    "controller.quorum.fetch.timeout.ms": "1000",
}


class KafkaCluster:
    """Three brokers with no topics, as a context manager; their data is deleted at the end.

    Any two of them go on without the third. Topics have one replica unless told otherwise, as in Kafka as it comes;
    those of Kafka's own have three.

    Args:
        settings: broker settings to add or change, by Kafka's names.
        progress: called with a line of text when jars have to be fetched.

    Attributes:
        brokers: by their numbers, 1 to 3.
    """

    def __init__(self, *, settings: Mapping[str, str] | None = None, progress: Progress | None = None) -> None:
        own = {**_SETTINGS, **(settings or {})}
        self.brokers = {number: KafkaServer(settings=own, progress=progress) for number in _NUMBERS}
        voters = {number: broker.controller_port for number, broker in self.brokers.items()}
        cluster_id = new_cluster_id()
        for number, broker in self.brokers.items():
            broker.join(cluster_id, voters, number)
        self._progress = progress

    def start(self) -> Self:
        """Start all brokers at once, and return when each of them serves.

        Raises:
            ArtifactError: the jars could not be fetched.
            ServerError: a broker did not start; the error ends with the last lines of its log.
        """
        fetch_jars("kafka", self._progress)  # once, before three of them would
        try:
            together(KafkaServer.start, self.brokers.values())
            wait_until(lambda: self.alive() == set(self.brokers), "all brokers knew each other", _LIMIT)
        except BaseException:
            self.close()
            raise
        return self

    def kill(self, *numbers: int) -> None:
        """Kill brokers with SIGKILL, as a crash would. Their data stays."""
        for number in numbers:
            self.brokers[number].kill()

    def restart(self, *numbers: int) -> None:
        """Start brokers again at once on their ports and data, killed before if they run.

        Raises:
            ServerError: one did not start.
        """
        together(KafkaServer.restart, [self.brokers[number] for number in numbers])

    def close(self) -> None:
        """Kill all brokers and delete their data."""
        self.kill(*self.brokers)
        together(KafkaServer.close, self.brokers.values())

    @property
    def bootstrap(self) -> str:
        """Addresses for clients, `127.0.0.1:PORT,127.0.0.1:PORT,127.0.0.1:PORT`."""
        return ",".join(broker.bootstrap for broker in self.brokers.values())

    def admin(self) -> AdminClient:
        """Return a new admin client of the cluster. It logs nothing."""
        from confluent_kafka.admin import AdminClient  # noqa: PLC0415 - a client library, loaded on use

        return AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})

    def alive(self) -> set[int]:
        """Return the numbers of the brokers that the cluster counts as alive."""
        return set(self.admin().list_topics(timeout=_LIMIT).brokers)

    def leader(self, topic: str) -> int:
        """Return the number of the broker that leads partition 0 of a topic, -1 if none does.

        That of `__consumer_offsets` coordinates every group: it has one partition.
        """
        return int(self._partition(topic).leader)

    def in_sync(self, topic: str) -> set[int]:
        """Return the numbers of the brokers whose replica of partition 0 of a topic is in sync."""
        return set(self._partition(topic).isrs)

    def _partition(self, topic: str) -> Any:
        return self.admin().list_topics(topic, timeout=_LIMIT).topics[topic].partitions[0]

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()
