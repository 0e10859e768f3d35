"""Sinks made of the user's own function."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from offsetkeeper.core.model import Batch, Guarantee
from offsetkeeper.core.store import Store, TransactionalStore
from offsetkeeper.errors import GuaranteeRefused, SettingsError
from offsetkeeper.sinks.sink import Joiner, Writer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    Process = Callable[[DataFrame, Batch], object]
    InTransaction = Callable[[DataFrame, Batch, Any], object]

F = TypeVar("F", bound=Callable[..., object])


class Function:
    """Calls `function(frame, batch)`, which writes its output by itself: at most or at least once.

    Raises:
        SettingsError: it cannot be called like that.
    """

    def __init__(self, function: Process) -> None:
        self._function = _check(function, "frame", "batch")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({_name(self._function)})"

    def prepare(self, store: Store, guarantee: Guarantee) -> Writer:
        """Refuse exactly once.

        Raises:
            GuaranteeRefused: exactly once was asked for.
        """
        if guarantee is Guarantee.EXACTLY_ONCE:
            raise GuaranteeRefused(
                f"{self!r} with its offsets in {store.address} cannot be exactly once: a crash between output and "
                "offsets repeats the batch. Use Table(url, name) for rows into the store's database, "
                "Transaction(function) for SQL of your own there, or Idempotent(function) if writing the same batch "
                "twice leaves one copy"
            )
        return Writer(self._function)


class Idempotent(Function):
    """Calls `function(frame, batch)`, of which you say that a batch which is written twice is there once.

    Then it is exactly once: the batch is recorded before it is written, so that a retry has the same ranges and the
    same `batch.id`. What is asked of the function:

    - Two runs may write the same batch at the same time: an older one that has stalled, and the newer one.
    - The older may finish last, also after the newer one has committed the batch and others after it.
    - However they meet, one whole copy is there, from the moment the first of them returns.

    Rows under a unique key, such as (topic, partition, offset), do that. Files written with `mode("overwrite")` do not:
    the older run deletes what the newer one has committed. `Files` does.

    Raises:
        SettingsError: it cannot be called like that.
    """

    def prepare(self, store: Store, guarantee: Guarantee) -> Writer:  # noqa: ARG002 - the protocol's signature
        """Every guarantee can be kept."""
        return Writer(self._function)


class Transaction:
    """Calls `function(frame, batch, connection)`: what it writes on the connection commits with the offsets.

    The connection is the store's own (psycopg's, or sqlite3's) in an open transaction; the function must not end it.
    The store's ledger is locked meanwhile, so work that takes long is better done before, by `frame.cache()`.

    Raises:
        SettingsError: it cannot be called like that.
    """

    def __init__(self, function: InTransaction) -> None:
        self._function = _check(function, "frame", "batch", "connection")

    def __repr__(self) -> str:
        return f"Transaction({_name(self._function)})"

    def prepare(self, store: Store, guarantee: Guarantee) -> Joiner:
        """Refuse stores without transactions, and offsets that go before the output.

        Raises:
            GuaranteeRefused: one of these.
        """
        if not isinstance(store, TransactionalStore):
            raise GuaranteeRefused(
                f"{self!r} needs a store that lends its transaction, and {store.address} does not: keep the offsets in "
                "the database that the output goes to, with store='postgresql://...' or 'sqlite:///...'"
            )
        if guarantee is Guarantee.AT_MOST_ONCE:
            raise GuaranteeRefused(f"{self!r} commits output and offsets together: ask for exactly_once")
        return Joiner(lambda frame, batch: lambda connection: self._function(frame, batch, connection))


def _check(function: F, *arguments: str) -> F:
    wanted = f"a function of ({', '.join(arguments)})"
    if not callable(function):
        raise SettingsError(f"{function!r} cannot be called: give {wanted}")
    try:
        signature = inspect.signature(function)
    except ValueError:  # some functions written in C do not tell
        return function
    try:
        signature.bind(*arguments)
    except TypeError as error:
        raise SettingsError(f"{_name(function)}{signature} does not take ({', '.join(arguments)}): {error}") from None
    return function


def _name(function: object) -> str:
    return getattr(function, "__qualname__", None) or repr(function)
