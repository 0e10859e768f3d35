"""Rows into a table of a database: its name, its columns, the check of a frame, and the writer."""

from __future__ import annotations

import importlib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeVar, get_args

from offsetkeeper.core.batch import Batch
from offsetkeeper.core.model import Guarantee
from offsetkeeper.core.store import Store, needing_extra
from offsetkeeper.core.urls import scheme_of, without_credentials
from offsetkeeper.errors import Refused, RowMismatch, SettingsError, SinkError, SinkMismatch, UnknownScheme
from offsetkeeper.sinks.limits import PLACE, Limits
from offsetkeeper.sinks.sink import Joiner, Lander, Sink, Writer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType, StructField

Mode = Literal["append", "upsert"]
SameKeys = Literal["by bytes", "as the column"]
FewerRows = Literal["refuse", "as the table"]

ORDER = PLACE
"""The columns that decide which of several rows with the same key is the last, if a frame to upsert has them."""

FRACTIONS = ("float", "double")
"""Types of which 0.0 and -0.0 are different values that are equal."""

_PLACE_TYPES = ("string", "int", "bigint")
_PART = r'("(?:[^"]|"")+"|[^".]+)'
_NAME = re.compile(rf"(?:{_PART}\.)?{_PART}")


class Rows(Sink, Protocol):
    """Writes rows into the tables of one kind of database."""

    @property
    def worker_modules(self) -> tuple[str, ...]:
        """The modules that Spark's workers import."""
        ...

    def stage(self, frame: DataFrame, batch: Batch) -> Callable[[Any], None]:
        """See `Joiner`."""
        ...

    def write(self, frame: DataFrame, batch: Batch) -> None:
        """Write the rows in a separate transaction; see `Writer`."""
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
    """Writes each batch into a table, completely or not at all, and exactly once with every store.

    If the offsets are in the same database, rows and offsets are one transaction. Otherwise the rows are committed
    together with a mark, in a table `offsetkeeper_marks` in the schema of the rows, which is created if it is missing.

    The frame's columns go into the columns with the same name. Types are compared before anything is written, and a
    value is never rounded or cut: a row with a value that its column does not keep as it is refuses the batch. Columns
    of the table that have a default or may be null may be left out. Of a row that an upsert finds, they stay.

    Few rows of a task go to the driver with its answer. More are staged in a table of their own.

    PostgreSQL: executors copy the rows, so they need `psycopg` and a connection to the database, one for each task that
    runs at the same time (`frame.coalesce` limits them). Staging tables are created in the first schema of the user's
    search path. Store and sink must use the same user, or the store's user must have all rights of the sink's user.

    MySQL, MariaDB: executors insert the rows, so they need `PyMySQL` and a connection to the database. Staging tables
    are created in the database of the table. Columns without fractional seconds accept only whole seconds.

    SQLite: rows go through the driver, for small data; dates and timestamps are stored as ISO 8601 in UTC.

    Args:
        url: URL of the database, such as `postgresql://user:password@host/database`,
            `mysql://user:password@host/database` or `sqlite:///shop.db`.
        name: name of the table: `orders`, `sales.orders`, or quoted if a name has dots. It is case-sensitive.
        mode: "append", or "upsert" to replace the rows with the same key. If several rows of a batch have the same key,
            the last one by topic, partition and offset is used; if the frame lacks these columns, the batch is refused
            (the table need not have them).
        key: names of the columns of a unique index, for "upsert". A row without a value in one of them is refused.
        same_keys: which texts are one key. With "by bytes" only equal ones are, as in Kafka: a table whose key takes
            others for equal, such as 'a' and 'A', is refused. With "as the column" the table decides, and the last row
            replaces the others with its own spelling.
        fewer_rows: "refuse" a batch of which the database inserts fewer rows than the frame has, or take it "as the
            table" does it: by its triggers, rules and conflict clauses.

    Attributes:
        any_order: rows may come in any order.
        rows: writes the rows into this kind of database.
        worker_modules: the modules that Spark's workers import.

    Raises:
        UnknownScheme: there is no sink for this kind of database.
        MissingExtra: its client library is not installed.
        SettingsError: another argument is wrong.
    """

    any_order = True

    def __init__(
        self,
        url: str,
        name: str,
        *,
        mode: Mode = "append",
        key: Sequence[str] = (),
        same_keys: SameKeys = "by bytes",
        fewer_rows: FewerRows = "refuse",
    ) -> None:
        # With Spark Connect, the process that uses a sink opens it again.
        words: dict[str, Any] = {"mode": mode, "key": key, "same_keys": same_keys, "fewer_rows": fewer_rows}
        self._arguments = (url, name), words
        self._target = parse_target(name, mode, key)._replace(
            same_keys=_chosen("same_keys", same_keys, SameKeys) == "as the column",
            fewer_rows=_chosen("fewer_rows", fewer_rows, FewerRows) == "as the table",
        )
        self.rows = _open(url)(url, self._target)
        self.worker_modules = self.rows.worker_modules
        self._address = without_credentials(url)

    def __reduce__(self) -> tuple[Any, ...]:
        arguments, words = self._arguments
        return partial(Table, **words), arguments

    @property
    def writes_to(self) -> str:
        """The name of its target."""
        return str(self._target)

    @property
    def mode(self) -> Mode:
        """What becomes of rows that come again."""
        return self._target.mode

    @property
    def place(self) -> str:
        """Where it is; see `Sink`."""
        return f"{self._address} {self._target}"

    def __repr__(self) -> str:
        return f"Table({self._address!r}, {str(self._target)!r}, mode={self._target.mode!r})"

    def prepare(self, store: Store, guarantee: Guarantee) -> Writer | Joiner | Lander:
        """Check the guarantee, the table, its key and the user's permissions.

        Rows join the transaction of a store in the same database. With another store they land with a mark; with
        at_most_once they are written without a mark, and with at_least_once too if marks cannot be kept.

        Raises:
            Refused: the table does not exist or does not fit; or the marks that exactly once needs cannot be kept.
            SinkError, StoreUnavailable: a database could not be reached.
        """
        return self.rows.prepare(store, guarantee)


