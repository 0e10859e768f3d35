"""Two properties of every sink: the values that come out are those that went in, and so are the rows.

Hypothesis draws tables from what the server itself offers (types with modifiers, collations, constraints, triggers),
and rows. They are read back by a client that is not ours. A batch lands as it is, or is refused by a message that names
what is wrong: there is no third outcome.
"""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from itertools import count, product
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, assume, settings
from hypothesis import given as over
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from offsetkeeper.core.batch import Batch
from offsetkeeper.core.ledger import Ledger
from offsetkeeper.core.model import Guarantee
from offsetkeeper.core.offsets import OffsetRange, Position
from offsetkeeper.core.store import Store
from offsetkeeper.errors import OffsetkeeperError, OutcomeUnknown
from offsetkeeper.sinks import few
from offsetkeeper.sinks.once import Once
from offsetkeeper.sinks.sink import Joiner
from offsetkeeper.stores.memory import MemoryStore
from offsetkeeper.testing.rivals import PARTITION, next_batch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from offsetkeeper.sinks import Sink

EXAMPLES = int(os.environ.get("OFFSETKEEPER_EXAMPLES", "20"))
THOROUGH = EXAMPLES > 100
DRAWN = settings(
    max_examples=EXAMPLES,
    derandomize=not THOROUGH,  # a test of every day tries the same each day
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
)
_USUAL = few.LIMIT
FIRST, LAST = datetime(2, 1, 1), datetime(9998, 12, 31)  # noqa: DTZ001 - wall clocks
SMALL_DAYS = st.dates(date(1, 1, 1), date(9999, 12, 31))
# Texts that databases may change, merge or read as something else.
TEXTS = st.one_of(
    st.sampled_from(
        ["", " ", "a", "A", "a ", "a  ", " a", "á", "ß", "ss", "é", "e\u0301", "ﬁ", "b\t", "b\x00", "𝄞", "\u0131"]
    ),
    st.sampled_from(
        ["0", "01", "1", "1.0", "-0", "null", "NULL", "true", "\\", "'", '"', "\\N", "{}", "%s", "¥", "\u20ac"]
    ),
    st.text(max_size=6),
    st.text("abAB é", max_size=12),
)

ALIKE = st.sampled_from(
    [
        ("a", "A"),
        ("a", "a "),
        ("a", "a  ", "A"),
        ("a", "\u00e1"),
        ("ss", "\u00df"),
        ("\u00e9", "e\u0301"),
        ("", " "),
        ("1", "01"),
    ]
)
"""Texts that many collations and types take for the same."""


def whole(bits: int) -> st.SearchStrategy[int]:
    """Return whole numbers of this size, small ones and both ends more often."""
    least, most = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    return st.one_of(st.integers(least, most), st.integers(-100, 100), st.sampled_from([least, most, 12345 % most]))


def decimals(precision: int, scale: int) -> st.SearchStrategy[Decimal]:
    """Return decimals of this precision and scale."""
    most = 10**precision - 1
    unscaled = st.one_of(st.integers(-most, most), st.integers(-min(most, 1000), min(most, 1000)))
    return unscaled.map(lambda number: Decimal((number < 0, tuple(map(int, str(abs(number)))), -scale)))


