"""The sink for rows into a table of a database."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from offsetkeeper.core.model import Batch, Guarantee
from offsetkeeper.core.store import Store, without_credentials
from offsetkeeper.errors import MissingExtra, UnknownScheme
from offsetkeeper.sinks.sink import Joiner, Sink, Writer
from offsetkeeper.sinks.target import Mode, parse_target

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class Rows(Sink, Protocol):
    """What writes rows into the tables of one kind of database."""

    def stage(self, frame: DataFrame, batch: Batch) -> Callable[[Any], None]:
        """See `Joiner`."""
        ...

    def write(self, frame: DataFrame, batch: Batch) -> None:
        """Write the rows in a transaction of their own; see `Writer`."""
        ...


class _Scheme(NamedTuple):
    module: str
    name: str
    extra: str


_SCHEMES: Mapping[str, _Scheme] = MappingProxyType(
    {
        "postgresql": _Scheme("postgresql", "PostgreSQLTable", "postgresql"),
        "postgres": _Scheme("postgresql", "PostgreSQLTable", "postgresql"),
        "sqlite": _Scheme("sqlite", "SQLiteTable", ""),
    }
)


class Table:
    """Writes each batch into a table, whole or not at all; with the offsets, where they are in the same database.

    The frame's columns go into the columns of the same name. Their types are compared before anything is written, and
    a value is never rounded or cut. Columns of the table that have a default, or may be null, may be left out.

    PostgreSQL: executors copy the rows, so they need `psycopg`, and reach the database: one connection for each task
    that runs at a time (`frame.coalesce` limits them). Staging tables are made in the first schema of the user's search
    path. Store and sink must be the same user, or the store's one with all rights of the sink's.
    SQLite: rows go through the driver, for small data; dates and timestamps are stored as ISO 8601, in UTC.

    Args:
        url: of the database, such as `postgresql://user:password@host/database` or `sqlite:///shop.db`.
        name: of the table: `orders`, `sales.orders`, or with quotes where a name has dots. Upper and lower case count.
        mode: "append", or "upsert" to replace the rows that have the same key. Of several rows with one key in a batch
            the last by topic, partition and offset is taken where the frame has these columns (they need not be in
            the table); where it has not, the batch is refused.
        key: names of the columns of a unique index, for "upsert".

    Attributes:
        rows: what writes them into this kind of database.

    Raises:
        UnknownScheme: there is no sink for this kind of database.
        MissingExtra: its client library is not installed.
        SettingsError: another argument is wrong.
    """

    def __init__(self, url: str, name: str, *, mode: Mode = "append", key: Sequence[str] = ()) -> None:
        self._arguments = (url, name)  # with Spark Connect a sink is opened anew where it is used
        self._target = parse_target(name, mode, key)
        self.rows = _open(url)(url, self._target)
        self._address = without_credentials(url)

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(Table, mode=self._target.mode, key=self._target.key), self._arguments

    def __repr__(self) -> str:
        return f"Table({self._address!r}, {str(self._target)!r}, mode={self._target.mode!r})"

    def prepare(self, store: Store, guarantee: Guarantee) -> Writer | Joiner:
        """Check the guarantee, the table, its key and the user's permissions.

        Rows join the transaction of a store in the same database. Beside another store they are written apart.

        Raises:
            GuaranteeRefused: exactly once was asked for, and the offsets are in another database.
            SettingsError: the table is not there, or is not as it must be.
            SinkError, StoreUnavailable: a database could not be reached.
        """
        return self.rows.prepare(store, guarantee)


def _open(url: str) -> Callable[..., Rows]:
    scheme, separator, _ = url.partition(":") if isinstance(url, str) else ("", "", "")
    entry = _SCHEMES.get(scheme) if separator else None
    if entry is None:
        known = ", ".join(sorted(f"{name}://" for name in _SCHEMES))
        raise UnknownScheme(f"no sink for {scheme or 'that'!r}: a table's URL begins with one of {known}")
    try:
        module = importlib.import_module(f"offsetkeeper.sinks.{entry.module}")
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("offsetkeeper"):
            raise
        raise MissingExtra(
            f"{scheme}:// needs the library {error.name!r}: pip install 'offsetkeeper[{entry.extra or 'spark'}]'"
        ) from error
    rows: Callable[..., Rows] = getattr(module, entry.name)
    return rows
