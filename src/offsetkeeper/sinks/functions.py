"""Sinks for the user's own functions."""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from collections.abc import Callable, Iterator, Mapping, ValuesView
from collections.abc import Set as AbstractSet
from concurrent.futures import Future
from datetime import date
from decimal import Decimal
from multiprocessing.pool import AsyncResult
from types import GeneratorType, MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

from offsetkeeper.core.batch import Batch
from offsetkeeper.core.model import Guarantee
from offsetkeeper.core.store import Store, TransactionalStore
from offsetkeeper.errors import GuaranteeRefused, SettingsError
from offsetkeeper.sinks.sink import Joiner, Writer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    Process = Callable[[DataFrame, Batch], object]
    InTransaction = Callable[[DataFrame, Batch, Any], object]

F = TypeVar("F", bound=Callable[..., object])
# What only describes an output, by the package and the outermost class: of classic Spark and Connect, and of dask.
_UNWRITTEN = MappingProxyType(
    {
        "pyspark": frozenset(
            (
                *("DataFrame", "DataFrameWriter", "DataFrameWriterV2", "DataStreamWriter", "MergeIntoWriter"),
                *("GroupedData", "PandasCogroupedOps", "RDD", "RDDBarrier"),
            )
        ),
        "dask": frozenset({"DaskMethodsMixin"}),
    }
)
_PLAIN = str, bytes, bytearray, int, float, Decimal, date
_LATER = Future, asyncio.Future, AsyncResult  # whether the work is ever done, and its error, is known to who asks them
# Iterators that compute nothing before they are read. Files, cursors and those of a list are iterators too, and their
# work is done.
_LAZY = map, filter, zip, enumerate, GeneratorType, type(iter(int, 1))
_LAZY_PACKAGES = frozenset({"itertools", "multiprocessing"})
_NOT_RUN = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)


class Function:
    """Calls `function(frame, batch)`, which writes its output itself: at most once or at least once.

    A function that returns a frame, which nobody writes, fails the batch with SettingsError.

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
            GuaranteeRefused: the guarantee is exactly once.
        """
        if guarantee is Guarantee.EXACTLY_ONCE:
            raise GuaranteeRefused(
                f"{self!r} with its offsets in {store.address} cannot be exactly once: a crash between output and "
                "offsets repeats the batch. Use Table(url, name) for rows into the store's database, "
                "Transaction(function) for your own SQL there, or Idempotent(function) if writing the same batch "
                "twice leaves one copy"
            )
        return Writer(self._write)

    def _write(self, frame: DataFrame, batch: Batch) -> None:
        _check_written(self, self._function(frame, batch))


class Idempotent(Function):
    """Calls `function(frame, batch)`; you declare that writing a batch twice leaves one copy.

    Then it is exactly once: the batch is recorded before it is written, so that a retry has the same ranges and the
    same `batch.id`. The function must handle these cases:

    - Two runs may write the same batch at the same time: an older run that has stalled, and the newer run.
    - The older run may finish last, even after the newer run has committed this batch and later batches.
    - In every case one complete copy must exist from the moment when the first of them returns.

    Rows with a unique key, such as (topic, partition, offset), do this. Files written with `mode("overwrite")` do not:
    the older run deletes rows that the newer run has committed. `Files` does.

    Raises:
        SettingsError: it cannot be called like that.
    """

    def prepare(self, store: Store, guarantee: Guarantee) -> Writer:  # noqa: ARG002 - the protocol's signature
        """Accept every guarantee."""
        return Writer(self._write)


