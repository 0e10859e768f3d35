"""What a sink is: it puts the rows of a batch into the ledger's own transaction, or writes them apart from it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

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


@runtime_checkable
class Sink(Protocol):
    """A place that rows go to."""

    def prepare(self, store: Store, guarantee: Guarantee) -> Writer | Joiner:
        """Find out before anything is read how the rows go out beside this store, and whether the guarantee is kept.

        Raises:
            GuaranteeRefused: it cannot be kept; the message names what can.
            SettingsError: the sink itself is not as it must be, such as a table that is not there.
            SinkError, StoreUnavailable: one of them could not be reached.
        """
        ...
