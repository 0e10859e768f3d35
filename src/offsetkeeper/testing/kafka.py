"""A real Kafka broker: one process, KRaft, no installation."""

from __future__ import annotations

import base64
import secrets
import subprocess
from typing import TYPE_CHECKING

from offsetkeeper.testing.artifacts import Progress, fetch_jars
from offsetkeeper.testing.errors import ServerError
from offsetkeeper.testing.java import java
from offsetkeeper.testing.process import ServerProcess
from offsetkeeper.testing.proxy import TcpProxy
from offsetkeeper.testing.server import Server, free_port, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from confluent_kafka.admin import AdminClient

_LIMIT = 60.0
_REQUEST = 5.0

# Small, quick to start, and quick to do what tests wait for. https://kafka.apache.org/documentation/#brokerconfigs
_SETTINGS = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,PROXIED:PLAINTEXT",
    "inter.broker.listener.name": "PLAINTEXT",
    "controller.listener.names": "CONTROLLER",
    "auto.create.topics.enable": "false",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
    "broker.session.timeout.ms": "3000",  # a broker that was killed may not come back before it
    "broker.heartbeat.interval.ms": "500",
    "num.network.threads": "2",
    "num.io.threads": "2",
    "background.threads": "2",
    "log.cleaner.dedupe.buffer.size": "1048577",
    "log.initial.task.delay.ms": "100",
    "log.retention.check.interval.ms": "500",
}
_LOG4J = """<Configuration status="ERROR">
<Appenders><Console name="out"><PatternLayout pattern="%d %p %c: %m%n"/></Console></Appenders>
<Loggers><Root level="WARN"><AppenderRef ref="out"/></Root></Loggers></Configuration>"""


