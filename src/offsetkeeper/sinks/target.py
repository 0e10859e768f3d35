"""The table of a sink: its name, its columns, and whether a frame fits them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeVar, get_args

from offsetkeeper.core.store import Store
from offsetkeeper.errors import GuaranteeRefused, SettingsError, SinkMismatch

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructField

Mode = Literal["append", "upsert"]

ORDER = ("topic", "partition", "offset")
"""The columns by which the last of several rows with one key is found, when a frame to upsert has them."""

_ORDER_TYPES = ("string", "int", "bigint")
_PART = r'("(?:[^"]|"")+"|[^".]+)'
_NAME = re.compile(rf"(?:{_PART}\.)?{_PART}")


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


def two_databases(address: str, store: Store) -> GuaranteeRefused:
    """Return the error for rows and offsets that cannot be one transaction."""
    return GuaranteeRefused(
        f"rows in {address} and offsets in {store.address} cannot be exactly once, as they are two databases: "
        f"keep the offsets there too, with store='{address}'"
    )


def no_table(target: Target, address: str) -> SettingsError:
    """Return the error for a table that is not there."""
    return SettingsError(
        f"{address} has no table {target} that this user can see: create it first, or correct the name "
        "(upper and lower case count)"
    )


def no_unique_index(target: Target, address: str) -> SettingsError:
    """Return the error for a key that the table does not know as one."""
    key = ", ".join(target.key)
    return SettingsError(
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
