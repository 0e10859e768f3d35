"""The data types: partitions, ranges, positions, batches, and the snapshot of a group's ledger.

Offsets are those of Kafka: integers from 0, one per record, with holes after compaction and at transaction markers.
A position is the next offset to read. A range is half-open: it includes `start`, but not `end`.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import NamedTuple
from uuid import UUID

from offsetkeeper.core.html import html_table
from offsetkeeper.errors import SettingsError, listed

MAX_OFFSET = 2**63 - 1
MAX_SEQUENCE = 2**63 - 1  # that a mark can hold in each output
MAX_ADOPTED = 9 * 10**18  # 2 * 10**17 batches may follow
MAX_PARTITION = 2**31 - 1
DEAD_LETTERS = "dead_letters"  # the name of the dead letters' output in each ledger
_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_SEPARATORS = frozenset("/:")


class Guarantee(StrEnum):
    """How often the output may have the result of a record."""

    AT_MOST_ONCE = "at_most_once"
    """Offsets are stored before the output: a crash may lose a batch, but never double it."""
    AT_LEAST_ONCE = "at_least_once"
    """Offsets are stored after the output: a crash may double a batch, but never lose it."""
    EXACTLY_ONCE = "exactly_once"
    """Output and offsets are one transaction; or the output is idempotent, and the offsets follow it."""


class TopicPartition(NamedTuple):
    """One partition of one topic. Sorts by topic, then by partition number."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic} {self.partition}"


class OffsetRange(NamedTuple):
    """The records of one partition from offset `start` up to, but not including, offset `end`."""

    topic: str
    partition: int
    start: int
    end: int

    @property
    def topic_partition(self) -> TopicPartition:
        """The partition of the range."""
        return TopicPartition(self.topic, self.partition)

    @property
    def size(self) -> int:
        """Number of offsets, an upper bound of the number of records."""
        return self.end - self.start

    def __str__(self) -> str:
        return f"{self.topic} {self.partition} {self.start} {self.end}"


class Position(NamedTuple):
    """Where reading of one partition resumes.

    Attributes:
        offset: the next offset to read.
        topic_id: Kafka's id of the topic that the offset belongs to, or None if unknown.
            A topic that is deleted and created again gets a new id.
        cluster_id: Kafka's id of the cluster that the topic is in, or None if unknown.
        leader_epoch: the partition's leader epoch when Kafka last held all records before the offset, or None if
            unknown. An election of a replica that lacks records is noticed by it.
    """

    offset: int
    topic_id: str | None = None
    cluster_id: str | None = None
    leader_epoch: int | None = None


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


Positions = Mapping[TopicPartition, Position]
NO_POSITIONS: Positions = MappingProxyType({})


class Landed(NamedTuple):
    """The last batch in an output that keeps a mark, as the ledger knows it.

    Attributes:
        sequence: sequence of the last batch that was committed into the output, made void there, or adopted.
        target: identity of the target with that batch, in the words of its sink: a topic's id, a table's version.
            Empty if it is unknown.
    """

    sequence: int = 0
    target: str = ""


class Program(NamedTuple):
    """What a program reads and writes. A batch keeps it of the program that began it: a group is for one program.

    Attributes:
        topics: the topics that it reads, sorted; of a pattern, those that it has found.
        outputs: kind and target of each output, sorted, such as "Table shop.orders"; see `sinks.sink.kind_and_target`.
            Only the kind of those that do not tell their target.
    """

    topics: tuple[str, ...]
    outputs: tuple[str, ...]

    @property
    def writes_anywhere(self) -> bool:
        """Whether an output does not tell its target, as a function does not."""
        return any(" " not in each for each in self.outputs)

    def __str__(self) -> str:
        return f"reads {listed(self.topics, ', ')} and writes {listed(self.outputs, ', ')}"


class QueryBatch(NamedTuple):
    """A batch of a streaming query with state: only the query's own checkpoint can run it again.

    Attributes:
        query: id of the query, a UUID, as its checkpoint has it.
        number: Spark's number of the batch, from 0.
    """

    query: str
    number: int

    def __str__(self) -> str:
        return f"batch {self.number} of query {self.query}"


