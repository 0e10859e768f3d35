"""One run of the real engine, in a process of its own, that sends itself a signal at its nth step.

A step is a moment before or after the effect of a call to the store, or of a write to the output. Only the reader and
the sinks are the tests' own, without Spark: starting a JVM costs seconds, and there are hundreds of runs. The engine
passes the frame through from the one to the other and never looks into it, so a list of records will do for one. The
records are read from a real broker by the code that reads them on Spark's executors.
"""

from __future__ import annotations

import json
import os
import sqlite3
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from offsetkeeper.core.batch import Batch
from offsetkeeper.core.model import Change, Entry, Guarantee, Snapshot
from offsetkeeper.core.offsets import OffsetRange
from offsetkeeper.core.store import Store, TransactionalStore
from offsetkeeper.errors import Fenced, StoreUnavailable
from offsetkeeper.pipeline import Pipeline
from offsetkeeper.readers import Source
from offsetkeeper.readers.consume import read
from offsetkeeper.sinks import Joiner, Writer

FENCED, AWAY = 3, 4
"""Exit codes of a run that was fenced, and of one whose store was away."""
Mode = Literal["transaction", "idempotent", "at_least_once", "at_most_once"]
Record = tuple[str, int, int, str]  # topic, partition, offset, value
CREATE = "create table if not exists results (topic text, part int, place int, value text, group_id text, batch text)"
UNIQUE = "create unique index if not exists once on results (topic, part, place, group_id)"


@dataclass(frozen=True, slots=True)
class Settings:
    """What a run is told.

    Attributes:
        brokers, topic, group, store, retry_timeout_s, max_records: as of a pipeline.
        mode: which guarantee is asked for, and how it is kept.
        output: file with the results where they are not in the store's own database.
        log: file to which the step is written before the signal is sent.
        signal: number of the signal.
        step: when to send it, counted from 1; 0 for never.
        only: name of the steps that are counted; "" for all.
    """

    brokers: str
    topic: str
    group: str
    store: str
    mode: Mode
    output: str
    log: str
    signal: int = 0
    step: int = 0
    only: str = ""
    retry_timeout_s: float = 10
    max_records: int = 10


class Steps:
    """Counts the steps, and sends the signal at the one that was asked for.

    Attributes:
        in_hand: the ranges of the last step.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._count = 0
        self.in_hand: Sequence[OffsetRange] = ()

    def at(self, name: str, ranges: Sequence[OffsetRange] = ()) -> None:
        """Take a step with these ranges in hand."""
        self.in_hand = ranges
        if self._settings.only not in {"", name}:
            return
        self._count += 1
        if self._count == self._settings.step:
            line = json.dumps({"step": self._count, "name": name, "ranges": ranges, "pid": os.getpid()})
            with Path(self._settings.log).open("a", encoding="utf-8") as log:
                log.write(f"{line}\n")
            os.kill(os.getpid(), self._settings.signal)

    @contextmanager
    def around(self, name: str, ranges: Sequence[OffsetRange] = ()) -> Iterator[None]:
        """Take a step before the block and one after it."""
        self.at(f"before {name}", ranges)
        yield
        self.at(f"after {name}", ranges)


def step_at_links(steps: Steps) -> None:
    """Take a step before and after each hard link, by which the store in a folder makes a change."""
    link = os.link

    def stepped(*arguments: Any, **words: Any) -> None:
        with steps.around("link", steps.in_hand):
            link(*arguments, **words)

    os.link = cast("Any", stepped)


class SteppedStore:
    """A store with a step before and after each of its calls."""

    def __init__(self, store: TransactionalStore, steps: Steps) -> None:
        self.address, self.abilities = store.address, store.abilities
        self._store, self._steps = store, steps

    def load(self, group: str) -> Snapshot:
        """See `Store.load`."""
        with self._steps.around("load"):
            return self._store.load(group)

    def apply(self, change: Change) -> None:
        """See `Store.apply`."""
        with self._steps.around(change.entry.event, change.entry.ranges):
            self._store.apply(change)

    def history(self, group: str, limit: int = 100) -> Sequence[Entry]:
        """See `Store.history`."""
        return self._store.history(group, limit)

    def groups(self) -> Sequence[str]:
        """See `Store.groups`."""
        return self._store.groups()

    def close(self) -> None:
        """See `Store.close`."""
        self._store.close()

    def identity(self) -> str:
        """See `TransactionalStore.identity`."""
        return self._store.identity()

    @contextmanager
    def transaction(self, change: Change) -> Iterator[Any]:
        """See `TransactionalStore.transaction`."""
        around, ranges = self._steps.around, change.entry.ranges
        with (
            around("transaction", ranges),
            self._store.transaction(change) as connection,
            around("output in the transaction", ranges),
        ):
            yield connection


class PlainReader:
    """Reads ranges as a list of records, with the code that reads them on Spark's executors."""

    def __init__(self, settings: Settings) -> None:
        self._source = Source(settings.brokers, {}, settings.group, "read_committed")

    def read(
        self, _spark: object, ranges: Sequence[OffsetRange], topic_ids: Mapping[str, str], *_: object
    ) -> list[Record]:
        """Return the records of the ranges."""
        return [
            (row["topic"], row["partition"], row["offset"], row["value"].decode())
            for batch in read(self._source, ranges, topic_ids)
            for row in batch.select(["topic", "partition", "offset", "value"]).to_pylist()
        ]


