"""The store in Kafka while connections break and the broker is killed, stopped or frozen."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from multiprocessing.connection import Connection

import pytest
from confluent_kafka import KafkaException

from offsetkeeper.clients.url import read_url
from offsetkeeper.core.ledger import Ledger
from offsetkeeper.core.offsets import Position
from offsetkeeper.stores.kafka import KafkaStore
from offsetkeeper.stores.kafka.clients import Clients
from offsetkeeper.testing.conformance import FaultConformance, Stage
from offsetkeeper.testing.kafka import KafkaServer
from offsetkeeper.testing.proxy import Cut, TcpProxy
from offsetkeeper.testing.rivals import PARTITION, next_batch, rival
from offsetkeeper.testing.server import Server
from stores.kafka_media import KafkaMedium


@pytest.fixture(scope="module")
def broker() -> Iterator[KafkaServer]:
    """A broker of this file's own, to be killed and frozen."""
    with KafkaServer() as server:
        server.create_topic(PARTITION.topic)
        yield server


class TestKafkaFaults(KafkaMedium, FaultConformance):
    """The suite. A line is sent once. What is read before it, and published after it, is asked for again."""

    requests = ((b"offsetkeeper", Stage.SAFE), (b"orders/", Stage.DECIDES), (PARTITION.topic.encode(), Stage.SAFE))
    copies = True
    reads = (b"",)
    calm_s = 1.0
    hurried = "timeout=3"  # also for what is published after, which comes with the next change where it takes longer

    @pytest.fixture
    def server(self, broker: KafkaServer) -> KafkaServer:
        """Return this file's."""
        self.kafka = broker
        return broker

    @pytest.fixture
    def url(self, server: KafkaServer) -> str:
        """Groups of a prefix of their own."""
        return f"kafka://{server.bootstrap}?prefix=test-{secrets.token_hex(6)}-"

    @pytest.fixture
    def proxy(self, server: KafkaServer) -> Iterator[TcpProxy]:
        """Return a proxy to which the broker sends its clients."""
        with server.proxy() as proxy:
            yield proxy

    def through(self, url: str, server: Server, proxy: TcpProxy) -> str:
        """See `ServedMedium`."""
        assert isinstance(server, KafkaServer)
        return url.replace(server.bootstrap, proxy.address) + "&timeout=3"

    def test_a_load_through_a_cut_is_tried_again(self, ledger: Ledger, proxy: TcpProxy, cut: Cut, read: bytes) -> None:
        """By the store, with a client made anew: the old one may not come back."""
        with proxy.cut(cut, read):
            assert ledger.store.load(ledger.group).positions == {PARTITION: Position(0)}

    def test_a_change_whose_reply_is_lost_is_in_the_topic_once(self, ledger: Ledger, proxy: TcpProxy) -> None:
        """Of two copies compaction keeps the later one, behind a rival that has lost to the earlier one."""
        store = ledger.store
        assert isinstance(store, KafkaStore)
        with proxy.cut(Cut.REPLY, b"orders/"):
            ledger.commit(next_batch(ledger, 10))
        tokens = [line.token for line in store._lines(ledger.group)]
        assert len(tokens) == len(set(tokens)) == ledger.snapshot.version


ASKERS, SECONDS = 12, 20.0


def ask_for_members(pipe: Connection, url: str) -> None:
    """Ask again and again for the consumers of a group, in several threads, and say how often that was answered."""
    until = time.monotonic() + SECONDS

    def ask(_: int) -> int:
        clients, answers = Clients(read_url(url, ("timeout",), own=None)), 0
        while time.monotonic() < until:
            with suppress(KafkaException):
                clients.has_members("a-group", PARTITION.topic)
                answers += 1
        return answers

    with ThreadPoolExecutor(ASKERS) as pool:
        pipe.send(sum(pool.map(ask, range(ASKERS))))


def test_a_process_outlives_connections_that_break_while_it_asks_for_the_consumers_of_a_group(
    broker: KafkaServer,
) -> None:
    """Where a coordinator is asked to describe a group, the client library ends the process by an assertion."""
    over = threading.Event()
    with broker.proxy() as proxy, ThreadPoolExecutor(1) as pool:

        def break_connections() -> None:
            while not over.wait(0.07):
                proxy.refuse()
                over.wait(0.03)
                proxy.heal()

        with rival(ask_for_members, f"kafka://{proxy.address}?timeout=2") as asker:
            breaking = pool.submit(break_connections)
            try:
                assert asker.hear() > 0
            finally:
                over.set()
            breaking.result(30)