class Transaction:
    """Calls `function(frame, batch, connection)`; its writes on the connection are committed with the offsets.

    The connection is the store's own (of psycopg or sqlite3) in an open transaction; the function must not end the
    transaction. The store's ledger is locked during the call, so do long work before, for example with `frame.cache()`.

    Raises:
        SettingsError: it cannot be called like that.
    """

    def __init__(self, function: InTransaction) -> None:
        self._function = _check(function, "frame", "batch", "connection")

    def __repr__(self) -> str:
        return f"Transaction({_name(self._function)})"

    def prepare(self, store: Store, guarantee: Guarantee) -> Joiner:
        """Refuse stores without transactions, and guarantees that store offsets before the output.

        Raises:
            GuaranteeRefused: the store or the guarantee does not fit.
        """
        if not isinstance(store, TransactionalStore):
            raise GuaranteeRefused(
                f"{self!r} needs a store that lends its transaction, but {store.address} does not: keep the offsets in "
                "the database of the output, with store='postgresql://...' or 'sqlite:///...'"
            )
        if guarantee is Guarantee.AT_MOST_ONCE:
            raise GuaranteeRefused(f"{self!r} commits output and offsets together: use exactly_once")
        return Joiner(lambda frame, batch: lambda connection: self._write(frame, batch, connection))

    def _write(self, frame: DataFrame, batch: Batch, connection: Any) -> None:
        _check_written(self, self._function(frame, batch, connection))


def _check(function: F, *arguments: str) -> F:
    wanted = f"a function of ({', '.join(arguments)})"
    if not callable(function):
        raise SettingsError(f"{function!r} cannot be called: give {wanted}")
    if any(kind(function) for kind in _NOT_RUN):
        raise SettingsError(f"{_name(function)} is async or yields, so a call does not run it: give {wanted} that does")
    try:
        signature = inspect.signature(function)
    except ValueError:  # some functions in C have no signature
        return function
    try:
        signature.bind(*arguments)
    except TypeError as error:
        raise SettingsError(f"{_name(function)}{signature} does not take ({', '.join(arguments)}): {error}") from None
    return function


def unwritten(returned: object) -> str:
    """Return why what a function returned lacks in its output, as in "a DataFrame, and nothing writes it"; else "".

    It is a frame, an RDD, or a writer that was never told to save, also within a collection. Or it is a coroutine, a
    generator or such an iterator as `map`, which Python has not run. Or it is a future that may still fail, or has
    failed: nobody sees its error.
    """
    if returned is None or isinstance(returned, _PLAIN):  # soon: it may be each cell of all collected rows
        return ""
    if isinstance(returned, Mapping | list | tuple | deque | AbstractSet | ValuesView):
        each = returned.values() if isinstance(returned, Mapping) else returned
        return next(filter(None, map(unwritten, each)), "")
    names = [(each.__module__, each.__qualname__) for each in type(returned).__mro__]
    kinds = [(module.partition(".")[0], name.partition(".")[0]) for module, name in names]
    if any(name in _UNWRITTEN.get(package, ()) for package, name in kinds):
        return f"{_one(returned)}, and nothing writes it"
    if isinstance(returned, _LATER):
        return _unfinished(returned)
    lazy = isinstance(returned, _LAZY) or (isinstance(returned, Iterator) and kinds[0][0] in _LAZY_PACKAGES)
    if lazy or inspect.isawaitable(returned) or inspect.isasyncgen(returned):
        if inspect.iscoroutine(returned):
            returned.close()  # else Python warns of it, beside the error
        return f"{_one(returned)}, and nothing runs it"
    return ""


def _unfinished(later: Future[Any] | asyncio.Future[Any] | AsyncResult[Any]) -> str:
    """Return why work that was given to others is not known to be done; empty if it is, and without an error."""
    if isinstance(later, AsyncResult):
        done = later.ready()
        good = done and later.successful()
    else:
        done = later.done()
        good = done and not later.cancelled() and later.exception() is None
    if good:
        return ""
    why = "which has failed, and nothing asks for its error" if done else "and nothing waits for it"
    return f"{_one(later)}, {why}"


def _one(returned: object) -> str:
    name = type(returned).__name__
    return f"{'an' if name[0] in 'AEIOaeio' or name.startswith('RDD') else 'a'} {name}"


def _check_written(sink: object, returned: object) -> None:
    """Refuse what would be lost, see `unwritten`."""
    if what := unwritten(returned):
        raise SettingsError(
            f"{sink!r} returned {what}; the batch was not committed, unless the guarantee is at_most_once, which "
            "commits before. Give the output as sink=…, such as Table(url, name); or write it in the function, and "
            "return None"
        )


def _name(function: object) -> str:
    return getattr(function, "__qualname__", None) or repr(function)
