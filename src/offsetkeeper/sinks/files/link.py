"""A link in the chain of batches of a folder, and the columns of the batches so far. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from offsetkeeper.core.mark import OutputMark
from offsetkeeper.core.outside import load_json, reason
from offsetkeeper.errors import MarkError, SinkMismatch
from offsetkeeper.sinks.sink import MarkKey

if TYPE_CHECKING:
    from pyspark.sql.types import StructField

_VERSION = 1
OWN = "batch"
NOTHING_TOLD: Mapping[str, str] = MappingProxyType({})
TIMES = "spark.sql.parquet.outputTimestampType"
# A value of these types is the same after it was the name of a folder. A time is written in the session's zone, without
# its offset, so two of them may become one.
_IN_FOLDERS = frozenset({"tinyint", "smallint", "int", "bigint", "boolean", "string", "date"})

# Spark writes others as one of these, such as an interval as a number, and only Spark finds what they were.
_ATOMS = frozenset(
    {"byte", "short", "integer", "long", "float", "double", "decimal", "boolean", "string", "binary", "date"}
    | {"timestamp", "timestamp_ntz", "void"}
)


class Layout(NamedTuple):
    """How the files of a folder are written.

    Attributes:
        format: "parquet" or "json".
        partition_by: columns that are folders within the folder of a batch.
    """

    format: str
    partition_by: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.format}{' partitioned by ' if self.partition_by else ''}{', '.join(self.partition_by)}"


@dataclass(frozen=True, slots=True)
class Link:
    """One link, as its file has it.

    Attributes:
        key: group and output of the folder.
        mark: mark of the last batch that landed or was dropped; None before the first.
        next: the only sequence whose name may be taken next.
        layout: layout of the files.
        columns: columns of the batches so far, with their types in Spark's DDL.
    """

    key: MarkKey
    mark: OutputMark | None
    next: int
    layout: Layout
    columns: Mapping[str, str]

    def dump(self, attempt: str, told: Mapping[str, str] = NOTHING_TOLD) -> bytes:
        """Return the content of its file, which is different for each attempt; see `held` for what is told."""
        mark = None if self.mark is None else str(self.mark)
        more = {"version": _VERSION, "mark": mark, "next": self.next, "columns": dict(self.columns), "attempt": attempt}
        return json.dumps({**more, **self.key._asdict(), **self.layout._asdict(), **told}, ensure_ascii=False).encode()

    @classmethod
    def parse(cls, content: bytes, where: str) -> Self:
        """Return the link in a file.

        Raises:
            MarkError: the file is not a link, or was written by a newer release.
        """
        try:
            raw = load_json(content)
            version, mark = raw["version"], raw["mark"]
            layout = Layout(raw["format"], tuple(raw["partition_by"]))
            key, following, columns = MarkKey(raw["group"], raw["output"]), int(raw["next"]), dict(raw["columns"])
        except (ValueError, TypeError, KeyError) as error:
            raise MarkError(f"{where} was not written by offsetkeeper, or is damaged: {reason(error)}") from None
        if version != _VERSION:
            raise MarkError(f"{where} was written by a newer offsetkeeper (format {version}): use that release")
        return cls(key, None if mark is None else OutputMark.parse(mark), following, layout, columns)


def columns_of(fields: Sequence[StructField], layout: Layout) -> dict[str, str]:
    """Return the columns of a frame, with their types.

    Raises:
        SinkMismatch: a folder with this layout cannot have these columns.
    """
    columns = {field.name: field.dataType.simpleString() for field in fields}
    taken = [name for name in columns if name.lower() == OWN]
    if taken:
        raise SinkMismatch(f"the frame has a column {taken[0]!r}, but the batches' folders use this name: rename it")
    for field in fields:
        _check_kept(field.name, field.dataType, layout)
    alike = _alike(field.name for field in fields)
    if alike:
        raise SinkMismatch(f"the frame has {alike}: rename one")
    missing = [name for name in layout.partition_by if name not in columns]
    if missing:
        raise SinkMismatch(
            f"the frame has no column {missing[0]!r}, to partition by; its columns are {', '.join(columns)}"
        )
    changing = [name for name in layout.partition_by if columns[name] not in _IN_FOLDERS]
    if changing:
        raise SinkMismatch(
            f"the frame cannot be partitioned by {changing[0]}, which is {columns[changing[0]]}: as the name of a "
            f"folder its values may change. Use {', '.join(sorted(_IN_FOLDERS))}; of a time, its date"
        )
    return columns


def _check_kept(name: str, kind: Any, layout: Layout) -> None:
    """Check that readers find each value within a value.

    Raises:
        SinkMismatch: they do not.
    """
    inner = []
    match kind.typeName():
        case "struct":
            inner = [each.dataType for each in kind.fields]
            if alike := _alike([each.name for each in kind.fields]):
                raise SinkMismatch(f"column {name} of the frame has {alike}: rename one")
        case "array":
            inner = [kind.elementType]
        case "map":
            inner = [kind.keyType, kind.valueType]
            if layout.format == "json" and kind.keyType.simpleString() != "string":
                raise SinkMismatch(
                    f"column {name} of the frame has a map with keys of type {kind.keyType.simpleString()}, which JSON "
                    "does not keep: cast them to string, or use format='parquet'"
                )
        case other if other not in _ATOMS:
            raise SinkMismatch(
                f"column {name} of the frame has the type {kind.simpleString()}, of which only Spark's readers find "
                "the values: cast it to string"
            )
    for each in inner:
        _check_kept(name, each, layout)


def _alike(names: Iterable[str]) -> str:
    """Return which two names are the same, or differ by case alone, for a message; readers do not tell them apart."""
    seen: dict[str, str] = {}
    for name in names:
        if name.lower() in seen:
            if name == seen[name.lower()]:
                return f"the name {name} twice, and most readers find one of them"
            return f"the names {seen[name.lower()]} and {name}, which most readers do not tell apart"
        seen[name.lower()] = name
    return ""


def grown(known: Mapping[str, str], columns: Mapping[str, str]) -> Mapping[str, str]:
    """Return the columns of all batches including a new one, which may add columns and leave some out.

    Raises:
        SinkMismatch: a column has another type now, or another spelling.
    """
    before = {name.lower(): name for name in known}
    was = {name: before.get(name.lower(), name) for name in columns}
    wrong = [
        f"column {name} is {columns[name]}, but {old} {known[old]} in earlier batches"
        for name, old in was.items()
        if old in known and (old, known[old]) != (name, columns[name])
    ]
    if wrong:
        raise SinkMismatch(
            f"the frame does not fit the folder: {'; '.join(wrong)}. Nothing was written: cast or rename it in the "
            "frame, or give another folder"
        )
    return {**known, **columns}
