"""The nouns: partitions, ranges, positions, batches, and the snapshot of a group's ledger.

Offsets are Kafka's: non-negative integers, one per record, with holes after compaction and at transaction markers.
A position is the next offset to read. A range is half-open: `start` is in it, `end` is not.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import NamedTuple
from uuid import UUID

from offsetkeeper.core.html import html_table
from offsetkeeper.errors import SettingsError

MAX_OFFSET = 2**63 - 1
MAX_PARTITION = 2**31 - 1
DEAD_LETTERS = "dead_letters"  # the name of that output in each ledger
_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_SEPARATORS = frozenset("/:")
_QUERY = "spark-query-"
_COUNT = re.compile(rf"{_QUERY}[0-9a-f]{{8}}(-[0-9a-f]{{4}}){{3}}-[0-9a-f]{{12}}")


class Guarantee(StrEnum):
    """How often the result of a record may be in the output."""

    AT_MOST_ONCE = "at_most_once"
    """Offsets are stored before the output: a crash may lose a batch, never double it."""
    AT_LEAST_ONCE = "at_least_once"
    """Offsets are stored after the output: a crash may double a batch, never lose it."""
    EXACTLY_ONCE = "exactly_once"
    """Output and offsets are one transaction, or the output is idempotent and the offsets follow it."""


class TopicPartition(NamedTuple):
    """One partition of one topic. Sorts by topic, then by partition number."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic} {self.partition}"


class OffsetRange(NamedTuple):
    """The records of one partition from offset `start` up to, not including, offset `end`."""

    topic: str
    partition: int
    start: int
    end: int

    @property
    def topic_partition(self) -> TopicPartition:
        """The partition the range lies in."""
        return TopicPartition(self.topic, self.partition)

    @property
    def size(self) -> int:
        """Number of offsets, the upper bound of the number of records."""
        return self.end - self.start

    def __str__(self) -> str:
        return f"{self.topic} {self.partition} {self.start} {self.end}"


class Position(NamedTuple):
    """Where reading of one partition goes on.

    Attributes:
        offset: the next offset to read.
        topic_id: Kafka's id of the topic the offset belongs to, or None where it is not known.
            It changes when a topic is deleted and made again.
    """

    offset: int
    topic_id: str | None = None


class Owner(NamedTuple):
    """Who may commit for a group.

    Attributes:
        id: random, made anew by each acquire; the token of the batches this owner begins.
        epoch: one more than the owner before; the newer fences the older.
        name: host and process, for people.
    """

    id: str
    epoch: int
    name: str = ""


Positions = Mapping[TopicPartition, Position]
NO_POSITIONS: Positions = MappingProxyType({})
_NOWHERE: Mapping[str, int] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Batch:
    """Exact ranges, processed as one, and the identity under which they are.

    Attributes:
        group: the consumer group.
        token: of the owner who began it: random, made by each acquire, so that a replay, a restored backup or a ledger
            made anew never repeats an identity.
        sequence: one more for each batch of the group, also through rewinds; never used again in one ledger.
        ranges: one for each partition (or several where one was split), sorted, none empty.
        retry: whether an earlier run began this very batch and did not commit it.
        written: names of those of several outputs that an earlier try has written.
        lands_in: names of the outputs that keep a mark of their own, and may have the batch; see `core.mark`.
    """

    group: str
    token: str
    sequence: int
    ranges: tuple[OffsetRange, ...]
    retry: bool = field(default=False, compare=False)
    written: tuple[str, ...] = ()
    lands_in: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        """`group/token/sequence`, the same for each retry of the batch, and never for another one.

        A batch that is pending keeps it when a newer run finishes it. Where rows and offsets are one transaction, a
        batch that is dropped leaves nothing behind, and the same run may give its id to the next one.
        """
        return f"{self.group}/{self.token}/{self.sequence}"

    @property
    def size(self) -> int:
        """Number of offsets, the upper bound of the number of records."""
        return sum(r.size for r in self.ranges)

    def lines(self) -> str:
        """The ranges as text, one line `topic partition start end` each."""
        return "\n".join(str(r) for r in self.ranges)

    def _repr_html_(self) -> str:
        columns = ("topic", "partition", "start", "end", "offsets")
        return html_table(f"batch {self.id}, {self.size} offsets", columns, [(*r, r.size) for r in self.ranges])


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A group's ledger at one version.

    Attributes:
        group: the consumer group.
        version: number of changes ever made; 0 means the store knows no ledger of the group.
        owner: who may commit, or None where nobody holds the group.
        epoch: the highest epoch ever given to an owner.
        generation: one more with every rewind, for people; it is not the generation of Kafka's consumer groups.
        sequence: of the last batch begun or committed.
        positions: where reading of each partition goes on.
        pending: the batch that was begun and neither committed nor abandoned.
        change_id: random id of the change that made this version; settles lost replies.
        landed: for each output that keeps a mark, the sequence of the last batch committed into it.
        unsettled: a batch that was pending when positions were reset: whether its outputs have it is asked by the next
            run, before it begins a batch.
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
    landed: Mapping[str, int] = field(default_factory=lambda: _NOWHERE)
    unsettled: Batch | None = None


@dataclass(frozen=True, slots=True)
class Move:
    """One partition's step in a change: `before` is None where no position was stored."""

    before: Position | None
    after: Position


