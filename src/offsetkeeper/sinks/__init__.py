"""Sinks: where a batch's rows go, and which guarantee each can keep.

`Table` writes rows into a table, `Transaction` runs SQL of your own with the offsets, `Idempotent` takes your word that
writing twice leaves one copy, and a plain function is a `Function`, which cannot be exactly once. `Outputs` is several.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from offsetkeeper.core.model import Batch, Guarantee
from offsetkeeper.core.store import Store
from offsetkeeper.errors import SettingsError
from offsetkeeper.sinks.functions import Function, Idempotent, Transaction
from offsetkeeper.sinks.outputs import Outputs
from offsetkeeper.sinks.table import Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from offsetkeeper.sinks.functions import Process

__all__ = ["Function", "Idempotent", "Outputs", "Sink", "Table", "Transaction", "as_sink"]


@runtime_checkable
class Sink(Protocol):
    """A place that rows go to."""

    def check(self, store: Store, guarantee: Guarantee) -> None:
        """Find out before anything is read whether this sink can work with the store and keep the guarantee.

        Raises:
            GuaranteeRefused: it cannot keep it; the message names what can.
            SettingsError: the sink itself is not as it must be, such as a table that is not there.
            SinkError: it could not be reached.
        """
        ...

    def shares_transaction(self, store: Store) -> bool:
        """Whether rows and offsets can be one transaction here.

        Raises:
            StoreUnavailable, SinkError: one of them could not be asked.
        """
        ...

    def stage(self, frame: DataFrame, batch: Batch) -> Callable[[Any], None]:
        """Do the long part, outside of any transaction; return what is left to do on the transaction's connection.

        Only for a sink that shares the store's transaction.

        Raises:
            SinkMismatch: the frame does not fit; trying again is no use.
            SinkError: nothing was written; it may be tried again.
        """
        ...

    def write(self, frame: DataFrame, batch: Batch) -> None:
        """Write the rows, and return when they are durable.

        Raises:
            SinkMismatch: the frame does not fit; trying again is no use.
            SinkError: nothing was written; it may be tried again.
            OutcomeUnknown: the reply to the commit was lost; the rows may be written.
        """
        ...


def as_sink(sink: Sink | Process) -> Sink:
    """Return a sink as it is, and a plain function as a `Function`.

    Raises:
        SettingsError: it is neither.
    """
    if isinstance(sink, Sink) and not isinstance(sink, type):
        return sink
    if callable(sink) and not isinstance(sink, type):
        return Function(sink)
    raise SettingsError(f"{sink!r} is no sink: give a function of (frame, batch), Table, Transaction or Idempotent")
