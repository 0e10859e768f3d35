"""Rows into a table of a database: its name, its columns, whether a frame fits them, and who writes them."""

from __future__ import annotations

import importlib
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeVar, get_args

from offsetkeeper.core.model import Batch, Guarantee
from offsetkeeper.core.store import Store, needing_extra
from offsetkeeper.core.urls import scheme_of, without_credentials
from offsetkeeper.errors import Refused, SettingsError, SinkMismatch, UnknownScheme
from offsetkeeper.sinks.sink import Joiner, Lander, Sink, Writer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType, StructField

Mode = Literal["append", "upsert"]

ORDER = ("topic", "partition", "offset")
"""The columns by which the last of several rows with one key is found, when a frame to upsert has them."""

_ORDER_TYPES = ("string", "int", "bigint")
_PART = r'("(?:[^"]|"")+"|[^".]+)'
_NAME = re.compile(rf"(?:{_PART}\.)?{_PART}")


class Rows(Sink, Protocol):
    """What writes rows into the tables of one kind of database."""

    @property
    def worker_modules(self) -> tuple[str, ...]:
        """What Spark's workers import for that."""
        ...

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
        "mysql": _Scheme("mysql", "MySQLTable", "mysql"),
        "mariadb": _Scheme("mysql", "MySQLTable", "mysql"),
        "sqlite": _Scheme("sqlite", "SQLiteTable", ""),
    }
)


class Table:
    """Writes each batch into a table, whole or not at all, and exactly once whatever store the offsets are in.

    Where the offsets are in the same database, rows and offsets are one transaction. Elsewhere the rows commit together
    with a mark, in a table `offsetkeeper_marks` in the schema of the rows, which is made where it is not there.

    The frame's columns go into the columns of the same name. Their types are compared before anything is written, and
    a value is never rounded or cut. Columns of the table that have a default, or may be null, may be left out.

    PostgreSQL: executors copy the rows, so they need `psycopg`, and reach the database: one connection for each task
    that runs at a time (`frame.coalesce` limits them). Staging tables are made in the first schema of the user's search
    path. Store and sink must be the same user, or the store's one with all rights of the sink's.
    MySQL, MariaDB: executors insert the rows, so they need `PyMySQL`, and reach the database. Staging tables are made
    in the database of the table. Whole seconds go into columns without fractions; others are refused there.
    SQLite: rows go through the driver, for small data; dates and timestamps are stored as ISO 8601, in UTC.

    Args:
        url: of the database, such as `postgresql://user:password@host/database`, `mysql://user:password@host/database`
            or `sqlite:///shop.db`.
        name: of the table: `orders`, `sales.orders`, or with quotes where a name has dots. Upper and lower case count.
        mode: "append", or "upsert" to replace the rows that have the same key. Of several rows with one key in a batch
            the last by topic, partition and offset is taken where the frame has these columns (they need not be in
            the table); where it has not, the batch is refused.
        key: names of the columns of a unique index, for "upsert".

    Attributes:
        any_order: rows may come in any order.
        rows: what writes them into this kind of database.
        worker_modules: what Spark's workers import for that.

    Raises:
        UnknownScheme: there is no sink for this kind of database.
        MissingExtra: its client library is not installed.
        SettingsError: another argument is wrong.
    """

    any_order = True

    def __init__(self, url: str, name: str, *, mode: Mode = "append", key: Sequence[str] = ()) -> None:
        self._arguments = (url, name)  # with Spark Connect a sink is opened anew where it is used
        self._target = parse_target(name, mode, key)
        self.rows = _open(url)(url, self._target)
        self.worker_modules = self.rows.worker_modules
        self._address = without_credentials(url)

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(Table, mode=self._target.mode, key=self._target.key), self._arguments

    def __repr__(self) -> str:
        return f"Table({self._address!r}, {str(self._target)!r}, mode={self._target.mode!r})"

    def prepare(self, store: Store, guarantee: Guarantee) -> Writer | Joiner | Lander:
        """Check the guarantee, the table, its key and the user's permissions.

        Rows join the transaction of a store in the same database. Beside another store they land with a mark; with at
        most once they are written without one, and at least once too where the marks cannot be kept.

        Raises:
            Refused: the table is not there, or is not as it must be; or the marks that exactly once needs cannot
                be kept.
            SinkError, StoreUnavailable: a database could not be reached.
        """
        return self.rows.prepare(store, guarantee)


def _open(url: str) -> Callable[..., Rows]:
    scheme, separator, _ = url.partition(":") if isinstance(url, str) else ("", "", "")
    entry = _SCHEMES.get(scheme) if separator else None
    if entry is None:
        known = ", ".join(sorted(f"{name}://" for name in _SCHEMES))
        raise UnknownScheme(f"no sink for {scheme_of(url) or 'that URL'}: a table's URL begins with one of {known}")
    with needing_extra(scheme, entry.extra or "spark"):
        module = importlib.import_module(f"offsetkeeper.sinks.{entry.module}")
    rows: Callable[..., Rows] = getattr(module, entry.name)
    return rows


