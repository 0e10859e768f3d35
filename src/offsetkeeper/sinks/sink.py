"""The contract of a sink, which writes rows into an output. There are three kinds.

Joiner: the rows go into the ledger's own transaction. Lander: the output keeps a mark of its last batch, and changes
rows and mark in one step. Writer: it writes the rows, and the ledger is changed after it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable
from urllib.parse import quote

from offsetkeeper.core.batch import Batch, Output
from offsetkeeper.core.mark import OutputMark, lowered
from offsetkeeper.core.model import Guarantee, Landed
from offsetkeeper.core.store import Store
from offsetkeeper.core.topics import Topics

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True)
class Writer:
    """Writes rows separately from the ledger, which then records that this output has the batch.

    Attributes:
        write: writes the rows of a batch, and returns when they are durable. It raises SinkMismatch if the frame does
            not fit, so that another try would fail too; SinkError if nothing was written; and OutcomeUnknown if the
            reply to the commit was lost, so that the rows may be written.
    """

    write: Callable[[DataFrame, Batch], object]


@dataclass(frozen=True, slots=True)
class Joiner:
    """Joins the ledger's own transaction: rows and offsets are committed together or not at all.

    Attributes:
        stage: does the long part outside the transaction, and returns a function that does the rest on the
            transaction's connection. It raises SinkMismatch if the frame does not fit, so that another try would fail
            too, and SinkError if it may be tried again.
        mark: returns the mark of a key beside the rows, or None if there is none. It raises SinkError if the output
            could not be asked.
        follow: changes the mark to that of a batch, on the transaction's connection, behind the rows. It raises
            MarkAhead if the mark is of this batch or a later one: a run with another store has written it.
        marks: returns all marks of a group beside the rows, by the outputs' names: a run with another store may have
            another name for the output. It raises SinkError if the output could not be asked.
    """

    stage: Callable[[DataFrame, Batch], Callable[[Any], object]]
    mark: Callable[[MarkKey], OutputMark | None] = lambda _: None
    follow: Callable[[Any, MarkKey, OutputMark], object] = lambda *_: None
    marks: Callable[[str], Mapping[str, OutputMark]] = lambda _: {}


AT_ONCE = "set constraints all immediate"
"""In PostgreSQL, checks the constraints that are put off until the commit, in a transaction that is rolled back."""


class RolledBack(Exception):
    """Ends a transaction that is only tried."""


class MarkKey(NamedTuple):
    """The key of a mark: the consumer group, and the name of the output (empty if it is the only one)."""

    group: str
    output: str

    @property
    def path(self) -> str:
        """Return its name among names that are not ours, as in a table's properties; no other key has the same one."""
        return f"offsetkeeper/{quote(self.group, safe='')}/{quote(self.output, safe='')}"


class Seen(NamedTuple):
    """The mark of an output when it was read.

    Attributes:
        mark: mark of the group, or None if there is none.
        handle: a value that lets `land` find out whether the mark was changed since.
        target: identity of the target at that moment, such as a topic's id; empty if the sink knows none.
        key: whose mark this is; another key than the one that was asked for, where a target has one mark for all. None
            if it is of the one that was asked for.
    """

    mark: OutputMark | None
    handle: Any = None
    target: str = ""
    key: MarkKey | None = None


def lost_by_mark(landed: Landed, seen: Seen) -> str:
    """Return why rows that the ledger knows in an output are gone, by its mark alone; empty if they are there."""
    return lowered(landed, seen.mark)


def another_kind(landed: Landed) -> str:
    """Return why rows are not here: the ledger has the identity of an output of another kind."""
    return f"the rows are in an output of another kind, {landed.target}, which had this name"


def lost_by_target(landed: Landed, seen: Seen) -> str:
    """Return the same, where the target has an identity that it gets when it is made, and never changes."""
    if landed.target and landed.target != seen.target:
        return (
            "it was deleted and made again, or its name leads to another one now: the rows are in "
            f"{landed.target}, and {seen.target or 'nothing'} is there"
        )
    return lost_by_mark(landed, seen)


