"""A group's ledger as a value: its owner, its snapshot at one version, the lines of its history, and its changes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import NamedTuple

from offsetkeeper.core.batch import NO_OUTPUTS, NO_QUERIES, QUARANTINED, Batch, Output, Queries
from offsetkeeper.core.offsets import NO_POSITIONS, OffsetRange, Position, Positions, TopicPartition
from offsetkeeper.errors import SettingsError

MAX_SEQUENCE = 2**63 - 1  # that a mark can hold in each output
MAX_ADOPTED = 9 * 10**18  # 2 * 10**17 batches may follow
_IMPOSSIBLE = re.compile(r"[\0\ud800-\udfff]")  # the first ends a text in C, the others have no UTF-8


class Guarantee(StrEnum):
    """How often the output may have the result of a record."""

    AT_MOST_ONCE = "at_most_once"
    """Offsets are stored before the output: a crash may lose a batch, but never double it."""
    AT_LEAST_ONCE = "at_least_once"
    """Offsets are stored after the output: a crash may double a batch, but never lose it."""
    EXACTLY_ONCE = "exactly_once"
    """Output and offsets are one transaction; or the output is idempotent, and the offsets follow it."""


class Having(StrEnum):
    """Which outputs have a batch that was dropped, or a part of it."""

    NONE = ""
    """None, as far as it is known."""
    MAYBE = "maybe"
    """An output may have it that cannot be asked, as it keeps no mark or is of another program."""
    SOME = "some"
    ALL = "all"


def unasked(batch: Batch) -> Having:
    """Return which outputs have a batch if none of them can be asked."""
    return Having.SOME if batch.written else Having.MAYBE


class Owner(NamedTuple):
    """The run that may commit for a group.

    Attributes:
        id: random id, new for each acquire; it is the token of the batches that this owner begins.
        epoch: one more than the owner before; the owner with the higher epoch fences the other.
        name: host and process, for people.
    """

    id: str
    epoch: int
    name: str = ""


class Landed(NamedTuple):
    """The last batch in an output that keeps a mark, as the ledger knows it.

    Attributes:
        sequence: sequence of the last batch that was committed into the output, made void there, or adopted.
        target: identity of the target with that batch, in the words of its sink: a topic's id, a table's version.
            Empty if it is unknown.
    """

    sequence: int = 0
    target: str = ""


_NOWHERE: Mapping[str, Landed] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A group's ledger at one version.

    Attributes:
        group: the consumer group.
        version: number of changes so far; 0 means that the store has no ledger of the group.
        owner: the run that may commit, or None if no run holds the group.
        epoch: the highest epoch that an owner has had.
        generation: one more with every rewind, for people; it is not the generation of Kafka's consumer groups.
        sequence: sequence of the last batch that was begun or committed.
        positions: the next offset to read of each partition.
        pending: the batch that was begun and neither committed nor abandoned.
        change_id: random id of the change that made this version; it shows the outcome after a lost reply.
        landed: for each output that keeps a mark, the last batch in it.
        unsettled: a batch that was pending when positions were reset. Before it begins a batch, the next run asks the
            outputs whether they have it.
        missing: partitions whose position the ledger had, and the store has no more: another program deleted it.
        given: digests of the offsets that the user gave to earlier starts, the newest last; see `rules.MAX_GIVEN`.
        queries: the number of the next batch of each streaming query with state, by the query's id.
        watermark_ms: the watermark of the last batch, if that is of a query with state, and no position has moved
            since: the state of that query can be built again from there. Milliseconds since 1970; None if not.
        outputs: what the last run that took the group writes to, by the outputs' names.
        partly: topics of which that run reads chosen partitions alone; sorted.
        forgotten: rows of partitions that `forget` took out of the ledger. They stay for other programs, and count
            again if another program moves them. A position without cluster and epoch.
        format: the older format in which stores write the ledger, see `core.older_format`; 0 for that of this release.
    """

    group: str
    version: int = 0
    owner: Owner | None = None
    epoch: int = 0
    generation: int = 0
    sequence: int = 0
    positions: Positions = field(default_factory=lambda: NO_POSITIONS)
    pending: Batch | None = None
    change_id: str = ""
    landed: Mapping[str, Landed] = field(default_factory=lambda: _NOWHERE)
    unsettled: Batch | None = None
    missing: frozenset[TopicPartition] = frozenset()
    given: tuple[str, ...] = ()
    queries: Queries = field(default_factory=lambda: NO_QUERIES)
    watermark_ms: int | None = None
    outputs: Mapping[str, Output] = field(default_factory=lambda: NO_OUTPUTS)
    partly: tuple[str, ...] = ()
    forgotten: Positions = field(default_factory=lambda: NO_POSITIONS)
    format: int = field(default=0, compare=False)

    @property
    def rows(self) -> Positions:
        """What a store keeps as rows: the positions, and those that were forgotten."""
        return {**self.forgotten, **self.positions} if self.forgotten else self.positions

    def landed_in(self, output: str) -> Landed:
        """Return the last batch in an output; sequence 0 if the ledger knows none."""
        return self.landed.get(output, Landed())