def _open(url: str) -> Callable[..., Rows]:
    scheme, separator, _ = url.partition(":") if isinstance(url, str) else ("", "", "")
    entry = _SCHEMES.get(scheme) if separator else None
    if entry is None:
        known = ", ".join(sorted(f"{name}://" for name in _SCHEMES))
        raise UnknownScheme(
            f"no sink for {scheme_of(url) or 'that URL'}: the URL of a table starts with one of {known}"
        )
    with needing_extra(f"{scheme}:// needs the library", entry.extra or "spark"):
        module = importlib.import_module(f"offsetkeeper.sinks.{entry.module}")
    rows: Callable[..., Rows] = getattr(module, entry.name)
    return rows


def _chosen(name: str, word: str, words: Any) -> str:
    if word not in get_args(words):
        raise SettingsError(f"{name}={word!r}: use {' or '.join(map(repr, get_args(words)))}")
    return word


class Target(NamedTuple):
    """A table to write to, and how.

    Attributes:
        schema: schema of the table; empty if the database searches for it.
        table: name of the table in the database.
        mode: "append", or "upsert" to replace rows with the same key.
        key: the columns of the key, for "upsert".
        same_keys: whether the table decides which keys are the same.
        fewer_rows: whether the table may leave rows out.
    """

    schema: str
    table: str
    mode: Mode
    key: tuple[str, ...]
    same_keys: bool = False
    fewer_rows: bool = False

    def __str__(self) -> str:
        return self.quoted(str)

    def quoted(self, quoted: Callable[[str], str]) -> str:
        """Return the name for a statement; `quoted` quotes a part of it as the database needs it."""
        return ".".join(quoted(name) for name in (self.schema, self.table) if name)


@dataclass(frozen=True)
class Column:
    """One column of the table.

    Attributes:
        name: name in the database.
        type: type, as the database writes it.
        required: whether each row needs a value.
        generated: whether only the database may set it.
        nullable: whether it may be null.
    """

    name: str
    type: str
    required: bool
    generated: bool
    nullable: bool


C = TypeVar("C", bound=Column)


