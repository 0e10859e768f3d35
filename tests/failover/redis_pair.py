"""Redis with a replica. It is asynchronous, whatever is set."""

from __future__ import annotations

import redis

from failover.pairs import LIMIT_S, Pair
from offsetkeeper.testing.redis import RedisServer
from offsetkeeper.testing.server import wait_until


class RedisPair(Pair):
    """See `Pair`."""

    primary: RedisServer
    standby: RedisServer

    def __init__(self) -> None:
        super().__init__(RedisServer(settings={"repl-diskless-sync-delay": "0"}), RedisServer(), synchronous=False)

    def create(self) -> str:
        """See `Pair`."""
        return "0"

    def _follow(self) -> None:
        self.standby.start()
        with redis.Redis(port=self.primary.port) as primary, redis.Redis(port=self.standby.port) as standby:
            standby.replicaof("127.0.0.1", self.link.port)

            def follows() -> bool:
                replica = primary.info("replication").get("slave0")
                return bool(replica) and replica["state"] == "online"

            wait_until(follows, "the replica follows", LIMIT_S)
            primary.set("first", 1)
            assert primary.wait(1, int(LIMIT_S * 1000)) == 1

    def _promote(self) -> None:
        with redis.Redis(port=self.standby.port) as standby:
            standby.replicaof("NO", "ONE")
