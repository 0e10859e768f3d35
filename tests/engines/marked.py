"""A real output that keeps a mark, the one of docs/write-a-sink.md, which stops or dies where a test says."""

from __future__ import annotations

import sqlite3
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from docs.pages import ROOT, blocks
from engines.lab import LIMIT_S, Lab, Running
from offsetkeeper.errors import Fenced
from offsetkeeper.sinks import Lander

_NAMES: dict[str, Any] = {}
exec(blocks(ROOT / "docs" / "write-a-sink.md")[0], _NAMES)  # noqa: S102 - the page's sink


class Died(BaseException):
    """Ends a run as a crash of its process does: no code of the run handles it."""


def hooked(lander: Lander, at: Any) -> Lander:
    """Return a lander that calls `at.before` and `at.after` around each landing, as they are then."""

    def land(*arguments: Any) -> str | None:
        at.before()
        target = lander.land(*arguments)
        at.after()
        return target

    return replace(lander, land=land)


@dataclass
class Marked:
    """A file of SQLite with the table `records`.

    Attributes:
        path: of the file.
        before, after: called before and after rows or a void mark land.
    """

    path: Path
    before: Callable[[], object] = field(default=lambda: None)
    after: Callable[[], object] = field(default=lambda: None)

    def __post_init__(self) -> None:
        """Make the table."""
        with closing(sqlite3.connect(self.path)) as connection:
            connection.execute('create table if not exists records (batch, topic, "partition", "offset")')

    def prepare(self, store: Any, guarantee: Any) -> Lander:
        """See `Sink.prepare`."""
        return hooked(_NAMES["Records"](self.path).prepare(store, guarantee), self)

    def counted(self) -> Counter[tuple[int, int]]:
        """Return how often each record is there, by partition and offset."""
        with closing(sqlite3.connect(self.path)) as connection:
            return Counter(connection.execute('select "partition", "offset" from records').fetchall())

    def mark(self) -> str:
        """Return the text of the mark."""
        with closing(sqlite3.connect(self.path)) as connection:
            [[text]] = connection.execute("select mark from marks").fetchall()
            return str(text)


class Placed(Marked):
    """Tells its target."""

    @property
    def writes_to(self) -> str:
        """The name of what it writes to."""
        return self.path.stem

    @property
    def place(self) -> str:
        """Where it is."""
        return str(self.path)


def nothing() -> None:
    """Do nothing."""


def dies() -> None:
    """Die."""
    raise Died


class Stall:
    """Stops whoever calls it first, until it is told to go on."""

    def __init__(self) -> None:
        self.reached, self.go = threading.Event(), threading.Event()
        self._first = threading.Lock()

    def __call__(self) -> None:
        """Stop, the first time."""
        if self._first.acquire(blocking=False):
            self.reached.set()
            assert self.go.wait(120)


@contextmanager
def stalled(lab: Lab, topic: str, at: Any, sink: Any) -> Iterator[None]:
    """Let a run stop before its batch lands in an output; it lands late, after the block, and has been fenced."""
    at.before = stall = Stall()
    settings: dict[str, Any] = {"sink": sink, "guarantee": "exactly_once", "until": "caught_up"}
    with Running(lab.pipeline(topic), lab.spark, **settings) as older:
        assert stall.reached.wait(LIMIT_S)
        yield
        stall.go.set()
        with pytest.raises(Fenced):
            older.end()
