"""A real Kafka broker, or a cluster of three: one process each, KRaft, no installation.

Environment:
    OFFSETKEEPER_KAFKA: the release line of brokers for which no other is asked, such as `2.8`; by default 4.3.
"""

from __future__ import annotations

import base64
import os
import re
import secrets
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any

from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its library leaves them without types, and public
    AdminClient,
    NewTopic,
    OffsetSpec,
)

from offsetkeeper.testing.artifacts import Progress, fetch_jars
from offsetkeeper.testing.errors import ServerError
from offsetkeeper.testing.java import LOG4J2, java_command, properties
from offsetkeeper.testing.process import ServerProcess, run_to_end
from offsetkeeper.testing.proxy import TcpProxy
from offsetkeeper.testing.server import Server, Startable, free_port, together, wait_until
from offsetkeeper.testing.zookeeper import ZooKeeperServer

RELEASES: Mapping[str, str] = MappingProxyType(
    {"2.8": "kafka-2.8.2", "3.9": "kafka-3.9.2", "4.0": "kafka-4.0.2", "4.3": "kafka", "4.4": "kafka-4.4.0"}
)
"""The jars of each release line, as artifacts.json names them."""
_RELEASE, _USUAL = "OFFSETKEEPER_KAFKA", "4.3"
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
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
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
_BEFORE_KRAFT = {"2.8"}  # there it is a preview without transactions: the broker has a ZooKeeper
_OF_KRAFT = re.compile(r"process\.roles|node\.id|controller\..*|broker\.(session|heartbeat)\..*|share\..*")
_WITH_ZOOKEEPER = {
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,PROXIED:PLAINTEXT",
    "zookeeper.session.timeout.ms": "6000",  # tests freeze a broker for seconds
}
_NUMBERS = (1, 2, 3)
_CLUSTER = {
    "offsets.topic.replication.factor": "3",
    "min.insync.replicas": "2",
    "broker.session.timeout.ms": "1500",
    "broker.heartbeat.interval.ms": "300",
    "controller.quorum.election.timeout.ms": "300",
    "controller.quorum.fetch.timeout.ms": "1000",
}


