"""What fails over by itself: three ZooKeeper servers, and three brokers with the store's topic."""

from __future__ import annotations

import secrets

from engines.elections import LEADER, elect_follower, lose_follower, make_topics
from failover.pairs import LIMIT_S
from offsetkeeper.testing.kafka import KafkaServers
from offsetkeeper.testing.server import wait_until
from offsetkeeper.testing.zookeeper import ZooKeeperEnsemble


class Ensemble:
    """An ensemble whose leader dies. A follower is held back first, so that it lacks what the others have."""

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
    """Three brokers with the topic of the store.

    Args:
        servers: the brokers.
        clean: whether the topic is as the store makes it, and a replica that has all leads next; or it has two
            replicas, one is enough, and a replica that lacks records leads next.
    """

    def __init__(self, servers: KafkaServers, *, clean: bool) -> None:
        self._servers, self._clean = servers, clean
        self._topic = f"ledgers-{secrets.token_hex(6)}"
        self._paused = self._killed = 0
        if not clean:
            make_topics(servers, [self._topic], cleanup_policy="compact")

    def url(self) -> str:
        """Return the URL of the store, on all brokers."""
        return f"kafka://{self._servers.bootstrap}?topic={self._topic}&timeout=20"

    def hold(self) -> None:
        """See `Cluster`."""
        if not self._clean:
            lose_follower(self._servers, [self._topic])
            return
        leader = self._servers.leader(self._topic)
        if leader > 0:
            self._paused = leader % 3 + 1
            self._servers.brokers[self._paused].pause()

    def promote(self) -> None:
        """See `Cluster`."""
        if not self._clean:
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
