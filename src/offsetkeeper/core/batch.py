"""A batch: exact ranges that are processed together, what they are made of, and the program that began them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import NamedTuple
from uuid import UUID

from offsetkeeper.core.html import html_table
from offsetkeeper.core.offsets import OffsetRange, Position, Positions, TopicPartition
from offsetkeeper.errors import SettingsError, listed

DEAD_LETTERS = "dead_letters"  # the name of the dead letters' output in each ledger
QUARANTINED = "quarantined"  # first word of the reason with which the history has commits of dead letters


class Program(NamedTuple):
    """What a program reads and writes. A batch keeps it of the program that began it: a group is for one program.

    Attributes:
        topics: the topics that it reads, sorted; of a pattern, those that it has found.
        outputs: kind and target of each output by its name, such as "Table shop.orders"; see
            `sinks.sink.kind_and_target`. Only the kind of those that do not tell their target.
        places: digest of the place of each output by its name, of those that tell it; see `sinks.sink.place_of`.
    """

    topics: tuple[str, ...]
    outputs: Mapping[str, str]
    places: Mapping[str, str] = MappingProxyType({})

    def as_dict(self) -> dict[str, object]:
        """Return it for JSON."""
        return {"topics": [*self.topics], "outputs": {**self.outputs}, "places": {**self.places}}

    def writes(self, *, letters: bool) -> set[str]:
        """Return kind and target of the dead letters, or of all other outputs."""
        return {each for name, each in self.outputs.items() if (name == DEAD_LETTERS) == letters}

    def old_names(self, began: Program) -> dict[str, str]:
        """Return the outputs that have another name than in the program that began a batch: by their name, the old one.

        The places tell it. An output has its name if it does not tell its place, or if another one writes there too.
        """
        old, new = began._by_place(), self._by_place()
        once = {place: names[0] for place, names in new.items() if len(names) == 1}
        return {once[place]: name for place, (name, *more) in old.items() if not more and once.get(place, name) != name}

    def unclear(self, began: Program) -> list[str]:
        """Return the outputs of a batch's program that may have another name here: several are in their place.

        Nothing tells which of these they are.
        """
        new, found = self._by_place(), []
        for place, names in began._by_place().items():
            here = new.get(place, [])
            if len(names) * len(here) > 1 and {*here} - {*names}:
                found += [name for name in names if name not in here]
        return found

    def widened(self, here: Program) -> Program:
        """Return this program with the outputs that a redeploy of it has beside those of this one."""
        renamed = here.old_names(self)
        added = here.outputs.keys() - renamed.keys() - self.outputs.keys() - {DEAD_LETTERS}
        return self._replace(
            outputs={**self.outputs, **{name: each for name, each in here.outputs.items() if name in added}},
            places={**self.places, **{name: each for name, each in here.places.items() if name in added}},
        )

    def _by_place(self) -> dict[tuple[str, str], list[str]]:
        """Return the names of outputs by target and place; not of those that do not tell it."""
        found: dict[tuple[str, str], list[str]] = {}
        for name, each in self.outputs.items():
            if name != DEAD_LETTERS and name in self.places:
                found.setdefault((each, self.places[name]), []).append(name)
        return found

    def __str__(self) -> str:
        writes = sorted(self.writes(letters=False)) + [f"dead letters to {each}" for each in self.writes(letters=True)]
        return f"reads {listed(self.topics, ', ')} and writes {listed(writes, ', ')}"


class Output(NamedTuple):
    """What a run writes to under one name.

    Attributes:
        target: kind and target, as in `Program.outputs`.
        mode: what becomes of rows that come again: "append" keeps them beside the old ones, "upsert" replaces those
            with the same key; empty if the output does not tell.
    """

    target: str
    mode: str = ""


NO_OUTPUTS: Mapping[str, Output] = MappingProxyType({})


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
        watermark_ms: the watermark with which such a query computes it, in milliseconds since 1970; None without one.
        moved: the partitions that resets have moved since one of them dropped it, sorted.
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
    watermark_ms: int | None = field(default=None, compare=False)
    moved: tuple[TopicPartition, ...] = ()

    @property
    def kind(self) -> Kind:
        """What the batch is made of, as far as the ledger shows."""
        if self.query is not None:
            return Kind.QUERY
        return Kind.DEAD_LETTERS if DEAD_LETTERS in {*self.lands_in, *self.written} else Kind.RECORDS

    def goes_into(self, output: str) -> bool:
        """Return whether the batch goes into an output of its program: the dead letters', or each of the others."""
        return (output == DEAD_LETTERS) == (self.kind is Kind.DEAD_LETTERS)

    def old_names(self, here: Program | None) -> dict[str, str]:
        """Return the outputs of a program that this batch has under another name; see `Program.old_names`.

        That of dead letters never changes.
        """
        began = self._renamable
        return here.old_names(began) if here and began else {}

    def unclear(self, here: Program | None) -> list[str]:
        """Return the outputs of this batch that a program may have under another name; see `Program.unclear`."""
        began = self._renamable
        return here.unclear(began) if here and began else []

    @property
    def _renamable(self) -> Program | None:
        """The program that began the batch, if the outputs that have it may get other names."""
        return None if self.kind is Kind.DEAD_LETTERS else self.program

    @property
    def id(self) -> str:
        """`group/token/sequence`: the same for each retry of the batch, and never the same for another batch.

        A pending batch keeps its id when a newer run finishes it. If rows and offsets are one transaction, a dropped
        batch leaves nothing behind, and the same run may give its id to the next batch.
        """
        return batch_id(self.group, self.token, self.sequence)

    @property
    def size(self) -> int:
        """Number of offsets, the upper bound of the number of records."""
        return sum(r.size for r in self.ranges)

    @property
    def partitions(self) -> set[TopicPartition]:
        """Its partitions."""
        return {r.topic_partition for r in self.ranges}

    @property
    def written_unmarked(self) -> tuple[str, ...]:
        """The outputs that an earlier try has written, and that keep no mark."""
        return tuple(name for name in self.written if name not in self.lands_in)

    @property
    def unmoved(self) -> tuple[OffsetRange, ...]:
        """The ranges of a dropped batch that count as done if all outputs have it; none in a batch of a query."""
        return () if self.query is not None else tuple(r for r in self.ranges if r.topic_partition not in self.moved)

    def counts(self, positions: Positions) -> tuple[OffsetRange, ...]:
        """Return the ranges of a dropped batch that count as done if all outputs have it.

        No reset has moved their partitions since, and the positions are at their start.
        """
        reached, found = {**positions}, []
        for r in self.unmoved:
            at = reached.get(r.topic_partition)
            if at is not None and at.offset == r.start:
                reached[r.topic_partition] = at._replace(offset=r.end)
                found.append(r)
        return tuple(found)

    def lines(self) -> str:
        """The ranges as text, one line `topic partition start end` each."""
        return "\n".join(str(r) for r in self.ranges)

    def _repr_html_(self) -> str:
        columns = ("topic", "partition", "start", "end", "offsets")
        return html_table(f"batch {self.id}, {self.size} offsets", columns, [(*r, r.size) for r in self.ranges])