class Target(NamedTuple):
    """A table to write to, and how.

    Attributes:
        schema: that the table is in; empty where the database shall look for it.
        table: its name, as the database has it.
        mode: "append", or "upsert" to replace rows with the same key.
        key: the columns of the key, for "upsert".
    """

    schema: str
    table: str
    mode: Mode
    key: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.schema}.{self.table}" if self.schema else self.table


@dataclass(frozen=True)
class Column:
    """One column of the table.

    Attributes:
        name: as the database has it.
        type: as the database writes it.
        required: a row cannot be without it.
        generated: only the database may set it.
    """

    name: str
    type: str
    required: bool
    generated: bool


C = TypeVar("C", bound=Column)


def parse_target(name: str, mode: str, key: Sequence[str]) -> Target:
    """Return the target that the arguments of `Table` mean.

    Raises:
        SettingsError: one of them is wrong.
    """
    match = _NAME.fullmatch(name) if isinstance(name, str) else None
    if match is None:
        raise SettingsError(f"{name!r} names no table: write 'table', 'schema.table' or '\"a name with dots.\"'")
    if mode not in get_args(Mode):
        raise SettingsError(f"mode={mode!r}: use 'append' or 'upsert'")
    if isinstance(key, str):
        raise SettingsError(f"key={key!r}: give the names of its columns, ({key!r},)")
    if (mode == "upsert") != bool(key) or len(set(key)) < len(key):
        raise SettingsError(f"mode={mode!r} with key={tuple(key)!r}: upsert needs a key's columns, append has none")
    schema, table = (_unquoted(part) for part in match.groups(default=""))
    return Target(schema, table, "upsert" if mode == "upsert" else "append", tuple(key))


def match_columns(
    fields: Sequence[StructField],
    columns: Sequence[C],
    target: Target,
    misfit: Callable[[DataType, C], str],
) -> list[C | None]:
    """Return the table's column for each field of a frame; None for those that only say which row is the last.

    Args:
        fields: of the frame.
        columns: of the table.
        target: the table.
        misfit: says why a column cannot hold values of a type without loss, or "" where it can.

    Raises:
        SinkMismatch: the frame does not fit; the message lists every reason.
    """
    by_name = {column.name: column for column in columns}
    problems = [
        *_wrong_names([field.name for field in fields], columns, target),
        *(why for field in fields if (why := _wrong(field, by_name.get(field.name), ordered(fields, target), misfit))),
    ]
    if problems:
        raise SinkMismatch(
            f"the frame does not fit table {target}: {'; '.join(problems)}. "
            "Nothing was written: select, rename or cast in the frame, or alter the table"
        )
    return [by_name.get(field.name) for field in fields]


def ordered(fields: Sequence[StructField], target: Target) -> bool:
    """Whether the frame tells which of several rows with one key is the last."""
    types = {field.name: field.dataType.simpleString() for field in fields}
    return target.mode == "upsert" and tuple(map(types.get, ORDER)) == _ORDER_TYPES


def no_table(target: Target, address: str) -> Refused:
    """Return the error for a table that is not there."""
    return Refused(
        f"{address} has no table {target} that this user can see: create it first, or correct the name "
        "(upper and lower case count)"
    )


def no_unique_index(target: Target, address: str) -> Refused:
    """Return the error for a key that the table does not know as one."""
    key = ", ".join(target.key)
    return Refused(
        f"{address}: table {target} has no unique index on ({key}): "
        f"create unique index {target.table}_key on {target} ({key})"
    )


def same_key(target: Target) -> SinkMismatch:
    """Return the error for rows of which nothing says which is the last."""
    return SinkMismatch(
        f"table {target}: several rows of the batch have the same key ({', '.join(target.key)}). Nothing was written: "
        f"keep Kafka's columns {', '.join(ORDER)} in the frame and the last one is taken, or leave one row for each key"
    )


def _wrong_names(names: Sequence[str], columns: Sequence[Column], target: Target) -> Iterator[str]:
    yield from (f"the frame has column {name} {count} times" for name, count in Counter(names).items() if count > 1)
    yield from (
        f"column {column.name} ({column.type}) must have a value and is not in the frame"
        for column in columns
        if column.required and column.name not in names
    )
    yield from (f"column {name} of the key is not in the frame" for name in target.key if name not in names)
    if not set(names) & {column.name for column in columns}:
        yield "they have no column in common"


def _wrong(field: StructField, column: C | None, in_order: bool, misfit: Callable[[DataType, C], str]) -> str:  # noqa: FBT001 - private
    if column is None:
        return "" if in_order and field.name in ORDER else f"the table has no column {field.name}"
    if column.generated:
        return f"column {column.name} is generated by the database, leave it out of the frame"
    why = misfit(field.dataType, column)
    return f"column {column.name}: {field.dataType.simpleString()} into {column.type} {why}" if why else ""


def _unquoted(part: str) -> str:
    return part[1:-1].replace('""', '"') if part.startswith('"') else part
