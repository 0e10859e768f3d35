"""Other processes that work for the same group: they race, are fenced, or die in the middle of a transaction.

Each is a function that runs in a process of its own, told what to do and telling what happened through a pipe.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

from offsetkeeper.core import rules
from offsetkeeper.core.batch import Batch
from offsetkeeper.core.ledger import Ledger
from offsetkeeper.core.offsets import OffsetRange, Position, TopicPartition
from offsetkeeper.core.store import Store
from offsetkeeper.errors import OffsetkeeperError, VersionConflict
from offsetkeeper.testing.errors import ServerError

Opener = Callable[[str], Store]
PARTITION = TopicPartition("rivals", 0)
_LIMIT = 240.0


class Rival:
    """A running process and the pipe to it; `rival` starts one."""

    def __init__(self, function: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        context = multiprocessing.get_context("spawn")  # no thread or connection of this process is inherited
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=function, args=(theirs, *arguments), daemon=True)
        self._process.start()
        theirs.close()

    def hear(self, limit: float = _LIMIT) -> Any:
        """Return what the process says next.

        Raises:
            ServerError: it said nothing within `limit` seconds, or died.
        """
        if not self._pipe.poll(limit):
            raise ServerError(f"process {self._process.pid} said nothing for {limit:g} s")
        try:
            return self._pipe.recv()
        except EOFError:
            self._process.join(_LIMIT)
            raise ServerError(f"process {self._process.pid} ended with {self._process.exitcode}") from None

    def go_on(self) -> None:
        """Let the process take its next step."""
        self._pipe.send("go on")

    def kill(self) -> None:
        """Kill the process with SIGKILL, as a crash would."""
        self._process.kill()
        self._process.join(_LIMIT)
        self._pipe.close()


@contextmanager
def rival(function: Callable[..., None], *arguments: Any) -> Iterator[Rival]:
    """Run a function of this module in a process of its own; it is killed at the end."""
    started = Rival(function, arguments)
    try:
        yield started
    finally:
        started.kill()


def race(store: Store, group: str, rounds: int) -> list[int]:
    """Change the group until its version is `rounds`; return the versions won. Each adds one to the position."""
    won = []
    while (snapshot := store.load(group)).version < rounds:
        version = snapshot.version + 1
        author = rules.Author("racer", "racer", 0, f"{version}")
        change = rules.decide(snapshot, rules.Rewind({PARTITION: Position(version)}), author)
        try:
            store.apply(change)
        except VersionConflict:
            continue
        won.append(version)
    return won


def racer(pipe: Connection, opener: Opener, url: str, group: str, rounds: int) -> None:
    """Say "ready", wait, race, and say the versions won."""
    store = opener(url)
    pipe.send("ready")
    pipe.recv()
    pipe.send(race(store, group, rounds))
    store.close()


def owner(pipe: Connection, opener: Opener, url: str, group: str) -> None:
    """Acquire the group, commit 0 to 10 and say so; wait, commit on, and say what came of it."""
    ledger = Ledger(opener(url), group, retry_timeout_s=60)
    ledger.acquire()
    ledger.place({PARTITION: Position(0)})
    ledger.commit(next_batch(ledger, 10))
    pipe.send("committed")
    pipe.recv()
    try:
        ledger.commit(next_batch(ledger, 10))
    except OffsetkeeperError as error:
        pipe.send(type(error).__name__)
    else:
        pipe.send("committed")
    ledger.store.close()


def writer(pipe: Connection, opener: Opener, url: str, group: str, write: Callable[[Any], object]) -> None:
    """Acquire the group, write a row in a transaction, and wait inside it to be killed."""
    ledger = Ledger(opener(url), group, retry_timeout_s=60)
    ledger.acquire()
    ledger.place({PARTITION: Position(0)})
    with ledger.transaction(next_batch(ledger, 10)) as connection:
        write(connection)
        pipe.send("inside")
        pipe.recv()


def next_batch(ledger: Ledger, size: int) -> Batch:
    """Return the next `size` offsets of the one partition as a batch."""
    start = ledger.snapshot.positions[PARTITION].offset
    return ledger.batch([OffsetRange(*PARTITION, start, start + size)])