class Move(NamedTuple):
    """One partition's step in a change; `before` is None if no position was stored."""

    before: Position | None
    after: Position


class Count(NamedTuple):
    """One query's step in a change: numbers of its next batch; `before` is None if the query was not counted."""

    before: int | None
    after: int


Moves = Mapping[TopicPartition, Move]
Counts = Mapping[str, Count]
Cuts = Mapping[TopicPartition, int]
Forgot = Mapping[TopicPartition, Position | None]
NO_CUTS: Cuts = MappingProxyType({})


RUN, START = "run", "start"
"""Reasons of an acquire: a direct run, or a streaming query. Earlier releases wrote "start" for both."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of a group's history: the change that made `version`.

    Attributes:
        version: version of the ledger after the change.
        event: acquire, release, place, begin, mark, wait, commit, abandon, settle, rewind, forget, adopt or copy.
        change_id: random id, unique to the change.
        at_ms: milliseconds since 1970, by the clock of the process that made the change.
        actor: host and process that made it.
        reason: why the change was made; may be empty.
        epoch, generation, sequence: values of the ledger after the change.
        token: token of the batch that was begun, marked, committed, abandoned or settled, or that a rewind or an
            adoption dropped and no start can settle; its id is `group/token/sequence`.
        ranges: ranges of that batch, but for a mark.
        moves: positions set by place and rewind, and by a settle. Those of a commit follow from its ranges and are left
            out.
        counts: the steps of queries with state, by the query's id, also those of a commit.
        cuts: of partitions that move, and whose log was cut since it was read: the offset from which on it has other
            records, see `Bounds.others_from`. -1 is as much as the new position.
        having: which outputs have the batch that was abandoned, settled, dropped by a rewind or an adoption, or taken
            over by another program. Entries of older releases do not say it.
        forgot: the positions that were taken out of the ledger; None if the store had lost the position.
        mirror: whether the cluster that positions move to is a mirror, with each record at the same offset.
    """

    version: int
    event: str
    change_id: str
    at_ms: int
    actor: str
    reason: str = ""
    epoch: int = 0
    generation: int = 0
    sequence: int = 0
    token: str = ""
    ranges: tuple[OffsetRange, ...] = ()
    moves: Moves = field(default_factory=dict)
    counts: Counts = field(default_factory=dict)
    cuts: Cuts = field(default_factory=dict)
    having: Having = Having.NONE
    forgot: Forgot = field(default_factory=dict)
    mirror: bool = False

    @property
    def partitions(self) -> int:
        """The most partitions that it may name: a measure of its memory."""
        return len(self.ranges) + len(self.moves) + len(self.cuts) + len(self.forgot)

    @property
    def is_of_letters(self) -> bool:
        """Whether its batch went into the dead letters alone: its record failed."""
        return self.reason.startswith(QUARANTINED)


@dataclass(frozen=True, slots=True)
class Change:
    """One atomic step of a ledger, from version `before.version` to `after.version`, which is one more.

    Attributes:
        before, after: the ledger before and after the step.
        moves: the rows that differ, before and after: a store checks the old and writes the new ones. `before` is also
            the row of a forgotten position, which `entry.moves` does not have.
        entry: the history line, written in the same step.
    """

    before: Snapshot
    after: Snapshot
    moves: Moves
    entry: Entry

    def builds_on(self, found: Snapshot) -> bool:
        """Return whether this change was made for the ledger `found`. After a restored backup, versions repeat."""
        return (found.version, found.change_id) == (self.before.version, self.before.change_id)


def latest(first: Snapshot, second: Snapshot) -> Snapshot:
    """Return the second look at a ledger if only runs that went on can lie between the two, else the first.

    A start looks at outputs and checkpoints between two looks at the ledger. What these lack is judged by the first
    look: they had it before. What they have too much is judged by the second: a run that lives may have written it.
    """
    went_on = second.generation == first.generation and second.version >= first.version
    kept = second.sequence >= first.sequence and second.epoch >= first.epoch
    return second if went_on and kept else first


LONGEST_GROUP = 249
"""The most bytes in UTF-8 of the name of a consumer group, so that each store has room for it."""


def check_group(name: str) -> str:
    """Return `name` if it can name a consumer group: any text that Kafka takes, of a length that each store holds.

    Raises:
        SettingsError: the name is empty, longer than 249 bytes in UTF-8, or has a NUL or half a character.
    """
    size = len(name.encode("utf-8", "replace")) if isinstance(name, str) else 0
    if not 0 < size <= LONGEST_GROUP or _IMPOSSIBLE.search(name):
        raise SettingsError(f"{name!r} is not a group name: use 1 to 249 bytes of UTF-8 without NUL")
    return name


def check_sequence(sequence: int) -> int:
    """Return `sequence` if it can be that of a mark, with room for the batches that follow: 0 to 9 * 10**18.

    Raises:
        SettingsError: it is not such an integer.
    """
    if type(sequence) is not int or not 0 <= sequence <= MAX_ADOPTED:
        raise SettingsError(
            f"{sequence!r} is not the sequence of a batch: use an integer from 0 to {MAX_ADOPTED}, as the refused "
            "start prints it"
        )
    return sequence
