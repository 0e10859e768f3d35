"""What a sink is: a place that rows go to. There are three ways.

Joiner: the rows go into the ledger's own transaction. Lander: the output keeps a mark of the last batch it has, and
changes rows and mark in one step. Writer: it writes, and the ledger is told after it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

from offsetkeeper.core.mark import OutputMark
from offsetkeeper.core.model import Batch, Guarantee
from offsetkeeper.core.store import Store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True)
class Writer:
    """Writes rows apart from the ledger, which then marks that this output has the batch.

    Attributes:
        write: writes the rows of a batch, and returns when they are durable. It raises SinkMismatch where the frame
            does not fit, so that another try is no use; SinkError where nothing was written; and OutcomeUnknown where
            the reply to the commit was lost, so that the rows may be written.
    """

    write: Callable[[DataFrame, Batch], object]


@dataclass(frozen=True, slots=True)
class Joiner:
    """Joins the ledger's own transaction: rows and offsets are committed together, or neither is.

    Attributes:
        stage: does the long part outside of any transaction, and returns what is left to do on the transaction's
            connection. It raises SinkMismatch where the frame does not fit, so that another try is no use, and
            SinkError where it may be tried again.
    """

    stage: Callable[[DataFrame, Batch], Callable[[Any], object]]


class MarkKey(NamedTuple):
    """What a mark is of: a consumer group, and the output's name in it, which is empty where it is the only one."""

    group: str
    output: str


class Seen(NamedTuple):
    """A look at an output.

    Attributes:
        mark: of the group, or None where there is none.
        handle: whatever `land` needs to find out that the mark was changed since.
    """

    mark: OutputMark | None
    handle: Any = None


@dataclass(frozen=True, slots=True)
class Lander:
    """Lands the rows of a batch and the mark that says so in one step of the output; see `core.mark`.

    Attributes:
        stage: does the long part: writes rows where no reader sees them. What it returns goes to `land`. It raises
            SinkMismatch where the frame does not fit, so that another try is no use, and SinkError where it may be
            tried again.
        seen: returns the mark of a key. It raises SinkError where the output could not be asked.
        land: makes the staged rows visible and changes the mark, in one step, unless the mark is not the one seen any
            more: then it raises MarkMoved and changes nothing. Without staged rows (None) it changes the mark alone.
            It returns when all is durable. It raises SinkError where nothing was changed; and OutcomeUnknown where the
            reply was lost, so that all may be changed, now or later.
        expires: whether the output forgets the mark of a group that writes nothing for long. Then it may be missing
            where no batch is pending.
    """

    stage: Callable[[DataFrame, Batch], object]
    seen: Callable[[MarkKey], Seen]
    land: Callable[[MarkKey, Seen, OutputMark, Any], object]
    expires: bool = False


@runtime_checkable
class Sink(Protocol):
    """A place that rows go to.

    A sink may have an attribute `worker_modules`: names of the modules that Spark's workers import for it, which a run
    checks at its start. And it may have `any_order`: true where it makes no difference in which order rows come.
    """

    def prepare(self, store: Store, guarantee: Guarantee) -> Writer | Joiner | Lander:
        """Find out before anything is read how the rows go out beside this store, and whether the guarantee is kept.

        Raises:
            GuaranteeRefused: it cannot be kept; the message names what can.
            Refused: the sink itself is not as it must be, such as a table that is not there.
            SinkError, StoreUnavailable: one of them could not be reached.
        """
        ...