class Kind(StrEnum):
    """What a batch is made of, and so who can process it."""

    RECORDS = "records"
    """Ranges of Kafka, which any program of the group can read again."""
    QUERY = "query"
    """A batch of a query with state; see `QueryBatch`."""
    DEAD_LETTERS = "dead letters"
    """Records that failed, on their way into the dead letters."""


Queries = Mapping[str, int]
NO_QUERIES: Queries = MappingProxyType({})
_NOWHERE: Mapping[str, Landed] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Batch:
    """Exact ranges that are processed together, and their id.

    Attributes:
        group: the consumer group.
        token: token of the owner that began the batch: random and new for each acquire, so that a replay, a restored
            backup or a ledger that is created again never repeats an id.
        sequence: one more for each batch of the group, also through rewinds; a ledger never uses one twice.
        ranges: one for each partition (or several if it was split), sorted, not empty. There are none in a batch of a
            query with state that has no new records.
        retry: whether an earlier run began this same batch and did not commit it.
        written: names of the outputs, if there are several, that an earlier try has written.
        lands_in: names of the outputs that keep their own mark and may have the batch; see `core.mark`.
        program: the program that began it; None if it is not begun, or a release that did not keep it began it.
        query: the number that a query with state gives it; None if it is of no such query.
    """

    group: str
    token: str
    sequence: int
    ranges: tuple[OffsetRange, ...]
    retry: bool = field(default=False, compare=False)
    written: tuple[str, ...] = ()
    lands_in: tuple[str, ...] = ()
    program: Program | None = field(default=None, compare=False)
    query: QueryBatch | None = None

    @property
    def kind(self) -> Kind:
        """What the batch is made of, as far as the ledger shows."""
        if self.query is not None:
            return Kind.QUERY
        return Kind.DEAD_LETTERS if DEAD_LETTERS in {*self.lands_in, *self.written} else Kind.RECORDS

    @property
    def id(self) -> str:
        """`group/token/sequence`: the same for each retry of the batch, and never the same for another batch.

        A pending batch keeps its id when a newer run finishes it. If rows and offsets are one transaction, a dropped
        batch leaves nothing behind, and the same run may give its id to the next batch.
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
        given: digest of the offsets that the user gave to an earlier start; empty if none.
        queries: the number of the next batch of each streaming query with state, by the query's id.
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
    given: str = ""
    queries: Queries = field(default_factory=lambda: NO_QUERIES)
    format: int = field(default=0, compare=False)

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


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of a group's history: the change that made `version`.

    Attributes:
        version: version of the ledger after the change.
        event: acquire, release, place, begin, mark, commit, abandon, settle, rewind or adopt.
        change_id: random id, unique to the change.
        at_ms: milliseconds since 1970, by the clock of the process that made the change.
        actor: host and process that made it.
        reason: why the change was made; may be empty.
        epoch, generation, sequence: values of the ledger after the change.
        token: token of the batch that was begun, marked, committed, abandoned or settled; its id is
            `group/token/sequence`.
        ranges: ranges of the batch that was begun, committed, abandoned or settled.
        moves: positions set by place and rewind. Those of a commit follow from its ranges and are left out.
        counts: the steps of queries with state, by the query's id, also those of a commit.
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


@dataclass(frozen=True, slots=True)
class Change:
    """One atomic step of a ledger, from version `before.version` to `after.version`, which is one more.

    Attributes:
        before, after: the ledger before and after the step.
        moves: the positions that differ, before and after: a store checks the old and writes the new ones.
        entry: the history line, written in the same step.
    """

    before: Snapshot
    after: Snapshot
    moves: Moves
    entry: Entry

    def builds_on(self, found: Snapshot) -> bool:
        """Return whether this change was made for the ledger `found`. After a restored backup, versions repeat."""
        return (found.version, found.change_id) == (self.before.version, self.before.change_id)


def topics_of(positions: Positions) -> set[str]:
    """Return the names of the topics that have positions."""
    return {tp.topic for tp in positions}


def latest(first: Snapshot, second: Snapshot) -> Snapshot:
    """Return the second look at a ledger if only runs that went on can lie between the two, else the first.

    A start looks at outputs and checkpoints between two looks at the ledger. What these lack is judged by the first
    look: they had it before. What they have too much is judged by the second: a run that lives may have written it.
    """
    went_on = second.generation == first.generation and second.version >= first.version
    kept = second.sequence >= first.sequence and second.epoch >= first.epoch
    return second if went_on and kept else first


def after(batch: Batch, positions: Positions) -> dict[TopicPartition, Position]:
    """Return the positions after a commit of the batch."""
    ends = {r.topic_partition: r.end for r in batch.ranges}
    return {**positions, **{tp: positions.get(tp, Position(0))._replace(offset=end) for tp, end in ends.items()}}


def counted_after(batch: Batch, queries: Queries) -> Queries:
    """Return the numbers of the next batches of queries after a commit of the batch."""
    return queries if batch.query is None else {**queries, batch.query.query: batch.query.number + 1}


def by_topic(offsets: Mapping[TopicPartition, int]) -> dict[str, dict[str, int]]:
    """Return offsets as Spark's Kafka source writes them, `{"orders": {"0": 15}}`, sorted by topic and partition."""
    found: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in sorted(offsets.items()):
        found.setdefault(topic, {})[str(partition)] = offset
    return found