Moves = Mapping[TopicPartition, Move]


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of a group's history: the change that made `version`.

    Attributes:
        version: of the ledger after the change.
        event: acquire, release, place, begin, mark, commit, abandon, settle, rewind or adopt.
        change_id: random, unique to the change.
        at_ms: milliseconds since 1970, by the clock of the process that made the change.
        actor: host and process that made it.
        reason: why, in words; may be empty.
        epoch, generation, sequence: of the ledger after the change.
        token: of the batch that was begun, marked, committed, abandoned or settled; its id is `group/token/sequence`.
        ranges: of the batch that was begun, committed, abandoned or settled.
        moves: positions set by place and rewind. A commit's follow from its ranges and are left out.
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


@dataclass(frozen=True, slots=True)
class Change:
    """One atomic step of a ledger, from version `before.version` to `after.version`, always one more.

    Attributes:
        before, after: the ledger on both sides.
        moves: the positions that differ, with both sides: a store checks the old and writes the new.
        entry: the history line, written in the same step.
    """

    before: Snapshot
    after: Snapshot
    moves: Moves
    entry: Entry

    def builds_on(self, found: Snapshot) -> bool:
        """Return whether a ledger is the one that this changes: versions alone repeat after a backup is restored."""
        return (found.version, found.change_id) == (self.before.version, self.before.change_id)


def query_topic(query_id: str) -> str:
    """Return the name of the topic, which is none, under which a ledger counts the batches of a streaming query.

    Raises:
        SettingsError: the id is no UUID, as those of queries are.
    """
    try:
        return f"{_QUERY}{UUID(query_id)}"
    except ValueError:
        raise SettingsError(f"{query_id!r} is no id of a streaming query: those are UUIDs") from None


def in_kafka(topic: str) -> bool:
    """Whether it is a topic of Kafka, and not one under which a ledger counts a query's batches."""
    return not _COUNT.fullmatch(topic)


def kafka_positions(positions: Positions) -> dict[TopicPartition, Position]:
    """Return those of partitions of Kafka."""
    return {tp: at for tp, at in positions.items() if in_kafka(tp.topic)}


def kafka_topics(positions: Positions) -> set[str]:
    """Return the names of the topics of Kafka among them."""
    return {tp.topic for tp in kafka_positions(positions)}


def query_batches(positions: Positions) -> dict[str, int]:
    """Return by the ids of streaming queries with state the batch that each comes to next."""
    return {tp.topic.removeprefix(_QUERY): at.offset for tp, at in positions.items() if not in_kafka(tp.topic)}


def by_topic(offsets: Mapping[TopicPartition, int]) -> dict[str, dict[str, int]]:
    """Return offsets as Spark's Kafka source writes them, `{"orders": {"0": 15}}`, sorted by topic and partition."""
    found: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in sorted(offsets.items()):
        found.setdefault(topic, {})[str(partition)] = offset
    return found


def check_topic(name: str) -> str:
    """Return `name` if Kafka allows it as a topic's name.

    Raises:
        SettingsError: it does not.
    """
    if not isinstance(name, str) or not _TOPIC.fullmatch(name) or name in {".", ".."}:
        raise SettingsError(f"{name!r} is no topic name: use 1 to 249 of the characters a-z A-Z 0-9 . _ -")
    return name


def check_group(name: str) -> str:
    """Return `name` if it can name a consumer group in every store, as a key, a column, a file and a path.

    Raises:
        SettingsError: it is empty, "." or "..", longer than 249 bytes in UTF-8, begins or ends with a space, or has a
            slash, a colon or a character that cannot be printed.
    """
    fits = isinstance(name, str) and name.isprintable() and name == name.strip() and name not in {"", ".", ".."}
    if not fits or not _SEPARATORS.isdisjoint(name) or len(name.encode()) > 249:  # noqa: PLR2004 - as for topics
        raise SettingsError(
            f"{name!r} is no group name: use 1 to 249 printable characters (bytes, in UTF-8) without slash and colon, "
            "no space at either end, and not '.' or '..'"
        )
    return name


def is_dead_letters(batch: Batch) -> bool:
    """Whether a batch goes into the dead letters, as far as the ledger can tell, and not into the other outputs."""
    return DEAD_LETTERS in {*batch.lands_in, *batch.written}


def check_output(name: str) -> str:
    """Return `name` if it can name one of several outputs.

    Raises:
        SettingsError: it is empty, longer than 100 characters, or has one that cannot be printed.
    """
    if not isinstance(name, str) or not name.isprintable() or not 0 < len(name) <= 100:  # noqa: PLR2004 - it is stored
        raise SettingsError(f"{name!r} is no name of an output: use 1 to 100 printable characters")
    return name


def check_partition(tp: TopicPartition) -> TopicPartition:
    """Return `tp` if its topic has a name Kafka allows, and its partition a number from 0 to 2**31 - 1.

    Raises:
        SettingsError: it has not.
    """
    check_topic(tp.topic)
    if type(tp.partition) is not int or not 0 <= tp.partition <= MAX_PARTITION:
        raise SettingsError(f"{tp.partition!r} is no partition of {tp.topic}: use an integer from 0 to 2**31 - 1")
    return tp


def check_offset(offset: int) -> int:
    """Return `offset` if it is one: an integer from 0 to 2**63 - 1.

    Raises:
        SettingsError: it is not.
    """
    if not isinstance(offset, int) or isinstance(offset, bool) or not 0 <= offset <= MAX_OFFSET:
        raise SettingsError(f"{offset!r} is no offset: use an integer from 0 to 2**63 - 1")
    return offset