def parse_target(name: str, mode: str, key: Sequence[str]) -> Target:
    """Return the target from the arguments of `Table`.

    Raises:
        SettingsError: one of them is wrong.
    """
    match = _NAME.fullmatch(name) if isinstance(name, str) else None
    if match is None:
        raise SettingsError(f"{name!r} is not a table name: write 'table', 'schema.table' or '\"a name with dots.\"'")
    _chosen("mode", mode, Mode)
    if isinstance(key, str):
        raise SettingsError(f"key={key!r}: give the names of its columns, ({key!r},)")
    if (mode == "upsert") != bool(key) or len(set(key)) < len(key):
        raise SettingsError(
            f"mode={mode!r} with key={tuple(key)!r}: upsert needs the columns of a key, append must have none"
        )
    schema, table = (_unquoted(part) for part in match.groups(default=""))
    return Target(schema, table, "upsert" if mode == "upsert" else "append", tuple(key))


def match_columns(
    fields: Sequence[StructField],
    columns: Sequence[C],
    target: Target,
    misfit: Callable[[DataType, C], str],
) -> list[C | None]:
    """Return the table's column for each field of a frame; None for fields that only order rows.

    Args:
        fields: fields of the frame.
        columns: columns of the table.
        target: the table.
        misfit: returns why a column cannot hold values of a type without loss, or "" if it can.

    Raises:
        SinkMismatch: the frame does not fit; the message lists every reason.
    """
    by_name = {column.name: column for column in columns}
    problems = [
        *_wrong_names([field.name for field in fields], columns, target),
        *(
            f"column {field.name} of the key has a collation of Spark, for which different keys are one: cast to string"
            for field in fields
            if field.name in target.key and " collate " in field.dataType.simpleString()
        ),
        *(
            f"column {field.name} of the key has {' or '.join(FRACTIONS)} within it, where 0.0 and -0.0 are one key: "
            "make each a column of the key"
            for field in fields
            if field.name in target.key and _has_fractions_within(field.dataType)
        ),
        *(why for field in fields if (why := _wrong(field, by_name.get(field.name), ordered(fields, target), misfit))),
    ]
    if problems:
        raise SinkMismatch(
            f"the frame does not fit table {target}: {'; '.join(problems)}. "
            "Nothing was written: select, rename or cast in the frame, or alter the table"
        )
    return [by_name.get(field.name) for field in fields]


def limits_of_rows(
    fields: Sequence[StructField],
    columns: Sequence[C | None],
    target: Target,
    limits: Callable[[DataType, C], Limits],
) -> list[Limits]:
    """Return the limits of the values in each field of a frame.

    Args:
        fields: fields of the frame.
        columns: the table's column for each field; None for fields that only order rows.
        target: the table. Its keys, and what orders them, must have values.
        limits: returns what values of a type must be so that a column keeps them.
    """
    needed = {*target.key, *(ORDER if ordered(fields, target) else ())}
    found = []
    for field, column in zip(fields, columns, strict=True):
        plain = Limits(field.name, field.dataType.simpleString())
        each = plain if column is None else limits(field.dataType, column)
        merged = field.name in target.key and field.dataType.typeName() in FRACTIONS
        nullable = each.nullable and field.name not in needed
        found.append(each._replace(nullable=nullable, negative_zero=not merged))
    return found


def ordered(fields: Sequence[StructField], target: Target) -> bool:
    """Whether the frame has the columns that decide which of several rows with the same key is the last."""
    return target.mode == "upsert" and says_record(fields)


def says_record(fields: Sequence[StructField]) -> bool:
    """Whether the frame says of which record each row is."""
    types = {field.name: field.dataType.simpleString() for field in fields}
    return tuple(map(types.get, PLACE)) == _PLACE_TYPES


def changed(target: Target, names: Iterable[str]) -> list[str]:
    """Return which of these columns an upsert changes in a row that is there.

    The columns of the key are equal already. Where the table decides what is equal, they get the last spelling too.
    """
    return [name for name in names if target.same_keys or name not in target.key]


def no_table(target: Target, address: str) -> Refused:
    """Return the error for a missing table."""
    return Refused(
        f"{address} has no table {target} that this user can see: create it first, or correct the name "
        "(upper and lower case count)"
    )


