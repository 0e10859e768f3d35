"""What fails over by itself: three ZooKeeper servers, and three brokers with a topic of the store or of the output."""

from __future__ import annotations

import secrets

from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]  # public, its library says so elsewhere

from engines.elections import LEADER, elect_follower, lose_follower, make_topics
from failover.pairs import LIMIT_S
from offsetkeeper.testing.kafka import KafkaServers
from offsetkeeper.testing.server import wait_until
from offsetkeeper.testing.zookeeper import ZooKeeperEnsemble


class Ensemble:
    """An ensemble whose leader dies. A follower is held back first, so that it lacks what the others have."""

    synchronous = True

    def __init__(self, servers: ZooKeeperEnsemble) -> None:
        self._servers, self._root = servers, f"failover-{secrets.token_hex(6)}"
        self._held: int | None = None
        self._killed: int | None = None

    def url(self) -> str:
        """Return the URL of the store, on all servers."""
        return self._servers.url(self._root)

    def hold(self) -> None:
        """See `Cluster`."""
        leader = self._servers.leader()
        self._held = (leader + 1) % 3
        self._servers.hold(self._held)

    def promote(self) -> None:
        """See `Cluster`."""
        self._killed = self._servers.leader()
        self._servers.kill(self._killed)
        if self._held is not None:
            self._servers.release(self._held)
        self._servers.leader([number for number in range(3) if number != self._killed])

    def lead(self) -> None:
        """See `Cluster`: clients know all servers."""

    def mend(self) -> None:
        """Start again what was killed."""
        if self._killed is not None:
            self._servers.restart(self._killed)


class Brokers:
    """Three brokers with a topic.

    Args:
        servers: the brokers.
        clean: whether a replica that has all leads next. If not, the topic has two replicas, of which one is enough,
            and a replica that lacks records leads next.
        output: whether the topic is that of an output; else it is that of the store, which makes it, if it is clean.
    """

    def __init__(self, servers: KafkaServers, *, clean: bool, output: bool = False) -> None:
        self._servers, self.synchronous = servers, clean
        self._topic = f"failover-{secrets.token_hex(6)}"
        self._paused = self._killed = 0
        if not clean:
            make_topics(servers, [self._topic], cleanup_policy="delete" if output else "compact")
        elif output:
            made = NewTopic(self._topic, 1, 3, config={"min.insync.replicas": "2"})
            admin = servers.admin()  # kept until it has answered
            admin.create_topics([made])[self._topic].result(LIMIT_S)
            wait_until(lambda: len(servers.in_sync(self._topic)) == len(servers.brokers), "it is there", LIMIT_S)

    def url(self) -> str:
        """Return the URL of the store, on all brokers."""
        return f"kafka://{self._servers.bootstrap}?topic={self._topic}&timeout=20"

    def place(self) -> str:
        """Return `brokers/topic`."""
        return f"{self._servers.bootstrap}/{self._topic}"

    def hold(self) -> None:
        """See `Cluster`."""
        if not self.synchronous:
            lose_follower(self._servers, [self._topic])
            return
        leader = self._servers.leader(self._topic)
        if leader > 0:
            self._paused = leader % 3 + 1
            self._servers.brokers[self._paused].pause()

    def promote(self) -> None:
        """See `Cluster`."""
        if not self.synchronous:
            self._killed = LEADER
            elect_follower(self._servers, [self._topic])
            return
        self._killed = max(self._servers.leader(self._topic), 1)
        self._servers.kill(self._killed)
        if self._paused:
            self._servers.brokers[self._paused].resume()
        wait_until(lambda: self._servers.leader(self._topic) not in {-1, self._killed}, "another leads", LIMIT_S)

    def lead(self) -> None:
        """See `Cluster`: clients know all brokers."""

    def mend(self) -> None:
        """Start again what was killed."""
        if self._killed:
            self._servers.restart(self._killed)
            wait_until(lambda: len(self._servers.alive()) == len(self._servers.brokers), "all are there", LIMIT_S)