class KafkaServer(Server):
    """A broker with no topics, as a context manager; its data is deleted at the end.

    Args:
        settings: broker settings to add or change, by Kafka's names.
        progress: called with a line of text when its jars have to be fetched.
        release: its release line, one of `RELEASES`.

    Attributes:
        controller_port: TCP port of its controller.
        release: its release line.
    """

    name = "kafka"
    defaults = _SETTINGS
    heap = "512m"

    def __init__(
        self,
        *,
        settings: Mapping[str, str] | None = None,
        progress: Progress | None = None,
        release: str = "",
    ) -> None:
        self.release = release or os.environ.get(_RELEASE, _USUAL)
        self._jars = RELEASES[self.release]
        self._zookeeper = ZooKeeperServer() if self.release in _BEFORE_KRAFT else None
        self._own = [self._zookeeper] if self._zookeeper else []
        self.controller_port = free_port()
        quorum = {"controller.quorum.bootstrap.servers": f"127.0.0.1:{self.controller_port}"}
        super().__init__(settings={**quorum, **(settings or {})}, progress=progress)
        self._proxied_port, self._proxy_port = free_port(), free_port()
        self._format = ["--standalone", "-t", _new_cluster_id()]

    @property
    def bootstrap(self) -> str:
        """Address for clients, `127.0.0.1:PORT`."""
        return f"127.0.0.1:{self.port}"

    def proxy(self) -> TcpProxy:
        """Return a proxy to be entered with `with`.

        Clients that take its `address` for their bootstrap server talk to the broker through it and nothing else.
        """
        return TcpProxy("127.0.0.1", self._proxied_port, port=self._proxy_port)

    def admin(self) -> AdminClient:
        """Return a new admin client of the broker. It logs nothing."""
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
        admin = self.admin()
        topic = NewTopic(name, num_partitions=partitions, replication_factor=1, config=dict(config or {}))
        self._do(f"create topic {name}", lambda: admin.create_topics([topic])[name].result(_LIMIT))
        what = f"all {partitions} partitions of {name} had a leader"
        wait_until(lambda: len(_served(admin, name)) == partitions, what, _LIMIT)

    def delete_topic(self, name: str) -> None:
        """Delete a topic, and return when the broker knows it no more, and would create it anew.

        Raises:
            ServerError: Kafka refused, or it took more than 60 seconds.
        """
        admin = self.admin()
        self._do(f"delete topic {name}", lambda: admin.delete_topics([name])[name].result(_LIMIT))
        wait_until(lambda: name not in admin.list_topics(timeout=_LIMIT).topics, f"{name} was gone", _LIMIT)
        wait_until(lambda: _can_create(admin, name), f"{name} could be created", _LIMIT)

    def group_offsets(self, group: str, partitions: Iterable[tuple[str, int]]) -> dict[tuple[str, int], int]:
        """Return a group's committed offsets, as kafka-consumer-groups shows them, once its transactions are over.

        Args:
            group: the consumer group.
            partitions: topic and number of those to ask for; what has no offset is left out of the result.

        Raises:
            ServerError: Kafka did not answer, or a transaction stayed open for 60 seconds.
        """
        # Not an admin client: it crashes while the coordinator starts, or waits for ever at its own end.
        settings = {"bootstrap.servers": self.bootstrap, "group.id": group, "isolation.level": "read_committed"}
        consumer = Consumer({**settings, "log_level": 0})
        asked = [TopicPartition(*each) for each in partitions]
        found: list[TopicPartition] = []
        self._do(f"tell the offsets of group {group}", lambda: found.extend(consumer.committed(asked, _LIMIT)))
        consumer.close()
        return {(each.topic, each.partition): each.offset for each in found if each.offset >= 0}

    def _do(self, what: str, request: Callable[[], object]) -> None:
        try:
            request()
        except (KafkaException, TimeoutError) as error:
            raise ServerError(f"Kafka at {self.bootstrap} did not {what}: {error}") from error

    def close(self) -> None:
        """Kill the broker, and its ZooKeeper if it has one, and delete all data."""
        super().close()
        for zookeeper in self._own:
            zookeeper.close()

    def _start(self) -> None:
        for zookeeper in self._own:
            zookeeper.start()
        super()._start()

    def _prepare(self) -> None:
        here, at = f"PLAINTEXT://{self.bootstrap}", "://127.0.0.1:"
        controller = "" if self._zookeeper else f",CONTROLLER{at}{self.controller_port}"
        settings = {
            "listeners": f"{here},PROXIED{at}{self._proxied_port}{controller}",
            "advertised.listeners": f"{here},PROXIED{at}{self._proxy_port}",
            "log.dirs": str(self.folder / "data"),
            **self._settings,
        }
        if self._zookeeper:
            kept = {name: value for name, value in settings.items() if not _OF_KRAFT.fullmatch(name)}
            own = {"zookeeper.connect": f"127.0.0.1:{self._zookeeper.port}", "broker.id": self._number}
            settings = {**kept, **_WITH_ZOOKEEPER, **own}
        (self.folder / "server.properties").write_text(properties(settings), "utf-8")
        (self.folder / "log4j2.xml").write_text(LOG4J2, "utf-8")
        if not self._zookeeper:
            command = self._java("kafka.tools.StorageTool", "format", *self._format, "-c")
            run_to_end(command, "Kafka's data folder could not be made")

    @property
    def _number(self) -> str:
        return self._settings["node.id"]

    def _registered(self) -> bool:
        """Return whether ZooKeeper still knows a broker that was killed: it refuses another one of its number."""
        if not self._zookeeper:
            return False
        client = self._zookeeper.client()
        try:
            return client.exists(f"/brokers/ids/{self._number}") is not None
        finally:
            client.stop()
            client.close()

    def _run(self) -> ServerProcess:
        wait_until(lambda: not self._registered(), f"ZooKeeper has forgotten broker {self._number}", _LIMIT)
        return ServerProcess(self._java("kafka.Kafka"), folder=self.folder)

    def _java(self, *arguments: str) -> list[str]:
        jars = fetch_jars(self._jars, self._progress)
        options = ["-Xms128m", f"-Dlog4j2.configurationFile={self.folder / 'log4j2.xml'}"]
        file = str(self.folder / "server.properties")
        return java_command(jars, *arguments, file, heap=self.heap, options=options)

    def _serves(self) -> bool:
        admin = self.admin()
        try:
            found = admin.list_topics(timeout=_REQUEST)
        except KafkaException:
            return False
        known = sum(len(topic.partitions) for topic in found.topics.values())
        return bool(found.brokers) and len(_served(admin)) == known