class KafkaServer(Server):
    """A broker with no topics, as a context manager; its data is deleted at the end.

    Args:
        settings: broker settings to add or change, by Kafka's names.
        progress: called with a line of text when its jars have to be fetched.

    Attributes:
        controller_port: TCP port of its controller.
    """

    name = "kafka"

    def __init__(self, *, settings: Mapping[str, str] | None = None, progress: Progress | None = None) -> None:
        super().__init__()
        self.controller_port = free_port()
        self._proxied_port, self._proxy_port = free_port(), free_port()
        self._settings = {
            "controller.quorum.bootstrap.servers": f"127.0.0.1:{self.controller_port}",
            **_SETTINGS,
            **(settings or {}),
        }
        self._format = ["--standalone", "-t", new_cluster_id()]
        self._heap = "512m"
        self._progress = progress

    @property
    def bootstrap(self) -> str:
        """Address for clients, `127.0.0.1:PORT`."""
        return f"127.0.0.1:{self.port}"

    def join(self, cluster_id: str, voters: Mapping[int, int], number: int) -> None:
        """Make it one of several brokers, which are controllers too, before it is started.

        Args:
            cluster_id: from `new_cluster_id`, the same for all.
            voters: the controller port of each broker, by its number.
            number: its own.
        """
        self._settings["node.id"] = str(number)
        self._settings["controller.quorum.voters"] = ",".join(f"{n}@127.0.0.1:{port}" for n, port in voters.items())
        self._format = ["-t", cluster_id]
        self._heap = "256m"

    def proxy(self) -> TcpProxy:
        """Return a proxy to be entered with `with`.

        Clients that take its `address` for their bootstrap server talk to the broker through it and nothing else.
        """
        return TcpProxy("127.0.0.1", self._proxied_port, port=self._proxy_port)

    def admin(self) -> AdminClient:
        """Return a new admin client of the broker. It logs nothing."""
        from confluent_kafka.admin import AdminClient  # noqa: PLC0415 - a client library, loaded on use

        return AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})

    def topics(self) -> set[str]:
        """Return the names of all topics, internal ones left out."""
        found = self.admin().list_topics(timeout=_LIMIT).topics
        return {name for name in found if not name.startswith("__")}

    def create_topic(self, name: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> None:
        """Create a topic, and return when every partition of it can be read and written.

        Args:
            name: the topic's name.
            partitions: number of partitions.
            config: topic settings, by Kafka's names.

        Raises:
            ServerError: Kafka refused, or it took more than 60 seconds.
        """
        from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]  # noqa: PLC0415 - as above, and public

        admin = self.admin()
        topic = NewTopic(name, num_partitions=partitions, replication_factor=1, config=dict(config or {}))
        self._do(f"create topic {name}", lambda: admin.create_topics([topic])[name].result(_LIMIT))
        what = f"all {partitions} partitions of {name} had a leader"
        wait_until(lambda: len(_served(admin, name)) == partitions, what, _LIMIT)

    def delete_topic(self, name: str) -> None:
        """Delete a topic, and return when the broker knows it no more.

        Raises:
            ServerError: Kafka refused, or it took more than 60 seconds.
        """
        admin = self.admin()
        self._do(f"delete topic {name}", lambda: admin.delete_topics([name])[name].result(_LIMIT))
        wait_until(lambda: name not in admin.list_topics(timeout=_LIMIT).topics, f"{name} was gone", _LIMIT)

    def group_offsets(self, group: str, partitions: Iterable[tuple[str, int]]) -> dict[tuple[str, int], int]:
        """Return a group's committed offsets, as kafka-consumer-groups shows them, once its transactions are over.

        Args:
            group: the consumer group.
            partitions: topic and number of those to ask for; what has no offset is left out of the result.

        Raises:
            ServerError: Kafka did not answer, or a transaction stayed open for 60 seconds.
        """
        from confluent_kafka import Consumer, TopicPartition  # noqa: PLC0415 - as above

        # Not an admin client: it crashes while the coordinator starts, or waits for ever at its own end.
        settings = {"bootstrap.servers": self.bootstrap, "group.id": group, "isolation.level": "read_committed"}
        consumer = Consumer({**settings, "log_level": 0})
        asked = [TopicPartition(*each) for each in partitions]
        found: list[TopicPartition] = []
        self._do(f"tell the offsets of group {group}", lambda: found.extend(consumer.committed(asked, _LIMIT)))
        consumer.close()
        return {(each.topic, each.partition): each.offset for each in found if each.offset >= 0}

    def close(self) -> None:
        """Kill the broker, which takes its time to end by itself, and delete its data."""
        self.kill()
        super().close()

    def _do(self, what: str, request: Callable[[], object]) -> None:
        from confluent_kafka import KafkaException  # noqa: PLC0415 - a client library, loaded on use

        try:
            request()
        except (KafkaException, TimeoutError) as error:
            raise ServerError(f"Kafka at {self.bootstrap} did not {what}: {error}") from error

    def _prepare(self) -> None:
        listeners = f"PLAINTEXT://{self.bootstrap},CONTROLLER://127.0.0.1:{self.controller_port},PROXIED://127.0.0.1:"
        settings = {
            "listeners": f"{listeners}{self._proxied_port}",
            "advertised.listeners": f"{listeners}{self._proxy_port}",
            "log.dirs": str(self.folder / "data"),
            **self._settings,
        }
        lines = "".join(f"{key}={value}\n" for key, value in settings.items())
        (self.folder / "server.properties").write_text(lines, "utf-8")
        (self.folder / "log4j2.xml").write_text(_LOG4J, "utf-8")
        command = self._java("kafka.tools.StorageTool", "format", *self._format, "-c")
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise ServerError(f"Kafka's data folder could not be made:\n{done.stdout}{done.stderr}")

    def _run(self) -> ServerProcess:
        return ServerProcess(self._java("kafka.Kafka"), folder=self.folder)

    def _java(self, *arguments: str) -> list[str]:
        jars = fetch_jars("kafka", self._progress)
        options = [f"-Xmx{self._heap}", "-Xms128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        options += [f"-Dlog4j2.configurationFile={self.folder / 'log4j2.xml'}", "-cp", ":".join(map(str, jars))]
        return [str(java()), *options, *arguments, str(self.folder / "server.properties")]

    def _serves(self) -> bool:
        from confluent_kafka import KafkaException  # noqa: PLC0415 - a client library, loaded on use

        admin = self.admin()
        try:
            found = admin.list_topics(timeout=_REQUEST)
        except KafkaException:
            return False
        known = sum(len(topic.partitions) for topic in found.topics.values())
        return bool(found.brokers) and len(_served(admin)) == known


def new_cluster_id() -> str:
    """Return a random id for the data folders of a cluster."""
    return base64.urlsafe_b64encode(b"\0" + secrets.token_bytes(15)).decode().rstrip("=")


def _served(admin: AdminClient, topic: str | None = None) -> set[tuple[str, int]]:
    """Return the partitions, of one topic or of all, whose leader answers with their end offset."""
    from confluent_kafka import KafkaException, TopicPartition  # noqa: PLC0415 - a client library, loaded on use
    from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]  # noqa: PLC0415 - as above, and public

    found = admin.list_topics(topic, timeout=_LIMIT).topics.items()
    end = OffsetSpec.latest()  # type: ignore[no-untyped-call]  # its library leaves it without types
    asked = {TopicPartition(name, partition): end for name, about in found for partition in about.partitions}
    if not asked:
        return set()
    answered = set()
    for partition, future in admin.list_offsets(asked, request_timeout=_REQUEST).items():
        try:
            future.result(_LIMIT)
        except KafkaException:
            continue
        answered.add((partition.topic, partition.partition))
    return answered
