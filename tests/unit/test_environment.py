"""Time, waiting and chance come from one place, which can be replaced; and no code of ours has a way of its own."""

from __future__ import annotations

import time
from contextlib import suppress
from threading import Thread

import pytest

from offsetkeeper.core import environment
from offsetkeeper.core.environment import Environment
from offsetkeeper.core.ledger import Ledger
from offsetkeeper.core.retry import retry
from offsetkeeper.stores.memory import MemoryStore
from offsetkeeper.testing.clock import no_waiting


class Numbered(Environment):
    """Answers with what can be told beforehand."""

    def __init__(self) -> None:
        self.tokens = 0
        self.waited: list[float] = []

    def now_ms(self) -> int:
        """Return always the same."""
        return 1_000

    def token(self, size: int = 8) -> str:
        """Return the number of the token."""
        self.tokens += 1
        return f"{self.tokens:0{2 * size}x}"

    def wait(self, seconds: float) -> None:
        """Note it."""
        self.waited.append(seconds)

    def chance(self) -> float:
        """Return always the same."""
        return 0.5


def test_the_machine_is_asked_where_nothing_else_is_said() -> None:
    before, began = environment.monotonic(), time.monotonic()
    environment.wait(0.01)
    assert environment.monotonic() - before >= 0.01
    assert time.monotonic() - began >= 0.01
    assert abs(environment.now_ms() - time.time() * 1000) < 5_000
    assert len({environment.token() for _ in range(100)}) == 100
    assert {len(environment.token(size)) for size in (2, 16)} == {4, 32}
    chances = [environment.chance() for _ in range(100)]
    assert 0 <= min(chances) < max(chances) < 1


def test_the_environment_is_put_back_also_after_an_error() -> None:
    before = environment._current
    with no_waiting() as still:
        assert environment._current is still
    with suppress(ValueError), no_waiting():
        raise ValueError
    assert environment._current is before


def test_it_is_that_of_all_threads() -> None:
    found: list[int] = []
    with environment.using(Numbered()):
        thread = Thread(target=lambda: found.append(environment.now_ms()))
        thread.start()
        thread.join()
    assert found == [1_000]


def test_what_a_ledger_writes_is_the_same_in_the_same_environment() -> None:
    def written(url: str) -> list[object]:
        with environment.using(Numbered()):
            ledger = Ledger(MemoryStore(url), "orders", name="driver")
            ledger.acquire("first")
            ledger.release()
        return [ledger.snapshot, *ledger.history()]

    assert written("memory://environment-1") == written("memory://environment-2")


def test_a_try_waits_by_the_environment_and_its_chance() -> None:
    calls = iter([ValueError("away")])

    def call(_: float) -> str:
        for error in calls:
            raise error
        return "done"

    numbered = Numbered()
    with environment.using(numbered):
        assert retry(ValueError, 5, call, first_s=0.1, jitter_s=0.4) == "done"
    assert numbered.waited == [pytest.approx(0.1 + 0.2)]