class _Member(KafkaServer):
    """One of several brokers, which are controllers too."""

    def __init__(
        self, number: int, cluster_id: str, settings: Mapping[str, str], progress: Progress | None, heap: str
    ) -> None:
        super().__init__(settings={**settings, "node.id": str(number)}, progress=progress)
        self.heap = heap
        self._format = ["-t", cluster_id]

    def join(self, zookeeper: ZooKeeperServer) -> None:
        """Say which ZooKeeper all of them have, before it is started."""
        self._zookeeper, self._own = zookeeper, []

    def settle(self, voters: str) -> None:
        """Say which controllers there are, before it is started."""
        self._settings["controller.quorum.voters"] = voters


class KafkaServers(Startable):
    """Three brokers with no topics, as a context manager; their data is deleted at the end.

    Any two of them go on without the third. Topics have one replica unless told otherwise, as in Kafka as it comes;
    those of Kafka's own have three.

    Args:
        settings: broker settings to add or change, by Kafka's names.
        progress: called with a line of text when jars have to be fetched.
        heap: the most memory of each broker, in Java's notation.

    Attributes:
        brokers: by their numbers, 1 to 3.
    """

    def __init__(
        self,
        *,
        settings: Mapping[str, str] | None = None,
        progress: Progress | None = None,
        heap: str = "256m",
    ) -> None:
        own = {**_CLUSTER, **(settings or {})}
        cluster_id = _new_cluster_id()
        self.brokers = {number: _Member(number, cluster_id, own, progress, heap) for number in _NUMBERS}
        voters = ",".join(f"{number}@127.0.0.1:{broker.controller_port}" for number, broker in self.brokers.items())
        self._zookeeper = ZooKeeperServer() if self.brokers[1].release in _BEFORE_KRAFT else None
        for broker in self.brokers.values():
            broker.settle(voters)
            if self._zookeeper:
                broker.join(self._zookeeper)
        self._progress = progress

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
        together(KafkaServer.close, self.brokers.values())
        if self._zookeeper:
            self._zookeeper.close()

    @property
    def bootstrap(self) -> str:
        """Addresses for clients, `127.0.0.1:PORT,127.0.0.1:PORT,127.0.0.1:PORT`."""
        return ",".join(broker.bootstrap for broker in self.brokers.values())

    def admin(self) -> AdminClient:
        """Return a new admin client of the cluster. It logs nothing."""
        return AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})

    def alive(self) -> set[int]:
        """Return the numbers of the brokers that the cluster counts as alive."""
        return set(self.admin().list_topics(timeout=_LIMIT).brokers)

    def leader(self, topic: str) -> int:
        """Return the number of the broker that leads partition 0 of a topic; -1 if there is none, or no such topic.

        That of `__consumer_offsets` coordinates every group: it has one partition.
        """
        return max((int(each.leader) for each in self._first_partition(topic)), default=-1)

    def in_sync(self, topic: str) -> set[int]:
        """Return the numbers of the brokers whose replica of partition 0 is in sync; of an unknown topic, none."""
        return {int(broker) for each in self._first_partition(topic) for broker in each.isrs}

    def _first_partition(self, topic: str) -> list[Any]:
        # A topic that was just made is unknown to some brokers for a moment, and so is every topic to one that starts.
        found = self.admin().list_topics(topic, timeout=_LIMIT).topics[topic].partitions
        return [found[0]] if 0 in found else []

    def _start(self) -> None:
        fetch_jars(RELEASES[self.brokers[1].release], self._progress)  # once, before three of them would
        if self._zookeeper:
            self._zookeeper.start()
        together(KafkaServer.start, self.brokers.values())
        wait_until(lambda: self.alive() == set(self.brokers), "all brokers knew each other", _LIMIT)


def _new_cluster_id() -> str:
    """Return a random id for the data folders of a cluster."""
    return base64.urlsafe_b64encode(b"\0" + secrets.token_bytes(15)).decode().rstrip("=")


def _can_create(admin: AdminClient, topic: str) -> bool:
    """Return whether the name is free: with ZooKeeper a topic is deleted after clients know it no more."""
    try:
        admin.create_topics([NewTopic(topic, 1, 1)], validate_only=True)[topic].result(_LIMIT)
    except KafkaException:
        return False
    return True


def _served(admin: AdminClient, topic: str | None = None) -> set[tuple[str, int]]:
    """Return the partitions, of one topic or of all, whose leader answers with their end offset."""
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