def digest_of(offsets: Mapping[TopicPartition, int]) -> str:
    """Return a text that tells offsets given for a start from all others; empty if there are none."""
    text = json.dumps(by_topic(offsets)).encode()
    return hashlib.blake2b(text, digest_size=8).hexdigest() if offsets else ""


def check_topic(name: str) -> str:
    """Return `name` if Kafka allows it as a topic name.

    Raises:
        SettingsError: Kafka does not allow it.
    """
    if not isinstance(name, str) or not _TOPIC.fullmatch(name) or name in {".", ".."}:
        raise SettingsError(f"{name!r} is not a topic name: use 1 to 249 of the characters a-z A-Z 0-9 . _ -")
    return name


def check_query(query_id: str) -> str:
    """Return the id of a streaming query in the form in which a ledger keeps it.

    Raises:
        SettingsError: the id is not a UUID, as ids of queries are.
    """
    try:
        return str(UUID(query_id))
    except ValueError:
        raise SettingsError(f"{query_id!r} is not the id of a streaming query: such an id is a UUID") from None


def check_group(name: str) -> str:
    """Return `name` if it can name a consumer group in every store, as a key, a column, a file and a path.

    Raises:
        SettingsError: the name is empty, "." or "..", longer than 249 bytes in UTF-8, starts or ends with a space, or
            has a slash, a colon or a character that cannot be printed.
    """
    fits = isinstance(name, str) and name.isprintable() and name == name.strip() and name not in {"", ".", ".."}
    if not fits or not _SEPARATORS.isdisjoint(name) or len(name.encode()) > 249:  # noqa: PLR2004 - as for topics
        raise SettingsError(
            f"{name!r} is not a group name: use 1 to 249 printable characters (bytes in UTF-8) without slash and "
            "colon, no space at either end, and not '.' or '..'"
        )
    return name


def check_output(name: str) -> str:
    """Return `name` if it can be the name of one of several outputs.

    Raises:
        SettingsError: the name is empty, longer than 100 characters, or has a character that cannot be printed.
    """
    if not isinstance(name, str) or not name.isprintable() or not 0 < len(name) <= 100:  # noqa: PLR2004 - it is stored
        raise SettingsError(f"{name!r} is not a name for an output: use 1 to 100 printable characters")
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


def check_partition(tp: TopicPartition) -> TopicPartition:
    """Return `tp` if Kafka allows the topic's name, and the partition is a number from 0 to 2**31 - 1.

    Raises:
        SettingsError: the name or the number is not valid.
    """
    check_topic(tp.topic)
    if type(tp.partition) is not int or not 0 <= tp.partition <= MAX_PARTITION:
        raise SettingsError(f"{tp.partition!r} is not a partition of {tp.topic}: use an integer from 0 to 2**31 - 1")
    return tp


def check_offset(offset: int) -> int:
    """Return `offset` if it is an integer from 0 to 2**63 - 1.

    Raises:
        SettingsError: it is not such an integer.
    """
    if not isinstance(offset, int) or isinstance(offset, bool) or not 0 <= offset <= MAX_OFFSET:
        raise SettingsError(f"{offset!r} is not an offset: use an integer from 0 to 2**63 - 1")
    return offset