WALLS = st.one_of(
    st.datetimes(FIRST, LAST),
    st.datetimes(FIRST, LAST).map(lambda at: at.replace(microsecond=at.microsecond // 1000 * 1000)),
    st.datetimes(FIRST, LAST).map(lambda at: at.replace(microsecond=0)),
)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "byte": whole(8),
    "short": whole(16),
    "int": whole(32),
    "long": whole(64),
    "float": st.floats(width=32),
    "double": st.floats(),
    "boolean": st.booleans(),
    "string": TEXTS,
    "binary": st.binary(max_size=6),
    "date": SMALL_DAYS,
    "timestamp": WALLS.map(lambda at: at.replace(tzinfo=UTC)),
    "timestamp_ntz": WALLS,
    "decimal(5,2)": decimals(5, 2),
    "decimal(20,0)": decimals(20, 0),
    "decimal(38,10)": decimals(38, 10),
}


class Kind(NamedTuple):
    """A column of a table, and the values for it.

    Attributes:
        declared: its type in the table, as its server writes it.
        spark: Spark's type of the values.
        values: the values, without null.
    """

    declared: str
    spark: str
    values: st.SearchStrategy[Any]

    def __repr__(self) -> str:
        return f"Kind({self.declared!r}, {self.spark!r})"  # the values may be thousands of characters


class Row(NamedTuple):
    """A row of an upsert: where its record is in Kafka, its key, and a value."""

    topic: str
    partition: int
    offset: int
    key: tuple[Any, ...]
    item: str


_MOST_KEYS = 6
COLUMNS = "topic string, partition int, offset long"


@pytest.mark.filterwarnings("ignore:Generating overly large repr")  # of all characters that a column may hold
class Exactness:
    """The two properties. A subclass says how its tables are made and read.

    Attributes:
        numbers: gives each table a name of its own.
        here: whether a thorough run may do the work of the tasks in this process.
        whole, text: the types of a number and of a text in its tables.
        parts: whether readers see a part of a batch that was refused.
        store: a store in the sink's database, if rows and offsets can be one transaction: half of the batches land so.
        share: which part of the examples of a thorough run must land at least, so that the property shows something.
    """

    numbers = count()
    here = False
    whole = "int"
    text = "text"
    parts = False
    store: Store | None = None
    share = 0.0

    def kinds(self) -> st.SearchStrategy[Kind]:
        """Return columns with values; most of them fit."""
        raise NotImplementedError

    def keys(self) -> st.SearchStrategy[Kind]:
        """Return columns that may be in a key, with values of which several may be equal for the server."""
        raise NotImplementedError

    def obstacles(self) -> st.SearchStrategy[str]:
        """Return statements that make a table `{name}` with columns `id` and `item` take fewer rows, or none."""
        return st.just("")

    def triggers(self, column: str, kind: Kind) -> st.SearchStrategy[str]:  # noqa: ARG002 - for subclasses
        """Return statements that make a table `{name}` change this column of a key on its way, or none."""
        return st.just("")

    def create(self, name: str, columns: dict[str, str], key: Sequence[str] = ()) -> None:
        """Make a table of these columns, with a unique key that may be null if the server has that.

        Raises:
            Exception: the server refuses such a table; another one is drawn.
        """
        raise NotImplementedError

    def run(self, statement: str) -> None:
        """Execute one of `obstacles` or `triggers`."""
        raise NotImplementedError

    def sink(self, name: str, **words: Any) -> Sink:
        """Return the sink under test."""
        raise NotImplementedError

    def read(self, name: str, columns: Sequence[str]) -> list[tuple[Any, ...]]:
        """Return these columns of all rows, in any order."""
        raise NotImplementedError

    def same(self, kind: Kind, given: Any, found: Any) -> bool:  # noqa: ARG002 - for subclasses
        """Whether the value that was found is the one that was given; a fraction with its sign, also if it is zero."""
        if isinstance(given, float) and isinstance(found, float):
            return (math.isnan(given) and math.isnan(found)) or struct.pack("d", given) == struct.pack("d", found)
        return bool(given == found)

    def test_values_come_out_as_they_went_in(self, spark: SparkSession) -> None:
        """Each value is read as it was written, or the batch is refused and the message names the column."""
        tried, landed = set[str](), set[str]()

        @DRAWN
        @over(st.data())
        def holds(data: st.DataObject) -> None:
            name = f"values{next(self.numbers)}"
            kinds = {
                f"col{place}x": kind
                for place, kind in enumerate(data.draw(st.lists(self.kinds(), min_size=1, max_size=3)))
            }
            cells = [st.one_of(kind.values, kind.values, kind.values, st.none()) for kind in kinds.values()]
            rows = data.draw(st.lists(st.tuples(*cells), min_size=1, max_size=6))
            self._made(name, {"id": self.whole, **{column: kind.declared for column, kind in kinds.items()}})
            schema = ", ".join(["id int", *(f"{column} {kind.spark}" for column, kind in kinds.items())])
            frame = made(spark, [(place, *row) for place, row in enumerate(rows)], schema, here=self.here and THOROUGH)
            tried.add(name)
            why = land(self.sink(name), frame, name, 1, self._drawn_store(data))
            found = {row[0]: row[1:] for row in self.read(name, ["id", *kinds])}
            if why is not None:
                assert any(column in str(why) for column in kinds), why
                assert self.parts or not found
                return
            landed.add(name)
            assert found.keys() == set(range(len(rows)))
            for place, row in enumerate(rows):
                for (column, kind), given_value, value in zip(kinds.items(), row, found[place], strict=True):
                    assert self.same(kind, given_value, value), (
                        f"{column} {kind.declared}: {given_value!r} came out as {value!r}"
                    )

        holds()
        self._shown(tried, landed)

    def test_an_append_adds_its_rows(self, spark: SparkSession) -> None:
        """As many rows more as the frame has, or none and a message."""
        tried, landed = set[str](), set[str]()

        @DRAWN
        @over(st.data())
        def holds(data: st.DataObject) -> None:
            name = f"appended{next(self.numbers)}"
            obstacle = data.draw(self.obstacles())
            self._made(name, {"id": self.whole, "item": self.text})
            if obstacle:
                self.run(obstacle.format(name=name))
            there = 0
            store = self._drawn_store(data)
            tried.add(name)
            for sequence in range(1, data.draw(st.integers(1, 2)) + 1):
                rows = data.draw(st.lists(st.tuples(st.integers(0, 3), st.sampled_from("ab")), min_size=1, max_size=5))
                why = land(
                    self.sink(name),
                    made(spark, rows, "id int, item string", here=self.here and THOROUGH),
                    name,
                    sequence,
                    store,
                )
                found = len(self.read(name, ["id"]))
                if why is not None:
                    assert self.parts or found == there, why
                    assert name in str(why), why
                    return
                there += len(rows)
                assert found == there, obstacle
                landed.add(name)

        holds()
        self._shown(tried, landed)

    def test_an_upsert_has_one_row_for_each_key(self, spark: SparkSession) -> None:
        """Each key of the frame, by the bytes of its values, with the row of its greatest offset; or a message."""
        tried, landed = set[str](), set[str]()

        @DRAWN
        @over(st.data())
        def holds(data: st.DataObject) -> None:
            name = f"upserted{next(self.numbers)}"
            kinds = {
                f"key{place}x": kind
                for place, kind in enumerate(data.draw(st.lists(self.keys(), min_size=1, max_size=2)))
            }
            columns = {**{column: kind.declared for column, kind in kinds.items()}, "item": self.text}
            self._made(name, columns, tuple(kinds))
            trigger = data.draw(self.triggers(*next(iter(kinds.items()))))
            if trigger:
                self.run(trigger.format(name=name))
            schema = ", ".join([COLUMNS, *(f"{column} {kind.spark}" for column, kind in kinds.items()), "item string"])
            pools = [data.draw(_pool(kind)) for kind in kinds.values()]
            if data.draw(st.integers(0, 7)) == 0:
                pools[0].append(None)
            there: dict[Any, tuple[Any, str]] = {}
            store = self._drawn_store(data)
            tried.add(name)
            for sequence in range(1, data.draw(st.integers(1, 3)) + 1):
                rows = data.draw(_rows(pools))
                frame = made(
                    spark, [(*row[:3], *row.key, row.item) for row in rows], schema, here=self.here and THOROUGH
                )
                why = land(self.sink(name, mode="upsert", key=tuple(kinds)), frame, name, sequence, store)
                found = self.read(name, [*kinds, "item"])
                if why is None:
                    there |= _last(rows)
                    landed.add(name)
                else:
                    assert any(column in str(why) for column in (*kinds, *([name] if trigger else ()))), why
                if why is None or not self.parts:
                    told = sorted(map(repr, there.values())), sorted(map(repr, found)), why
                    assert self._keyed(kinds, there.values(), found), told
                if why is not None:
                    return

        holds()
        self._shown(tried, landed)

    @pytest.fixture(autouse=True)
    def usual_limit(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """What is few is drawn with each batch, and is as it was afterwards."""
        monkeypatch.setattr(few, "LIMIT", few.LIMIT)

    def _drawn_store(self, data: st.DataObject) -> Store | None:
        few.LIMIT = data.draw(st.sampled_from([_USUAL, few.NONE, few.Few(2, 1 << 20)]))
        return self.store if self.store and data.draw(st.booleans()) else None

    def _made(self, name: str, columns: dict[str, str], key: Sequence[str] = ()) -> None:
        try:
            self.create(name, columns, key)
        except Exception:  # noqa: BLE001 - whatever the server's client raises
            assume(condition=False)

    def _shown(self, tried: set[str], landed: set[str]) -> None:
        least = self.share * len(tried) if THOROUGH else 0
        print(f"{len(landed)} of {len(tried)} tables took their rows")  # noqa: T201
        assert len(landed) > least, f"of {len(tried)} tables only {len(landed)} took their rows"

    def _keyed(
        self, kinds: dict[str, Kind], there: Iterable[tuple[Any, str]], found: Iterable[tuple[Any, ...]]
    ) -> bool:
        left = [*found]
        for key, item in there:
            equal = [
                place
                for place, row in enumerate(left)
                if row[-1] == item and all(map(self.same, kinds.values(), key, row[:-1]))
            ]
            if not equal:
                return False
            del left[equal[0]]  # not `remove`, for which 0.0 is -0.0
        return not left


def _pool(kind: Kind) -> st.SearchStrategy[list[Any]]:
    drawn = st.lists(kind.values, min_size=1, max_size=3)
    if kind.spark != "string":
        return drawn
    return st.one_of(drawn, ALIKE.map(list), st.tuples(ALIKE, drawn).map(lambda both: [*both[0], *both[1]]))


def _rows(pools: Sequence[Sequence[Any]]) -> st.SearchStrategy[list[Row]]:
    """Return rows in which most keys are there, some of them several times."""
    keys = [*product(*pools)][:_MOST_KEYS]
    where = st.tuples(st.sampled_from(["a", "B"]), st.integers(0, 1), st.integers(0, 9))
    rest = st.lists(st.tuples(where, st.sampled_from(keys), st.sampled_from("wxyz")), max_size=4)
    rows = st.tuples(*(st.tuples(where, st.just(key), st.sampled_from("wxyz")) for key in keys))
    return st.tuples(rows, rest).map(lambda both: [Row(*part[0], *part[1:]) for part in (*both[0], *both[1])])


def _last(rows: Sequence[Row]) -> dict[Any, tuple[Any, str]]:
    """Return key and item of each key. A landed batch with a null key, or with two last rows of a key, is wrong."""
    of_key: dict[Any, list[Row]] = {}
    for row in rows:
        assert None not in row.key, "a null key has landed"
        of_key.setdefault(repr(row.key), []).append(row)  # as a text -0.0 is not 0.0, and NaN is NaN
    last = {}
    for text, same in of_key.items():
        end = max(row[:3] for row in same)
        ends = [row for row in same if row[:3] == end]
        assert len(ends) == 1, f"of {ends} one has landed"
        last[text] = ends[0].key, ends[0].item
    return last


class InProcess:
    """A frame whose tasks run here: a fake, so that a sink that needs no more of Spark tries thousands of tables."""

    def __init__(self, rows: pa.Table, schema: StructType) -> None:
        self.rows, self.schema = rows, schema

    def mapInArrow(self, work: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]], _: str) -> InProcess:  # noqa: N802 - Spark's name
        """Do the work of two tasks."""
        half = self.rows.num_rows // 2
        parts = (self.rows.slice(0, half), self.rows.slice(half))
        done = [batch for part in parts for batch in work(iter(part.combine_chunks().to_batches()))]
        return InProcess(pa.Table.from_batches(done), self.schema)

    def collect(self) -> list[tuple[Any, ...]]:
        """Return the rows."""
        return [tuple(row.values()) for row in self.rows.to_pylist()]