class SharedSink:
    """Writes into the store's own database, in the transaction that commits the offsets."""

    def __init__(self, settings: Settings, steps: Steps) -> None:
        mark = "?" if settings.store.startswith("sqlite") else "%s"
        self._insert = f"insert into results values ({', '.join([mark] * 6)})"  # noqa: S608 - two constants
        self._steps = steps

    def prepare(self, _store: Store, _guarantee: Guarantee) -> Joiner:
        """Accept any guarantee: which ones a sink keeps is not what these tests are about."""
        return Joiner(cast("Any", self._stage))

    def _stage(self, frame: list[Record], batch: Batch) -> Callable[[Any], None]:
        """Return what writes the records on the connection lent."""
        self._steps.at("stage", batch.ranges)

        def finish(connection: Any) -> None:
            connection.cursor().executemany(self._insert, [(*record, batch.group, batch.id) for record in frame])

        return finish


class OwnSink:
    """Writes into a file of its own, each partition by itself, with a step before each and one at the end."""

    def __init__(self, settings: Settings, steps: Steps) -> None:
        self._settings, self._steps = settings, steps
        self._word = "or ignore " if settings.mode == "idempotent" else ""

    def prepare(self, _store: Store, _guarantee: Guarantee) -> Writer:
        """Accept any guarantee: which ones a sink keeps is not what these tests are about."""
        return Writer(cast("Any", self._write))

    def _write(self, frame: list[Record], batch: Batch) -> None:
        """Write the records, partition by partition."""
        insert = f"insert {self._word}into results values (?, ?, ?, ?, ?, ?)"  # noqa: S608 - two constants
        with closing(sqlite3.connect(self._settings.output)) as connection:
            for partition in sorted({record[1] for record in frame}):
                self._steps.at("write", batch.ranges)
                rows = [(*record, batch.group, batch.id) for record in frame if record[1] == partition]
                with connection:
                    connection.executemany(insert, rows)
        self._steps.at("written", batch.ranges)


def run(settings: Settings) -> int:
    """Run the pipeline until all is read that was there, and return the process's exit code."""
    steps = Steps(settings)
    pipeline = Pipeline(
        group=settings.group,
        store=settings.store,
        brokers=settings.brokers,
        topics=[settings.topic],
        max_records=settings.max_records,
        poll_interval_s=0.01,
        retry_timeout_s=settings.retry_timeout_s,
    )
    if settings.store.startswith("file:"):
        step_at_links(steps)
    pipeline.store = SteppedStore(cast("TransactionalStore", pipeline.store), steps)
    pipeline._reader = cast("Any", PlainReader(settings))
    sink = cast("Any", (SharedSink if settings.mode == "transaction" else OwnSink)(settings, steps))
    once = Guarantee.EXACTLY_ONCE
    guarantee = Guarantee(settings.mode) if settings.mode.startswith("at_") else once
    try:
        pipeline.run(cast("Any", None), sink=sink, guarantee=guarantee, until="caught_up")
    except Fenced:
        return FENCED
    except StoreUnavailable:
        return AWAY
    return 0


def main(settings: Settings, errors: str) -> int:
    """Run with what is printed appended to the file `errors`, and return the exit code."""
    out = os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(out, 1)
    os.dup2(out, 2)
    try:
        return run(settings)
    except BaseException:
        traceback.print_exc()
        raise
