"""Counts each record of Kafka in each output: with the book of the swarm. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from offsetkeeper.core.model import Snapshot
from swarm.book import Batch, Book, Finding
from swarm.records import MANY, Program, Record, Row, Where


class Message(NamedTuple):
    """A record as Kafka has it. Its time tells its number."""

    topic: str
    partition: int
    offset: int
    time_ms: int
    key: str
    value: str


def open_book(now: Snapshot, program: Program, keeps: Mapping[str, str], messages: Iterable[Message]) -> Book:
    """Return the book of a pipeline that was disturbed.

    Args:
        now: its ledger, with a position of each partition.
        program: what makes rows of records.
        keeps: what each output keeps.
        messages: all that Kafka has of the topic.
    """
    [topic_id] = {str(at.topic_id) for at in now.positions.values()}
    book = Book(programs={program.made: program}, disturbed=True)
    book.reached = {(tp.topic, topic_id, tp.partition): at.offset for tp, at in now.positions.items()}
    if now.pending is not None:
        ranges = now.pending.ranges
        places = [Where(r.topic, topic_id, r.partition, offset) for r in ranges for offset in range(r.start, r.end)]
        book.pending = Batch(now.pending.id, frozenset(places))
    for output, guarantee in keeps.items():
        book.open(output, guarantee)
    for each in messages:
        where = Where(each.topic, topic_id, each.partition, each.offset)
        number = each.time_ms % MANY
        if number in book.records:
            raise AssertionError(f"Kafka has record {number} twice: {where} and {book.records[number].where}")
        book.add(Record(where, number, each.key, each.value))
    return book


@dataclass
class Verdict:
    """What was counted.

    Attributes:
        records, rows: how many Kafka has, and how many rows there are, over all outputs.
        lost, doubled: records that are missing in an output, and deliveries of a record that are too many.
        wrong: records of a batch that are not as Kafka has them.
        findings: the same in words.
    """

    records: int = 0
    rows: int = 0
    lost: int = 0
    doubled: int = 0
    wrong: int = 0
    findings: list[Finding] = field(default_factory=list)

    def count(self, book: Book, output: str, rows: Iterable[Row]) -> list[Finding]:
        """Count the rows of an output, and return what is wrong with them."""
        rows = list(rows)
        findings, found = book.judge(output, rows), book.deliveries(output, rows)
        before = self.lost + self.doubled + self.wrong
        for record in book.records.values():
            low, high = book.expected(output, record.where)
            self.lost += max(0, low - found[record.where])
            self.doubled += max(0, found[record.where] - high)
        self.wrong += sum(each.kind == "changed" for each in findings)
        if bool(findings) is not (self.lost + self.doubled + self.wrong > before):
            raise AssertionError(f"the counts do not say what the book finds in {output}: {findings}")
        self.records += len(book.records)
        self.rows += len(rows)
        self.findings += findings
        return findings


def recoveries(over: Iterable[tuple[str, float]], batches: Sequence[Sequence[float]]) -> dict[str, list[float]]:
    """Return by kind of act the seconds until each pipeline had committed another batch, whatever came meanwhile.

    Args:
        over: kinds of acts, and when each was over.
        batches: when each pipeline has committed its batches, rising. An act after which one committed none is left
            out.
    """
    found: dict[str, list[float]] = {}
    for what, at in over:
        nexts = [next((each for each in those if each > at), None) for those in batches]
        known = [each for each in nexts if each is not None]
        if len(known) == len(nexts):
            found.setdefault(what, []).append(max(known) - at)
    return found


def summary(seconds: Mapping[str, Sequence[float]]) -> dict[str, dict[str, float]]:
    """Return the number of acts of each kind, and median and longest of their seconds; `all` for all of them."""
    every = {**seconds, "all": [each for those in seconds.values() for each in those]}
    return {
        what: {"acts": len(those), "median": round(statistics.median(those), 1), "max": round(max(those), 1)}
        for what, those in sorted(every.items())
        if those
    }
