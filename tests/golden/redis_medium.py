"""Ledgers in keys of Redis."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import redis

from golden.medium import Medium
from golden.scenario import TOPICS
from golden.values import readable, written
from offsetkeeper.testing.redis import RedisServer

_DATABASE = 12  # no other test's: the keys have their usual names there


class RedisMedium(Medium):
    """A database."""

    def __init__(self, server: RedisServer) -> None:
        self.url = server.url(_DATABASE)
        self._ask(lambda client: client.flushdb())

    def dump(self) -> Any:
        """Read every key; each is a hash or a list."""
        return self._ask(lambda client: {key.decode(): _value(client, key) for key in sorted(client.keys())})

    def restore(self, content: Any) -> None:
        """Write every key."""
        for key, found in content.items():
            if found["type"] == "hash":
                fields = {name: written(value) for name, value in found["fields"].items()}
                self._ask(lambda client, key=key, fields=fields: client.hset(key, mapping=fields))
            else:
                items = [written(value) for value in found["items"]]
                self._ask(lambda client, key=key, items=items: client.rpush(key, *items))

    def positions(self, group: str) -> Mapping[tuple[str, int], int]:
        """Read the hashes of the topics."""
        found = {topic: self._ask(lambda c, topic=topic: c.hgetall(f"offset:{topic}:{group}")) for topic in TOPICS}
        return {(topic, int(number)): int(at) for topic, parts in found.items() for number, at in parts.items()}

    def _ask(self, question: Any) -> Any:
        with redis.Redis.from_url(self.url) as client:
            return question(client)


def _value(client: Any, key: bytes) -> dict[str, Any]:
    assert client.ttl(key) == -1, key
    if client.type(key) == b"hash":
        fields = sorted(client.hgetall(key).items())
        return {"type": "hash", "fields": {name.decode(): readable(value) for name, value in fields}}
    return {"type": "list", "items": [readable(item) for item in client.lrange(key, 0, -1)]}
