"""The store in memory."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from offsetkeeper.core.model import Snapshot
from offsetkeeper.core.offsets import Position, TopicPartition
from offsetkeeper.core.rules import Author, Rewind, decide
from offsetkeeper.errors import SettingsError
from offsetkeeper.stores.memory import MemoryStore
from offsetkeeper.testing.conformance import HistoryConformance, StoreConformance
from offsetkeeper.testing.rivals import race


class TestMemory(StoreConformance, HistoryConformance):
    """The suites."""

    examples = 25  # it takes no time
    processes = 1

    @pytest.fixture
    def url(self) -> str:
        """A name of its own."""
        return f"memory://{secrets.token_hex(8)}"

    def read_positions(self, url: str, group: str) -> Mapping[TopicPartition, int]:
        """Read from the memory."""
        return {tp: held.offset for tp, held in MemoryStore(url).memory.positions.get(group, {}).items()}

    def write_position(self, url: str, group: str, tp: TopicPartition, offset: int | None) -> None:
        """Write into the memory."""
        positions = MemoryStore(url).memory.positions.setdefault(group, {})
        positions.pop(tp, None)
        if offset is not None:
            positions[tp] = Position(offset)


@pytest.fixture
def restless() -> Iterator[None]:
    """Let threads be interrupted between any two steps."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(usual)


@pytest.mark.usefixtures("restless")
def test_threads_that_are_interrupted_anywhere_lose_nothing() -> None:
    store, rounds, threads = MemoryStore(f"memory://{secrets.token_hex(8)}"), 300, 4
    start = Barrier(threads)

    def run(_: int) -> list[int]:
        start.wait(30)
        return race(store, "g", rounds)

    with ThreadPoolExecutor(threads) as pool:
        won = sorted(version for wins in pool.map(run, range(threads)) for version in wins)
    assert won == list(range(1, rounds + 1))
    assert [entry.version for entry in store.history("g", rounds)] == won[::-1]


def test_stores_of_another_name_are_apart() -> None:
    one, two = (MemoryStore(f"memory://{secrets.token_hex(8)}") for _ in range(2))
    author = Author("me", "me", 0, "id")
    one.apply(decide(Snapshot("g"), Rewind({TopicPartition("t", 0): Position(1)}), author))
    assert two.load("g") == Snapshot("g")
    assert one.load("g").version == 1


def test_a_loaded_snapshot_does_not_change_with_the_store() -> None:
    store = MemoryStore(f"memory://{secrets.token_hex(8)}")
    found = store.load("g")
    store.apply(decide(found, Rewind({TopicPartition("t", 0): Position(1)}), Author("me", "me", 0, "id")))
    assert found == Snapshot("g")


@pytest.mark.parametrize("url", ["memory://name/path", "memory://name#part", "memory://name?table=x"])
def test_what_a_memory_store_has_no_use_for_is_refused(url: str) -> None:
    with pytest.raises(SettingsError):
        MemoryStore(url)