def batch_id(group: str, token: str, sequence: int) -> str:
    """Return the id of a batch; see `Batch.id`."""
    return f"{group}/{token}/{sequence}"


def after(batch: Batch, positions: Positions) -> dict[TopicPartition, Position]:
    """Return the positions after a commit of the batch."""
    ends = {r.topic_partition: r.end for r in batch.ranges}
    return {**positions, **{tp: positions.get(tp, Position(0))._replace(offset=end) for tp, end in ends.items()}}


def counted_after(batch: Batch, queries: Queries) -> Queries:
    """Return the numbers of the next batches of queries after a commit of the batch."""
    return queries if batch.query is None else {**queries, batch.query.query: batch.query.number + 1}


def check_query(query_id: str) -> str:
    """Return the id of a streaming query in the form in which a ledger keeps it.

    Raises:
        SettingsError: the id is not a UUID, as ids of queries are.
    """
    try:
        return str(UUID(query_id))
    except ValueError:
        raise SettingsError(f"{query_id!r} is not the id of a streaming query: such an id is a UUID") from None


def check_output(name: str) -> str:
    """Return `name` if it can be the name of one of several outputs.

    Raises:
        SettingsError: the name is empty, longer than 100 characters, or has a character that cannot be printed.
    """
    if not isinstance(name, str) or not name.isprintable() or not 0 < len(name) <= 100:  # noqa: PLR2004 - it is stored
        raise SettingsError(f"{name!r} is not a name for an output: use 1 to 100 printable characters")
    return name