def made(spark: SparkSession, rows: Sequence[tuple[Any, ...]], schema: str, *, here: bool = False) -> DataFrame:
    """Return a frame of these rows, in two partitions; `here` if its tasks shall run in this process."""
    given: Any = StructType.fromDDL(schema)
    kinds = to_arrow_schema(given, timezone="UTC")
    arrays = [pa.array(column, kind) for column, kind in zip(zip(*rows, strict=True), kinds.types, strict=True)]
    table = pa.Table.from_arrays(arrays, schema=kinds)
    frame: Any = InProcess(table, given) if here else spark.createDataFrame(table, given).repartition(2)
    return frame  # type: ignore[no-any-return]  # of two kinds


def land(
    sink: Sink, frame: DataFrame, group: str, sequence: int, store: Store | None = None
) -> OffsetkeeperError | None:
    """Land a batch as the engine does, exactly once; return why it was refused.

    Args:
        sink: where it lands.
        frame: the rows.
        group: the consumer group.
        sequence: number of the batch, from 1.
        store: a store in the sink's database; without one the sink keeps a mark.
    """
    try:
        way = sink.prepare(store or MemoryStore("memory://"), Guarantee.EXACTLY_ONCE)
        if isinstance(way, Joiner):
            _join(way, frame, group, store)
        else:
            ranges = (OffsetRange("orders", 0, sequence - 1, sequence),)
            Once(way, "").write(frame, Batch(group, "token", sequence, ranges))  # type: ignore[arg-type]
    except OutcomeUnknown:
        raise
    except OffsetkeeperError as error:
        return error
    return None


def _join(way: Joiner, frame: DataFrame, group: str, store: Any) -> None:
    """Land the next batch in the ledger's transaction."""
    ledger = Ledger(store, group)
    ledger.acquire()
    if not ledger.snapshot.positions:
        ledger.place({PARTITION: Position(0)})
    batch = next_batch(ledger, 1)
    ledger.begin(batch)
    finish = way.stage(frame, batch)
    with ledger.transaction(batch) as connection:
        finish(connection)
