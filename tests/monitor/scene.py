"""Something to look at: topics, groups in a store, and `offsetkeeper serve` in a process of its own."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

import httpx
from confluent_kafka import Producer

from offsetkeeper import Ledger, OffsetRange, Position, TopicPartition, open_store
from offsetkeeper.core.store import Store
from offsetkeeper.kafka import KafkaCluster
from offsetkeeper.testing.kafka import KafkaServer
from offsetkeeper.testing.server import wait_until

LIMIT_S = 60.0
HOSTILE = "<script>alert(1)<|script>\"'& ü漢 100%?x#y"
TOKEN = "a-token-for-tests-only"


@dataclass
class Scene:
    """Topics of one broker, and groups of one store, each with a ledger; a context manager."""

    server: KafkaServer
    store: str
    ledgers: dict[str, Ledger] = field(default_factory=dict)
    ids: dict[str, str | None] = field(default_factory=dict)
    stores: list[Store] = field(default_factory=list)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for store in self.stores:
            store.close()

    def open(self) -> Store:
        """Return the store, closed at the end."""
        self.stores.append(open_store(self.store))
        return self.stores[-1]

    def topic(self, partitions: int, records: int, config: dict[str, str] | None = None) -> str:
        """Make a topic with so many records in each partition, one a second until now."""
        name = f"topic-{secrets.token_hex(6)}"
        self.server.create_topic(name, partitions, config)
        with KafkaCluster(self.server.bootstrap) as cluster:
            self.ids[name] = cluster.describe([name])[name].topic_id
        self.produce(name, partitions, records)
        return name

    def produce(self, topic: str, partitions: int, records: int) -> None:
        """Write records, one a second until now."""
        producer = Producer({"bootstrap.servers": self.server.bootstrap})
        start_ms = time.time_ns() // 1_000_000 - records * 1000
        for partition in range(partitions):
            for number in range(records):
                producer.produce(topic, b"x", partition=partition, timestamp=start_ms + number * 1000)
        assert producer.flush(LIMIT_S) == 0

    def group(self, name: str, topic: str, ends: Sequence[int], *, held: bool = False, who: str = "host:1") -> Ledger:
        """Make a group that has read each partition up to an offset, in one batch."""
        ledger = self.ledgers[name] = Ledger(self.open(), name, name=who)
        ledger.acquire("start")
        ledger.place({TopicPartition(topic, number): Position(0, self.ids[topic]) for number in range(len(ends))})
        self.commit(name, topic, ends)
        if not held:
            ledger.release("end")
        return ledger

    def commit(self, name: str, topic: str, ends: Sequence[int]) -> None:
        """Commit each partition from where it stands up to an offset."""
        ledger = self.ledgers[name]
        at = ledger.snapshot.positions
        ranges = [OffsetRange(topic, n, at[TopicPartition(topic, n)].offset, end) for n, end in enumerate(ends)]
        ledger.commit(ledger.batch([each for each in ranges if each.size]))


class Served:
    """`offsetkeeper serve` in a process of its own; a context manager.

    Args:
        store: URL.
        brokers: of Kafka.
        options: more of the command's options.
        folder: to run in; an offsetkeeper.toml in it counts.
        token: for changes, given in the environment.
        variables: of the environment besides.

    Attributes:
        url: where it serves, without a slash at the end.
        client: asks it.
    """

    def __init__(
        self,
        store: str,
        brokers: str,
        *options: str,
        folder: Path | None = None,
        token: str = "",
        every: str = "0.5",
        variables: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        command = Path(sys.executable).parent / "offsetkeeper"
        where = ("--store", store, "--brokers", brokers, "--port", "0", "--every", every)
        environment = {name: value for name, value in os.environ.items() if not name.startswith("OFFSETKEEPER_")}
        environment |= variables
        if token:
            environment["OFFSETKEEPER_SERVE_TOKEN"] = token
            options = (*options, "--allow-changes")
        self._process = subprocess.Popen(
            [str(command), "serve", *where, *options],
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.url = ""
        self.output = ""

    def __enter__(self) -> Self:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if "Serving at " not in line:
            raise AssertionError(line + self.stop())
        self.url = line.split("Serving at ")[1].split(",")[0].rstrip("/\n")
        self.client = httpx.Client(base_url=self.url, timeout=LIMIT_S, trust_env=False)
        once = {"Connection": "close"}  # one that waits is closed as idle, while a long look takes the time
        ask = partial(self.client.get, "/api/health", headers=once)
        try:
            wait_until(lambda: ask().json()["look"] > 0, "there was a look", LIMIT_S)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()
        self.output = self.stop()

    def stop(self) -> str:
        """Stop it as a user does, and return what it wrote to stderr."""
        self._process.send_signal(signal.SIGTERM)
        try:
            _, errors = self._process.communicate(timeout=LIMIT_S)
        finally:
            self._process.kill()
        self.code = self._process.returncode
        return errors

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    def json(self, path: str) -> Any:
        """Return what a path of the API answers."""
        return self.client.get(path).json()

    def text(self, path: str) -> str:
        """Return a page."""
        return self.client.get(path).text

    def metrics(self) -> dict[str, float]:
        """Return all samples, by name and labels as they are written."""
        lines = [line for line in self.text("/metrics").split("\n") if line and not line.startswith("#")]
        return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}

    def post(self, path: str, body: Any = None, *, token: str = TOKEN, **headers: str) -> httpx.Response:
        """Ask for a change."""
        more = {name.replace("_", "-"): value for name, value in headers.items()}
        sent = {"authorization": f"Bearer {token}", **more} if token else more
        return self.client.post(path, json=body or {}, headers=sent)
