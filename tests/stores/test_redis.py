"""The store in Redis: the suites."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from urllib.parse import parse_qs, urlsplit

import pytest
import redis

from offsetkeeper.core.ledger import Ledger
from offsetkeeper.core.offsets import TopicPartition
from offsetkeeper.testing.conformance import (
    DurableConformance,
    FaultConformance,
    HistoryConformance,
    Stage,
    StoreConformance,
)
from offsetkeeper.testing.conformance.served import commit_of
from offsetkeeper.testing.proxy import TcpProxy
from offsetkeeper.testing.redis import RedisServer


class TestRedis(StoreConformance, HistoryConformance, DurableConformance, FaultConformance):
    """The suites, with keys read and written by a client of their own."""

    requests = ((b"EVALSHA", Stage.DECIDES), (b"", Stage.DECIDES))  # and nothing goes before it
    reads = (b"HGETALL",)

    @pytest.fixture
    def server(self, redis_server: RedisServer) -> RedisServer:
        """The run's server."""
        return redis_server

    @pytest.fixture
    def url(self, redis_url: str) -> str:
        """A template of the test's own."""
        return redis_url

    @pytest.fixture(autouse=True)
    def client(self, url: str) -> Iterator[redis.Redis]:
        """A client beside the store's."""
        with redis.Redis.from_url(url.partition("?")[0], decode_responses=True) as client:
            self._client = client
            yield client

    def key(self, url: str, group: str, topic: str) -> str:
        """Return the name of a hash, as others would make it."""
        prefix = parse_qs(urlsplit(url).query)["key"][0].partition(":")[0]
        return f"{prefix}:offset:{topic}:{group}"

    def read_positions(self, url: str, group: str) -> Mapping[TopicPartition, int]:
        """Read the hashes."""
        start, end = self.key(url, "", "").removesuffix(":"), f":{group}"
        found: dict[TopicPartition, int] = {}
        for key in self._client.scan_iter(start.encode() + b"*", count=10_000):
            topic = key[len(start) : len(key) - len(end)]
            if key == f"{start}{topic}{end}" and ":" not in topic:
                rows = self._client.hgetall(key)
                found |= {TopicPartition(topic, int(field)): int(value) for field, value in rows.items()}
        return found

    def read_version(self, url: str, group: str) -> int:
        """Read the control record."""
        return int(self._client.hget(f"offsetkeeper:control:{self.key(url, group, '*')}", "version") or 0)

    def write_position(self, url: str, group: str, tp: TopicPartition, offset: int | None) -> None:
        """Write into a hash."""
        key = self.key(url, group, tp.topic)
        if offset is None:
            self._client.hdel(key, str(tp.partition))
        else:
            self._client.hset(key, str(tp.partition), offset)

    def spoilers(self, url: str, group: str) -> Mapping[str, Callable[[], object]]:
        """See `DurableConformance`."""
        control = f"offsetkeeper:control:{self.key(url, group, '*')}"
        rows = self.key(url, group, "rivals")
        put = self._client.hset
        return {
            "a negative offset": partial(put, rows, "0", "-1"),
            "an offset too large": partial(put, rows, "0", str(2**63)),
            "an offset with a leading zero": partial(put, rows, "0", "03"),
            "no offset": partial(put, rows, "0", "three"),
            "a partition that is no number": partial(put, rows, "zero", "3"),
            "another type": lambda: (self._client.delete(rows), self._client.set(rows, "3")),
            "no JSON": partial(put, control, "control", "garbage"),
            "JSON of another kind": partial(put, control, "control", "[]"),
            "a newer format": partial(put, control, "control", '{"format":99}'),
            "a negative version": partial(put, control, "version", "-1"),
            "no version": partial(self._client.hdel, control, "version"),
            "no control": partial(self._client.hdel, control, "control"),
            "topic ids of another kind": partial(put, control, "topic_ids", "[]"),
            "no text": partial(put, control, "control", b"\xff"),
        }

    def dump(self, url: str) -> object:
        """See `DurableConformance`."""
        prefix = self.key(url, "", "").partition(":")[0]
        return {key: self._client.dump(key) for key in sorted(self._client.scan_iter(f"*{prefix}*", count=10_000))}

    def test_a_connection_that_ended_while_it_was_kept_is_made_anew_before_it_is_used(
        self, ledger: Ledger, proxy: TcpProxy, url: str
    ) -> None:
        """So that a server's restart between two batches leaves nothing in doubt."""
        proxy.refuse()
        proxy.heal()
        ledger.store.apply(commit_of(ledger))
        assert self.stored(url) == (10, 3)
