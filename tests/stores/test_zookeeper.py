"""The store in ZooKeeper: the suites, the layout as others see it, and what does not fit into one request."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
from kazoo.exceptions import NodeExistsError, NoNodeError

from offsetkeeper.core.offsets import TopicPartition
from offsetkeeper.stores.zookeeper import ZooKeeperStore
from offsetkeeper.stores.zookeeper.nodes import NAMES
from offsetkeeper.testing.conformance import (
    DurableConformance,
    FaultConformance,
    HistoryConformance,
    Stage,
    StoreConformance,
)
from offsetkeeper.testing.rivals import next_batch
from offsetkeeper.testing.server import wait_until
from offsetkeeper.testing.zookeeper import ZooKeeperServer


@pytest.fixture(scope="module")
def bare(zookeeper_server: ZooKeeperServer) -> Iterator[Any]:
    """A bare client."""
    client = zookeeper_server.client(connection_retry={"max_tries": -1, "max_delay": 0.2})
    yield client
    client.stop()
    client.close()


# Hypothesis takes the numbers that kazoo's thread draws at the same time for a strategy's own.
@pytest.mark.filterwarnings("ignore:Do not use the .random. module")
class TestZooKeeper(StoreConformance, HistoryConformance, DurableConformance, FaultConformance):
    """The suites."""

    requests = ((b"/offsetkeeper/history/", Stage.DECIDES),)
    reads = (b"/offsetkeeper/unpublished",)
    rows_are_positions = False
    bare: Any

    @pytest.fixture
    def server(self, zookeeper_server: ZooKeeperServer) -> ZooKeeperServer:
        """The run's server."""
        return zookeeper_server

    @pytest.fixture(autouse=True)
    def _reach(self, bare: Any) -> None:
        self.bare = bare

    @pytest.fixture
    def url(self, zookeeper_server: ZooKeeperServer) -> str:
        """A path of its own."""
        return zookeeper_server.url(f"test-{secrets.token_hex(6)}/deeper")

    def folder(self, url: str, group: str) -> str:
        """Path of a group."""
        return f"/{url.split('/', 3)[3]}/consumers/{NAMES.name_of(group)}"

    def read_positions(self, url: str, group: str) -> Mapping[TopicPartition, int]:
        """Read the nodes."""
        offsets = f"{self.folder(url, group)}/offsets"
        wait_until(lambda: self.bare.connected, "the client has found the server again", 30)
        found: dict[TopicPartition, int] = {}
        for topic in self.bare.get_children(offsets) if self.bare.exists(offsets) else ():
            names = self.bare.get_children(f"{offsets}/{topic}")
            asked = {name: self.bare.get_async(f"{offsets}/{topic}/{name}") for name in names}
            found |= {TopicPartition(topic, int(name)): int(answer.get()[0]) for name, answer in asked.items()}
        return found

    def write_position(self, url: str, group: str, tp: TopicPartition, offset: int | None) -> None:
        """Write a node."""
        path = f"{self.folder(url, group)}/offsets/{tp.topic}/{tp.partition}"
        if offset is None:
            with suppress(NoNodeError):
                self.bare.delete(path)
            return
        try:
            self.bare.create(path, str(offset).encode(), makepath=True)
        except NodeExistsError:
            self.bare.set(path, str(offset).encode())

    def spoilers(self, url: str, group: str) -> Mapping[str, Callable[[], object]]:
        """Spoil the nodes that hold the ledger."""
        ledger = f"{self.folder(url, group)}/offsetkeeper/ledger"
        texts = {
            "no JSON": b"garbage",
            "nothing": b"",
            "badly compressed": b"x garbage",
            "JSON of another kind": b"[]",
            "no offsets": b'{"version": 2}',
            "a newer format": b'{"offsets": {}, "format": 99, "version": 2}',
        }
        spoilers = {name: partial(self.bare.set, ledger, text) for name, text in texts.items()}
        unpublished = f"{self.folder(url, group)}/offsetkeeper/unpublished"
        return {**spoilers, "a damaged note": partial(self.bare.set, unpublished, b"garbage")}

    def dump(self, url: str) -> object:
        """Read every node."""
        return self.tree("/" + url.split("/", 3)[3])

    def tree(self, path: str) -> list[Any]:
        """Read a node and all below it."""
        children = sorted(self.bare.get_children(path))
        return [path, self.bare.get(path)[0], *(self.tree(f"{path}/{child}") for child in children)]

    def test_a_session_that_expired_is_replaced(self, url: str, server: ZooKeeperServer) -> None:
        """As after a long pause of this process."""
        with self.holding(f"{url}?timeout=1") as ledger:
            store = ledger.store
            assert isinstance(store, ZooKeeperStore)
            session, password = store._sessions._held.client_id
            thief = server.client(client_id=(session, password))  # whoever names the session moves it, and ends it
            thief.stop()
            thief.close()
            ledger.commit(next_batch(ledger, 10))
            assert self.stored(url) == (10, 3)
