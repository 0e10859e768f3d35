"""What the drivers read and write in one test, and the checker that counts every record of it."""

from __future__ import annotations

import json
import secrets
import sqlite3
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import psycopg
import pymysql

from chaos.children import Child, Children
from chaos.driver import CREATE, UNIQUE, Mode, Settings
from offsetkeeper.core.ledger import Ledger
from offsetkeeper.core.model import Entry
from offsetkeeper.core.offsets import OffsetRange, TopicPartition
from offsetkeeper.stores import open_store

SELECT = "select part, place, value, batch from results where group_id = "


class Place(NamedTuple):
    """Where a record is in the topic."""

    partition: int
    offset: int


class Step(NamedTuple):
    """A step at which a driver sent itself a signal, with the ranges it had in hand."""

    name: str
    places: frozenset[Place]


class Row(NamedTuple):
    """One row of the results."""

    place: Place
    value: str
    batch: str


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic with records, some of them of aborted transactions.

    Attributes:
        records: the value of each record that counts, by its place.
        ends: the end offset of each partition.
    """

    brokers: str
    name: str
    records: Mapping[Place, str]
    ends: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Scene:
    """One way to keep one guarantee, with the offsets in one store.

    Attributes:
        url: of the store, or "" for a SQLite file for each group. In the mode "transaction" the results are in it.
    """

    topic: Topic
    children: Children
    folder: Path
    mode: Mode
    url: str

    def new_group(self) -> str:
        """Return a new group, with empty tables for its results."""
        group = f"group-{secrets.token_hex(6)}"
        for file in (self._store_file(group), self._output(group)):
            with closing(sqlite3.connect(file)) as connection:
                connection.execute(CREATE)
                if self.mode == "idempotent":
                    connection.execute(UNIQUE)
        if self.url.startswith("postgresql:"):
            with psycopg.connect(self.url) as shared:
                shared.execute("select pg_advisory_xact_lock(1)")  # as threads of one test come here together
                shared.execute(CREATE)
        if self.url.startswith("mysql:"):
            with _mysql(self.url) as shared_too, shared_too.cursor() as cursor:
                cursor.execute(CREATE)
        return group

    def start(
        self, group: str, *, signal: int = 0, step: int = 0, only: str = "", retry_timeout_s: float = 60, url: str = ""
    ) -> Child:
        """Start a driver, which reaches the store by another URL where one is given; see `Settings` for the rest."""
        settings = Settings(
            brokers=self.topic.brokers,
            topic=self.topic.name,
            group=group,
            store=url or self.store(group),
            mode=self.mode,
            output=str(self._output(group)),
            log=str(self._log(group)),
            signal=signal,
            step=step,
            only=only,
            retry_timeout_s=retry_timeout_s,
            max_records=-(-len(self.topic.records) // 2),
        )
        return self.children.start(settings)

    def steps(self, group: str) -> list[Step]:
        """Return the steps at which the group's drivers sent themselves a signal."""
        if not self._log(group).exists():
            return []
        lines = [json.loads(line) for line in self._log(group).read_text("utf-8").splitlines()]
        return [Step(line["name"], _places(OffsetRange(*each) for each in line["ranges"])) for line in lines]

    def rows(self, group: str) -> list[Row]:
        """Return the results, read with the database's own client."""
        return [Row(Place(partition, offset), value, batch) for partition, offset, value, batch in self._results(group)]

    def ledger(self, group: str) -> tuple[Ledger, Sequence[Entry]]:
        """Return the group's ledger, loaded, and its whole history, oldest first."""
        with closing(open_store(self.store(group))) as store:
            ledger = Ledger(store, group)
            ledger.load()
            return ledger, ledger.history(1000)[::-1]

    def check(self, group: str, *, may_double: Iterable[str] = (), may_lose: Iterable[str] = ()) -> None:
        """Count every record: each must be there once, but for those in hand at a signal sent at a step named.

        Args:
            group: to check, of which a driver has read everything.
            may_double: names of steps whose records may be there twice.
            may_lose: names of steps whose records may be missing.
        """
        rows, steps = self.rows(group), self.steps(group)
        seen = Counter(row.place for row in rows)
        doubled = {place for place, count in seen.items() if count > 1}
        lost = self.topic.records.keys() - seen.keys()
        assert {(row.place, row.value) for row in rows} <= self.topic.records.items(), "foreign records"
        assert doubled <= _in_hand(steps, may_double), f"doubled after {steps}"
        assert lost <= _in_hand(steps, may_lose), f"lost after {steps}"
        self._check_ledger(group)
        if self.mode != "at_most_once":
            assert len({(row.place, row.batch) for row in rows}) == len(seen), "a batch was repeated with other ranges"

    def _check_ledger(self, group: str) -> None:
        """Check that the ledger is at the ends, free, and that its commits lead there without gap or overlap."""
        ledger, history = self.ledger(group)
        topic, ends = self.topic.name, self.topic.ends
        reached = dict.fromkeys(ends, 0)
        for entry in history:
            for each in entry.ranges if entry.event == "commit" else ():
                assert each.start == reached[each.partition], f"a gap or an overlap at {each}"
                reached[each.partition] = each.end
        assert reached == ends
        at = {tp: position.offset for tp, position in ledger.snapshot.positions.items()}
        assert at == {TopicPartition(topic, partition): end for partition, end in ends.items()}
        assert (ledger.snapshot.owner, ledger.snapshot.pending) == (None, None)
        assert [entry.version for entry in history] == list(range(1, len(history) + 1))

    def store(self, group: str) -> str:
        """Return the URL of the group's store."""
        return self.url or f"sqlite:///{self._store_file(group)}?timeout=0.5"

    def _results(self, group: str) -> Iterable[Any]:
        shared = self.mode == "transaction"
        if shared and self.url.startswith("postgresql:"):
            with psycopg.connect(self.url) as connection:
                return connection.execute(SELECT + "%s", [group]).fetchall()
        if shared and self.url.startswith("mysql:"):
            with _mysql(self.url) as mysql, mysql.cursor() as cursor:
                cursor.execute(SELECT + "%s", [group])
                return list(cursor.fetchall())
        file = self._store_file(group) if shared else self._output(group)
        with closing(sqlite3.connect(file)) as sqlite:
            return sqlite.execute(SELECT + "?", [group]).fetchall()

    def _store_file(self, group: str) -> Path:
        return self.folder / f"{group}.offsets.db"

    def _output(self, group: str) -> Path:
        return self.folder / f"{group}.output.db"

    def _log(self, group: str) -> Path:
        return self.folder / f"{group}.log"


def _mysql(url: str) -> pymysql.Connection[Any]:
    parts = urlsplit(url)
    return pymysql.connect(
        host=parts.hostname, port=parts.port or 0, user="root", database=parts.path[1:], autocommit=True
    )


def _places(ranges: Iterable[OffsetRange]) -> frozenset[Place]:
    return frozenset(Place(r.partition, offset) for r in ranges for offset in range(r.start, r.end))


def _in_hand(steps: Iterable[Step], names: Iterable[str]) -> set[Place]:
    return {place for step in steps if step.name in set(names) for place in step.places}
