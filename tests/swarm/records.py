"""Records as they were produced, and the rows that a program makes of them. Pure, but for the frames of Spark."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

MANY = 1_000_000
"""A record's time is a multiple of so many milliseconds, plus its number: so each row tells its record."""

COLUMNS = {
    "number": "bigint",
    "copy": "int",
    "topic": "string",
    "part": "int",
    "place": "bigint",
    "key": "string",
    "value": "string",
    "heads": "string",
    "made": "int",
    "id": "string",
    "chance": "double",
}
"""Of each output, with Spark's names of their types."""

POISON = "poison"
"""A value that a program cannot process."""

LETTERS = "dead_letters"
"""The name of the output for records that fail."""

_HEADS = "array_join(transform(headers, h -> concat(h.key, '=', coalesce(string(h.value), '-'))), ',')"


class Where(NamedTuple):
    """The place of a record: a topic that is made again has another id."""

    topic: str
    topic_id: str
    partition: int
    offset: int

    @property
    def log(self) -> tuple[str, str, int]:
        """The partition's log that it is in."""
        return self[:3]


@dataclass(frozen=True)
class Record:
    """A record that Kafka has acknowledged.

    Attributes:
        where: its place.
        number: unique in its history.
        key, value, heads: its content as text; heads are all headers as the frames show them.
        aborted: whether its transaction was aborted.
        may_go: whether compaction may delete it.
    """

    where: Where
    number: int
    key: str | None
    value: str | None
    heads: str | None = None
    aborted: bool = False
    may_go: bool = False


class Row(NamedTuple):
    """A row of an output, without the random column."""

    number: int
    copy: int
    topic: str
    part: int
    place: int
    key: str | None
    value: str | None
    heads: str | None
    made: int
    id: str


@dataclass(frozen=True)
class Program:
    """What a program makes of records.

    Attributes:
        made: its number, which is in each of its rows.
        copies: rows for each record.
        skips: names of outputs that get no row of each third record.
        drops: columns that it leaves out.
        shape: further things that it does, of `SHAPES`.
        misfit: whether a column has a name that no output has.
        heads: whether its frames have headers.
        poisonous: whether it fails at a record whose value is `POISON`.
    """

    made: int = 1
    copies: int = 1
    skips: frozenset[str] = frozenset()
    drops: frozenset[str] = frozenset()
    shape: frozenset[str] = frozenset()
    misfit: bool = False
    heads: bool = False
    poisonous: bool = False

    def rows(self, record: Record, output: str) -> list[Row]:
        """Return the rows of a record in an output, with an empty id of the batch."""
        where, failed = record.where, self.poisonous and record.value == POISON
        if failed and output == LETTERS:
            place = (where.topic, where.partition, where.offset)
            return [Row(record.number, 0, *place, record.key, record.value, None, made=1, id="")]
        if failed or output == LETTERS or (output in self.skips and record.number % 3 == 0):
            return []
        kept = {"key": record.key, "value": record.value, "heads": record.heads}
        shown = {name: None if name in self.drops else text for name, text in kept.items()}
        if not self.heads:
            shown["heads"] = None
        return [
            Row(record.number, copy, where.topic, where.partition, where.offset, **shown, made=self.made, id="")
            for copy in range(self.copies)
        ]

    def frame(self, records: DataFrame, batch_id: str, output: str) -> DataFrame:
        """Return the same rows of a batch as a frame."""
        value = f"if(string(value) = '{POISON}', raise_error('poisoned'), string(value))"
        found = records.selectExpr(
            f"pmod(unix_millis(timestamp), {MANY}) as number",
            "topic",
            "partition as part",
            "offset as place",
            "string(key) as key",
            f"{value if self.poisonous else 'string(value)'} as value",
            f"{_HEADS if self.heads else 'string(null)'} as heads",
            f"int({self.made}) as made",
            f"'{batch_id}' as id",
            f"{'rand()' if 'random' in self.shape else '0.5D'} as chance",
        )
        if output in self.skips:
            found = found.where("number % 3 != 0")
        if "python" in self.shape:

            def as_it_is(batches: Any) -> Any:  # of no module that executors would need
                yield from batches

            found = found.mapInArrow(as_it_is, found.schema)
        if "union" in self.shape:
            each = [found.selectExpr("*", f"int({copy}) as copy") for copy in range(self.copies)]
            for other in each[1:]:
                each[0] = each[0].unionByName(other)
            found = each[0]
        else:
            found = found.selectExpr("*", f"explode(sequence(0, {self.copies - 1})) as copy")
        if "repartition" in self.shape:
            found = found.repartition(3)
        if "cached" in self.shape:
            found = found.persist()
        found = found.drop(*self.drops)
        return found.withColumnRenamed("value", "worth") if self.misfit else found


SHAPES = ("random", "python", "union", "repartition", "cached")