def no_unique_index(target: Target, address: str, quoted: Callable[[str], str]) -> Refused:
    """Return the error for a key without a unique index; `quoted` quotes a name as the database needs it."""
    index, key = quoted(f"{target.table}_key"), ", ".join(map(quoted, target.key))
    return Refused(
        f"{address}: table {target} has no unique index on ({', '.join(target.key)}): "
        f"create unique index {index} on {target.quoted(quoted)} ({key})"
    )


def same_key(target: Target, *, in_order: bool = False) -> RowMismatch:
    """Return the error for rows with the same key that cannot be ordered.

    Args:
        target: the table.
        in_order: whether the frame has the columns that order rows; then the rows are of one record.
    """
    whose = f"one record ({', '.join(ORDER)})" if in_order else "the batch"
    remedy = "" if in_order else f"keep Kafka's columns {', '.join(ORDER)} in the frame to use the last row, or "
    return RowMismatch(
        f"table {target}: several rows of {whose} have the same key ({', '.join(target.key)}). Nothing was written: "
        f"{remedy}keep one row for each key"
    )


def merged_keys(target: Target, column: Column, why: str, remedy: str) -> Refused:
    """Return the error for a key that takes different texts for the same one.

    Args:
        target: the table.
        column: the column of the key.
        why: which texts it takes for the same, such as "has a collation for which 'a' and 'A' are one key".
        remedy: what to change in the table.
    """
    return Refused(
        f"table {target}: column {column.name} ({column.type}) of the key {why}, so rows of different keys would "
        f'replace one another: {remedy}, or give same_keys="as the column" if that is meant'
    )


def altered(target: Target) -> SinkError:
    """Return the error for a table that is not as it was when its rows were staged."""
    return SinkError(f"table {target} was altered while rows were staged; nothing was written")


def fewer_rows(target: Target, staged: int, inserted: int) -> Refused:
    """Return the error for a table that has inserted fewer rows than were staged."""
    return Refused(
        f"table {target}: of {staged} rows of a batch the database has inserted {inserted}; nothing was written. A "
        "trigger, a rule or a conflict clause of the table leaves rows out, or writes them elsewhere: change it, or "
        'give fewer_rows="as the table" if that is meant'
    )


def changed_keys(target: Target, staged: int, others: int) -> Refused:
    """Return the error for a table in which a trigger has changed keys that were staged, or deleted their rows."""
    return Refused(
        f"table {target}: of {staged} keys of a batch the table does not have {others}; nothing was written. A trigger "
        "of the table changes keys, so that different ones may become one row, or deletes rows: change it, or give "
        'fewer_rows="as the table" if that is meant'
    )


def _wrong_names(names: Sequence[str], columns: Sequence[Column], target: Target) -> Iterator[str]:
    yield from (f"the frame has column {name} {count} times" for name, count in Counter(names).items() if count > 1)
    yield from (
        f"column {column.name} ({column.type}) must have a value, but is not in the frame"
        for column in columns
        if column.required and not column.generated and column.name not in names
    )
    yield from (f"column {name} of the key is not in the frame" for name in target.key if name not in names)
    if not set(names) & {column.name for column in columns}:
        yield "frame and table have no column in common"


def _wrong(field: StructField, column: C | None, in_order: bool, misfit: Callable[[DataType, C], str]) -> str:  # noqa: FBT001 - private
    if column is None:
        return "" if in_order and field.name in ORDER else f"the table has no column {field.name}"
    if column.generated:
        return f"column {column.name} is generated by the database: leave it out of the frame"
    why = misfit(field.dataType, column)
    return f"column {column.name}: {field.dataType.simpleString()} into {column.type} {why}" if why else ""


def _has_fractions_within(kind: Any) -> bool:
    fields = [each.dataType for each in getattr(kind, "fields", ())]
    inner = [*fields, *(getattr(kind, name) for name in ("elementType", "keyType", "valueType") if hasattr(kind, name))]
    return any(each.typeName() in FRACTIONS or _has_fractions_within(each) for each in inner)


def _unquoted(part: str) -> str:
    return part[1:-1].replace('""', '"') if part.startswith('"') else part