@dataclass(frozen=True, slots=True)
class Lander:
    """Lands the rows of a batch and the new mark in one step of the output; see `core.mark`.

    Attributes:
        stage: does the long part: writes rows where no reader sees them. Its result is passed to `land`. It raises
            SinkMismatch if the frame does not fit, so that another try would fail too, and SinkError if it may be tried
            again.
        seen: returns the mark of a key. It raises SinkError if the output could not be asked.
        land: makes the staged rows visible and changes the mark in one step. If the mark has changed since it was read,
            it raises MarkMoved and changes nothing. Without staged rows (None) it changes only the mark. It returns
            when everything is durable, and may return the identity that the target has then; None if it is that of
            `seen`. It raises SinkError if nothing was changed; and OutcomeUnknown if the reply was lost, so that
            everything may be changed, now or later.
        lost: returns why rows that the ledger knows in the output are gone, from the ledger's note and the output's
            answer; empty if they are there. The same of a batch of which only the mark says that it is there. It sends
            no request if all is well: it is called before each landing.
        late: whether the frame is computed in `land`, and not in `stage`. Then `land` gets a function too: it calls it
            when all rows are written, before the mark changes if it can. The function raises `ComputedAgain` if Spark
            has computed a part of the frame again.
        writes_to: the name of the target, where outputs of one name share a mark whatever they write to: then the mark
            also says in which target its batch is. The same for each way to write the name. Empty if each target has
            its own mark.
        rehearse: writes what `stage` returned, and takes it back: for an output whose `stage` does not show yet whether
            every row can be written. None if it does, or if nothing can be taken back.
        kept_s: returns for how many seconds the output keeps the mark of a group that writes nothing; then the mark may
            be missing. It may raise SinkError. None if the output keeps marks for ever.
    """

    stage: Callable[[DataFrame, Batch], object]
    seen: Callable[[MarkKey], Seen]
    land: Callable[..., str | None]
    lost: Callable[[Landed, Seen], str] = lost_by_mark
    rehearse: Callable[[MarkKey, Any], object] | None = None
    kept_s: Callable[[], float] | None = None
    late: bool = False
    writes_to: str = ""


@runtime_checkable
class Reading(Protocol):
    """A sink that asks what its pipeline reads, before it is prepared."""

    def for_reader_of(self, cluster: Any, topics: Topics) -> Sink:
        """Return this sink as one of a pipeline that reads these topics of a cluster."""
        ...


@runtime_checkable
class Sink(Protocol):
    """An output for rows.

    A sink may have an attribute `worker_modules`: names of the modules that Spark's workers import for it. A run checks
    them at its start. It may have an attribute `any_order`: true if it accepts rows in any order. And it may have an
    attribute `writes_to`: the name of its target, such as a table's, without a server and without secrets. With
    an attribute `place`, it may be renamed while a batch is pending: where it is, with the server and what else decides
    where its mark is, without secrets. With an attribute `mode`, previews say what becomes of rows that come again:
    "append" or "upsert".
    """

    def prepare(self, store: Store, guarantee: Guarantee) -> Writer | Joiner | Lander:
        """Find out, before anything is read, how rows are written with this store; check the guarantee.

        Raises:
            GuaranteeRefused: the guarantee cannot be kept; the message names an alternative.
            Refused: something is wrong with the output, such as a missing table.
            SinkError, StoreUnavailable: the output or the store could not be reached.
        """
        ...


def kind_and_target(sink: Sink) -> str:
    """Return what a sink writes to, such as "Table shop.orders"; only the kind if the sink does not tell more.

    It is the same on each server, because a redeploy may give a server another name.
    """
    return f"{type(sink).__name__} {getattr(sink, 'writes_to', '')}".rstrip()


def output_of(sink: Sink) -> Output:
    """Return what a sink writes to, for previews."""
    return Output(kind_and_target(sink), str(getattr(sink, "mode", "")))


def place_of(sink: Sink) -> str:
    """Return a digest of where a sink writes to; empty if the sink does not tell it.

    Two outputs with the same one have the same rows and marks: one of them is the other one, with another name.
    """
    place = str(getattr(sink, "place", ""))
    return hashlib.sha256(place.encode()).hexdigest()[:16] if place else ""
