"""Files in a local folder: what readers find, what is refused, and what others may do to the folder meanwhile."""

from __future__ import annotations

import errno
import json
import os
import pickle
import shutil
import threading
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyarrow import dataset
from pyspark.sql import DataFrame, SparkSession, functions
from pyspark.sql.observation import Observation

from fixtures.nobody import nobody
from offsetkeeper.core.batch import Batch
from offsetkeeper.core.mark import Landing, OutputMark
from offsetkeeper.core.model import Guarantee
from offsetkeeper.core.offsets import OffsetRange
from offsetkeeper.errors import (
    GuaranteeRefused,
    MarkError,
    MarkMoved,
    OutcomeUnknown,
    Refused,
    RowMismatch,
    SettingsError,
    SinkError,
    SinkMismatch,
    UnknownScheme,
)
from offsetkeeper.sinks import Files, Lander, MarkKey
from offsetkeeper.sinks.files import local
from offsetkeeper.sinks.once import Once
from offsetkeeper.stores.memory import MemoryStore

KEY = MarkKey("shop", "")
VARIANTS = ["parse_json('1.50')"] if hasattr(functions, "parse_json") else []
"""A type of Spark 4."""

HIDDEN = "_offsetkeeper"
Write = Callable[..., object]


def once(folder: Path, **settings: Any) -> Once:
    """Return the rule over a sink that is opened anew."""
    lander = Files(folder, **settings).prepare(MemoryStore("memory://"), Guarantee.EXACTLY_ONCE)
    return Once(lander, "")


def batch_of(sequence: int) -> Batch:
    """Return a batch."""
    return Batch("shop", f"token{sequence}", sequence, (OffsetRange("orders", 0, sequence, sequence + 1),))


def names(folder: Path) -> list[str]:
    """Return the names in a folder."""
    return sorted(each.name for each in folder.iterdir())


def attempts(folder: Path) -> list[str]:
    """Return the names of the attempts that are there, without their random part."""
    return [name.partition("-")[0] for name in names(folder / HIDDEN) if name != "owner"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder that is not there yet."""
    return tmp_path / "lake é" / "orders #1%20?"


@pytest.fixture
def sql(spark: SparkSession) -> Callable[[str], DataFrame]:
    """`sql(query)` in one partition."""
    return lambda query: spark.sql(query).coalesce(1)


@pytest.fixture
def write(folder: Path, sql: Callable[[str], DataFrame]) -> Write:
    """`write(sequence, query)` lands a batch, by a program of its own."""
    return lambda sequence, query="select 'tea' as item", **settings: once(folder, **settings).write(
        sql(query), batch_of(sequence)
    )


@pytest.fixture
def rows(spark: SparkSession, folder: Path) -> Callable[..., list[Any]]:
    """`rows(*columns)` returns what a plain read finds."""

    def read(*columns: str, format: str = "parquet", **options: str) -> list[Any]:  # noqa: A002 - Spark's word
        found = spark.read.options(**options).format(format).load(str(folder))
        return sorted(tuple(row) for row in found.select(*columns).collect())

    return read


@pytest.mark.parametrize("format", ["parquet", "json"])
def test_a_plain_read_finds_whole_batches_and_their_numbers(write: Write, rows: Any, format: str) -> None:  # noqa: A002
    write(1, "select explode(array('tea', 'milk')) as item", format=format)
    write(2, "select 'salt' as item", format=format)
    assert rows("batch", "item", format=format) == [(1, "milk"), (1, "tea"), (2, "salt")]


def test_columns_get_folders_of_their_own(folder: Path, write: Write, rows: Any) -> None:
    for sequence in (1, 2):
        write(sequence, f"select {sequence} as n, explode(array('de', 'fr')) as country", partition_by=["country"])
    assert rows("batch", "country", "n") == [(1, "de", 1), (1, "fr", 1), (2, "de", 2), (2, "fr", 2)]
    assert (folder / "batch=2" / "country=fr").is_dir()


@pytest.mark.parametrize("partition_by", [[], ["item"]])
def test_batches_without_rows_and_those_that_were_dropped_are_no_trouble_to_readers(
    folder: Path, write: Write, rows: Any, partition_by: list[str]
) -> None:
    query = "select 'tea' as item, 1 as n"
    write(1, f"{query} where false", partition_by=partition_by)
    assert once(folder, partition_by=partition_by).make_void(batch_of(2)).landing is Landing.VOID
    write(3, query, partition_by=partition_by)
    write(4, f"{query} where false", partition_by=partition_by)
    assert once(folder, partition_by=partition_by).make_void(batch_of(5)).landing is Landing.VOID
    assert rows("batch", "item", "n") == [(3, "tea", 1)]
    assert names(folder / "batch=5") == [HIDDEN]


def test_a_schema_may_grow_and_shrink(write: Write, rows: Any) -> None:
    write(1)
    write(2, "select 'milk' as item, 2 as n")
    write(3, "select 3 as n")
    assert rows("batch", "item", "n", mergeSchema="true") == [(1, "tea", None), (2, "milk", 2), (3, None, 3)]
    assert rows("batch") == [(1,), (2,), (3,)]


@pytest.mark.parametrize(
    ("query", "why"),
    [
        ("select 'a' as item, 2L as n", "column n is bigint, but n int in earlier batches"),
        ("select 'a' as Item", "column Item is string, but item string in earlier"),
        ("select named_struct('a', 1) as item", "column item is struct<a:int>, but item string"),
        ("select 'a' as item, 1 as Batch", "has a column 'Batch'"),
        ("select 'a' as item, make_interval(1) as span", "column span of the frame has the type interval"),
        ("select named_struct('a', 1, 'A', 2) as item", "column item of the frame has the names a and A"),
        ("select 'a' as item, 1 as x, 2 as x", "the frame has the name x twice"),
    ],
)
def test_a_frame_that_does_not_fit_is_refused_and_the_column_named(
    folder: Path, write: Write, query: str, why: str
) -> None:
    write(1, "select 'a' as item, 1 as n")
    write(2)  # a column that is left out keeps its type
    with pytest.raises(SinkMismatch, match=why):
        write(3, query)
    assert once(folder).mark("shop") == OutputMark.of(batch_of(2))
    write(3)


@pytest.mark.parametrize("zone", ["Europe/Berlin", "UTC"])
@pytest.mark.parametrize("kind", ["json", "parquet"])
def test_times_come_back_to_the_microsecond(
    folder: Path, write: Write, spark: SparkSession, kind: str, zone: str
) -> None:
    """Spark's JSON cut them to milliseconds. The hour of the change to winter time is there twice."""
    times = ["2026-10-25 00:30:00.123987", "2026-10-25 01:30:00.000001", "0001-01-01 00:00:00", "9999-12-31 23:59:59"]
    rows = ", ".join(f"(timestamp'{each} UTC', timestamp_ntz'{each}', date'{each[:10]}')" for each in times)
    query = f"select * from values {rows} as t(at, local, day)"  # noqa: S608 - ours
    kept = ("unix_micros(at)", "string(local)", "string(day)")
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        write(1, query, format=kind)
        reader = spark.read.schema("at timestamp, local timestamp_ntz, day date").format(kind)
        found = reader.load(str(folder)).selectExpr(*kept).collect()
        assert sorted(found) == sorted(spark.sql(query).selectExpr(*kept).collect())
    finally:
        spark.conf.unset("spark.sql.session.timeZone")


@pytest.mark.parametrize("value", ["{}", "array({})", "map('a', struct({} as b))"])
@pytest.mark.parametrize("kind", ["interval '1' day", "interval '1-2' year to month", *VARIANTS])
def test_a_type_that_readers_do_not_find_is_refused(folder: Path, write: Write, value: str, kind: str) -> None:
    """Arrow found numbers, and bytes of a variant; JSON had other numbers of a variant."""
    for kept in ("parquet", "json"):
        with pytest.raises(SinkMismatch, match=r"column it of the frame has the type \w+.* cast it to string"):
            write(1, f"select 1 as n, {value.replace('{}', kind)} as it", format=kept)
    assert names(folder) == [HIDDEN]


@pytest.mark.parametrize(("kept", "at"), [("parquet", "interval '1' day"), ("json", "interval '-1' day")])
def test_what_is_cast_to_a_text_and_what_is_null_alone_is_kept(folder: Path, write: Write, kept: str, at: str) -> None:
    write(1, f"select string({at}) as it, array() as none, array(null) as nothing", format=kept)
    [file] = [each for each in folder.glob("batch=1/part-*") if each.stat().st_size]
    found = json.loads(file.read_text("utf-8")) if kept == "json" else pq.ParquetFile(file).read().to_pylist()[0]
    assert found == {"it": at.upper(), "none": [], "nothing": [None]}


@pytest.mark.parametrize("value", ["map(date'2024-02-29', 1)", "array(map(X'00FF', 1))", "struct(map(1, 1) as a)"])
def test_keys_that_json_does_not_keep_are_refused(write: Write, value: str) -> None:
    with pytest.raises(SinkMismatch, match=r"column n of the frame has a map with keys of type (date|binary|int)"):
        write(1, f"select {value} as n", format="json")
    write(1, "select map('a', 1) as n", format="json")


@pytest.mark.parametrize("name", ["_corrupt_record", "broken"])
def test_a_column_that_sparks_reader_of_json_fills_by_itself_is_refused(
    folder: Path, write: Write, sql: Any, rows: Any, spark: SparkSession, name: str
) -> None:
    """It has the lines that are no JSON there, and null in all others: a column of the frame was null."""
    setting = "spark.sql.columnNameOfCorruptRecord"
    query = f"select 1 as n, struct('b' as {name}) as s, 'a' as {name}"
    plain = str(folder.parent / "plain")
    spark.conf.set(setting, name)
    try:
        sql(query).write.json(plain)
        [found] = spark.read.json(plain).select(name, f"s.{name}").collect()
        assert tuple(found) == (None, "b")
        spark.conf.set(setting, "broken")
        with pytest.raises(SinkMismatch, match=f"the frame has a column {name}, .*Rename it"):
            write(1, query, format="json")
        write(1, f"{query}s", format="json")
        assert rows("batch", "n", f"s.{name}", f"{name}s", format="json") == [(1, 1, "b", "a")]
        if name == "broken":
            parted = str(folder.parent / "parted")
            once(Path(parted), format="json", partition_by=[name]).write(sql(query), batch_of(1))
            assert [*map(tuple, spark.read.json(parted).select(name).collect())] == [("a",)]
    finally:
        spark.conf.unset(setting)


def test_names_that_differ_by_case_alone_are_refused(write: Write, spark: SparkSession) -> None:
    spark.conf.set("spark.sql.caseSensitive", "true")
    try:
        with pytest.raises(SinkMismatch, match="the frame has the names a and A"):
            write(1, "select 1 as a, 2 as A")
    finally:
        spark.conf.unset("spark.sql.caseSensitive")


@pytest.mark.parametrize("kind", ["json", "parquet"])
@pytest.mark.parametrize(
    "frame", ["1 as a, 2 as a", "struct(1 as a, 2 as a) as s", "array(map('x', struct(1 as a, 2 as a))) as s"]
)
def test_a_name_that_is_there_twice_is_refused(write: Write, kind: str, frame: str) -> None:
    """As in struct("*") after a join. JSON was written with both, of which its readers find one."""
    with pytest.raises(SinkMismatch, match=r"(the|column s of the) frame has the name a twice"):
        write(1, f"select {frame}", format=kind)


@pytest.mark.parametrize("value", ["{}", "array(null, {})", "map('b', {})", "struct(1 as n, array(map('b', {})) as m)"])
def test_a_map_that_has_a_key_twice_is_refused_in_json(folder: Path, write: Write, value: str) -> None:
    """Its readers find one of the two values; those of Parquet find both."""
    twice, once_each = (f"from_json('{text}', 'map<string,int>')" for text in ('{"a":1,"a":2}', '{"a":1,"A":2}'))
    with pytest.raises(RowMismatch, match="column it has a map with a key that is there twice"):
        write(1, f"select {value.replace('{}', twice)} as it", format="json")
    write(1, f"select {value.replace('{}', once_each)} as it union all select null", format="json")
    lines = [line for path in folder.glob("batch=1/*.json") for line in path.read_text("utf-8").splitlines()]
    assert sorted('{"a":1,"A":2}' in line for line in lines) == [False, True]


def test_a_map_that_has_a_key_twice_is_kept_in_parquet(folder: Path, write: Write) -> None:
    write(1, """select from_json('{"a":1,"a":2}', 'map<string,int>') as it""")
    [file] = folder.glob("batch=1/*.parquet")
    assert pq.ParquetFile(file).read().to_pylist() == [{"it": [("a", 1), ("a", 2)]}]


def test_a_session_that_cuts_times_is_refused(folder: Path, write: Write, spark: SparkSession) -> None:
    spark.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MILLIS")
    try:
        with pytest.raises(SinkMismatch, match="which cuts column at to milliseconds"):
            write(1, "select timestamp'2026-01-01 00:00:00.123987' as at")
        write(1, "select 'tea' as item")
    finally:
        spark.conf.unset("spark.sql.parquet.outputTimestampType")
    assert names(folder)[-1] == "batch=1"


@pytest.mark.parametrize("value", ["date'1582-10-10'", "date'0001-01-01'", "timestamp'1582-10-14 23:59:59Z'"])
def test_days_that_a_session_writes_into_json_as_others_are_refused(
    folder: Path, write: Write, spark: SparkSession, value: str
) -> None:
    """The tenth of October 1582 became the fifteenth."""
    setting = "spark.sql.legacy.timeParserPolicy"
    spark.conf.set(setting, "legacy")
    try:
        with pytest.raises(RowMismatch, match=f"column at has a .* before 1582-10-15, .*{setting} is LEGACY"):
            write(1, f"select {value} as at", format="json")
        write(1, "select date'1582-10-15' as at, timestamp'1582-10-15 00:00:00.000001Z' as then", format="json")
    finally:
        spark.conf.unset(setting)
    [line] = [path.read_text("utf-8") for path in (folder / "batch=1").glob("*.json") if path.stat().st_size]
    assert json.loads(line) == {"at": "1582-10-15", "then": "1582-10-15T00:00:00.000001Z"}


@pytest.mark.parametrize(
    "value", ["timestamp'2026-10-25 00:30:00 UTC'", "1.5d", "cast(1.10 as decimal(3,2))", "x'00ff'"]
)
def test_a_column_whose_values_would_change_as_names_of_folders_is_refused(write: Write, value: str) -> None:
    """Two times in the hour of the change to winter time became one folder."""
    with pytest.raises(SinkMismatch, match=r"cannot be partitioned by key.*its values may change"):
        write(1, f"select 1 as n, {value} as key", partition_by=["key"])


def test_a_text_to_partition_by_that_no_folder_can_have_is_refused_and_null_is_not(
    folder: Path, write: Write, spark: SparkSession
) -> None:
    """The empty text came back as null."""
    write(
        1,
        "select * from values (1, 'de'), (2, null), (3, '01'), (4, ' '), (5, 'a=b/c%') as t(n, `my key`)",
        partition_by=["my key"],
    )
    for text in ("", "__HIVE_DEFAULT_PARTITION__"):
        with pytest.raises(RowMismatch, match=r"column my key has an empty text or .* would become null"):
            write(2, f"select 7 as n, '{text}' as `my key` union select 6, 'de'", partition_by=["my key"])
    with pytest.raises(RowMismatch, match="column my key has a text that is too long for the name of a folder"):
        write(2, "select 6 as n, concat(repeat('/', 82), 'abc') as `my key`", partition_by=["my key"])
    with pytest.raises(RowMismatch, match="column my key has the character NUL, which no name of a folder can have"):
        write(2, "select 6 as n, concat('b', char(0)) as `my key`", partition_by=["my key"])
    write(2, "select 6 as n, concat(repeat('/', 82), 'ab') as `my key`", partition_by=["my key"])
    found = spark.read.schema("n int, `my key` string").parquet(str(folder)).select("n", "my key")
    assert sorted(map(tuple, found.collect())) == [
        *((1, "de"), (2, None), (3, "01"), (4, " "), (5, "a=b/c%"), (6, "/" * 82 + "ab"))
    ]


def counted(spark: SparkSession, folder: Path) -> list[int]:
    """Return how many rows Spark and Arrow find."""
    return [
        spark.read.schema("n int").parquet(str(folder)).count(),
        dataset.dataset(folder, format="parquet", partitioning="hive").count_rows(),
    ]


@pytest.mark.parametrize(
    ("name", "texts", "why"),
    [
        ("key", ["x._COPYING_"], r"column key has a text that ends with \._COPYING_"),
        (".key", ["a"], r"partition_by=\('.key',\): .* begins with . or _"),
        ("_key", ["a"], r"partition_by=\('_key',\): .* begins with . or _"),
        ("k_.", ["._COPYING_x", "x._copying_", ".a", "_a"], ""),
    ],
)
def test_a_folder_is_refused_if_a_reader_skips_it_and_no_other(
    folder: Path, write: Write, sql: Any, spark: SparkSession, name: str, texts: list[str], why: str
) -> None:
    """Hadoop's name of a file that is being copied, and hidden names: of the rows that landed, readers found a part."""
    query = f"select int(n), `{name}` from (select posexplode(array({str(texts)[1:-1]}, 'b')) as (n, `{name}`))"  # noqa: S608 - ours
    rows = len(texts) + 1
    plain = folder.parent / "plain"
    sql(query).write.partitionBy(name).parquet(str(plain))
    assert (counted(spark, plain) != [rows, rows]) == bool(why)
    with pytest.raises((SettingsError, RowMismatch), match=why) if why else nullcontext():
        write(1, query, partition_by=[name])
    folder.mkdir(exist_ok=True)
    assert counted(spark, folder) == ([0, 0] if why else [rows, rows])


BAD, GOOD = "cast(X'FF' as string)", "'é'"


@pytest.mark.parametrize("format", ["parquet", "json"])
@pytest.mark.parametrize(
    "value", ["{}", "struct({} as a)", "array('a', {})", "map('a', {})", "array(array(named_struct('a.b', {})))"]
)
def test_a_text_that_is_none_is_refused_in_files(write: Write, format: str, value: str) -> None:  # noqa: A002
    """JSON would have another text, and Parquet one that only Spark reads."""
    with pytest.raises(RowMismatch, match="column words has a text that is not UTF-8"):
        write(1, f"select {value.replace('{}', BAD)} as words", format=format)
    write(1, f"select {value.replace('{}', GOOD)} as words union all select null", format=format)


@pytest.mark.parametrize("format", ["parquet", "json"])
def test_the_record_of_a_text_that_is_none_is_named_with_its_bytes(write: Write, format: str) -> None:  # noqa: A002
    query = "if(id = 5, cast(X'C3' as string), 'a') as words, 'or\nders' as topic, 3 as partition, id + 7 as offset"
    with pytest.raises(
        RowMismatch, match=r"^or ders 3 offset 12: column words has a text that is not UTF-8, X'C3', as"
    ):
        write(1, f"select {query} from range(9)", format=format)  # noqa: S608 - the test's own


OLD = {
    "date'1582-10-14'": {"spark.sql.parquet.datetimeRebaseModeInWrite": "LEGACY"},
    "array(timestamp'1899-12-31 12:00:00Z')": {
        "spark.sql.parquet.datetimeRebaseModeInWrite": "LEGACY",
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    },
    "timestamp'1677-12-31 12:00:00Z'": {"spark.sql.parquet.outputTimestampType": "INT96"},
    "timestamp'2262-01-01 00:00:00Z'": {"spark.sql.parquet.outputTimestampType": "INT96"},
}


@pytest.mark.parametrize("value", OLD)
def test_a_time_that_other_readers_would_misread_is_refused(
    folder: Path, write: Write, spark: SparkSession, value: str
) -> None:
    """By the settings of the session; with others they are written."""
    for name, text in OLD[value].items():
        spark.conf.set(name, text)
    try:
        with pytest.raises(RowMismatch, match=r"column old has a (date|timestamp) before .* other readers than Spark"):
            write(1, f"select {value} as old")
        write(1, "select timestamp'2024-02-29 12:00:00.000001Z' as old")
    finally:
        for name in OLD[value]:
            spark.conf.unset(name)
    assert len(list(folder.glob("batch=1/*.parquet"))) == 1


def test_a_column_to_partition_by_that_is_missing_is_refused(write: Write) -> None:
    with pytest.raises(SinkMismatch, match="no column 'country'"):
        write(1, partition_by=["country"])
    with pytest.raises(SinkMismatch, match="Spark cannot write"):
        write(1, partition_by=["item"])  # and no column is left


def test_a_schema_that_another_run_has_changed_since_it_was_staged_is_refused(folder: Path, sql: Any) -> None:
    way = once(folder).lander
    staged = way.stage(sql("select 1 as n"), batch_of(2))
    once(folder).write(sql("select 'one' as n"), batch_of(1))
    with pytest.raises(SinkMismatch, match="column n is int"):
        way.land(KEY, way.seen(KEY), OutputMark.of(batch_of(2)), staged)


def test_a_folder_is_of_one_group_and_output(folder: Path, write: Write, sql: Any) -> None:
    write(1)
    with pytest.raises(Refused, match=r"is the folder of group 'shop', not 'bar': give each its own"):
        once(folder).mark("bar")
    for name, beside in (("audit", frozenset({""})), ("dead_letters", frozenset[str]())):
        with pytest.raises(Refused, match=f"the target of output '{name}' is that of the output, by its mark"):
            Once(once(folder).lander, name, beside).write(sql("select 1 as n"), batch_of(2))
    assert Once(once(folder).lander, "renamed").mark("shop") == OutputMark.of(batch_of(1))


def test_of_two_groups_that_begin_in_one_folder_at_once_one_does(folder: Path, sql: Any) -> None:
    first, second = once(folder), once(folder)

    def land(*arguments: Any) -> None:
        first.write(sql("select 'tea' as item"), batch_of(1))
        second.lander.land(*arguments)

    other = replace(batch_of(1), group="bar")
    with pytest.raises(Refused, match="group 'shop'"):
        Once(replace(second.lander, land=land), "").write(sql("select 1 as n"), other)
    assert once(folder).mark("shop") == OutputMark.of(batch_of(1))


def test_a_folder_with_something_else_in_it_is_refused(folder: Path, spark: SparkSession) -> None:
    spark.sql("select 'old' as item").write.parquet(str(folder))
    with pytest.raises(Refused, match="which offsetkeeper did not write: give an empty folder"):
        once(folder)


def test_another_format_or_other_partitions_are_refused_at_the_start(folder: Path, write: Write) -> None:
    write(1)
    with pytest.raises(Refused, match="has parquet, not json"):
        once(folder, format="json")
    with pytest.raises(Refused, match="not parquet partitioned by item"):
        once(folder, partition_by=["item"])


@pytest.mark.parametrize("began", [0, 1], ids=["first batch", "later batch"])
@pytest.mark.parametrize("older", [4, 5, 6])
def test_an_older_run_lands_nothing_where_numbers_are_left_out(
    folder: Path, write: Write, rows: Any, sql: Any, began: int, older: int
) -> None:
    """Its batch had no name here yet: while it was dropped, the program did not have this output."""
    for sequence in range(began):
        write(sequence + 1)
    way = once(folder).lander
    staged = way.stage(sql("select 'late' as item"), batch_of(older))
    seen = way.seen(KEY)
    write(7, "select 'milk' as item")
    with pytest.raises(MarkMoved):
        way.land(KEY, seen, OutputMark.of(batch_of(older)), staged)
    assert rows("batch", "item") == [(n + 1, "tea") for n in range(began)] + [(7, "milk")]
    with pytest.raises(MarkMoved):
        way.land(KEY, way.seen(KEY), OutputMark.of(batch_of(older)), staged)


def test_an_older_run_that_stalls_after_it_left_numbers_out_lands_nothing(
    folder: Path, write: Write, rows: Any, sql: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(1)
    way = once(folder).lander
    staged = way.stage(sql("select 'late' as item"), batch_of(5))
    rename, names = os.rename, list[str]()

    def stalling(source: Any, target: Any, **at: int) -> None:
        names.append(Path(target).name)
        if names == ["batch=2", "batch=5"]:
            write(7, "select 'milk' as item")
        rename(source, target, **at)

    seen = way.seen(KEY)
    monkeypatch.setattr(os, "rename", stalling)
    with pytest.raises(MarkMoved):
        way.land(KEY, seen, OutputMark.of(batch_of(5)), staged)
    assert names == ["batch=2", "batch=5", "batch=5", "batch=7"]
    assert rows("batch", "item") == [(1, "tea"), (7, "milk")]
    assert once(folder).mark("shop") == OutputMark.of(batch_of(7))


def test_attempts_that_can_never_land_are_removed_and_no_others(folder: Path, write: Write, sql: Any) -> None:
    write(1)
    for sequence in (2, 3):
        once(folder).lander.stage(sql("select 'dead' as item"), batch_of(sequence))
    write(2)
    assert attempts(folder) == ["2", "3"]
    write(3)
    assert attempts(folder) == ["3"]
    write(4)
    assert attempts(folder) == []


def test_an_attempt_that_was_removed_is_a_clean_error(folder: Path, write: Write, rows: Any, sql: Any) -> None:
    way = once(folder).lander
    staged = way.stage(sql("select 'tea' as item"), batch_of(1))
    shutil.rmtree(folder / HIDDEN)
    with pytest.raises(SinkError, match="nothing was written"):
        way.land(KEY, way.seen(KEY), OutputMark.of(batch_of(1)), staged)
    assert not [name for name in names(folder) if name.startswith("batch=")]
    write(1)
    assert rows("item") == [("tea",)]


@pytest.mark.parametrize(("error", "told"), [(errno.EIO, OutcomeUnknown), (errno.ENOENT, OutcomeUnknown)])
def test_a_rename_that_was_done_though_an_error_was_told_is_looked_up(
    folder: Path, write: Write, rows: Any, monkeypatch: pytest.MonkeyPatch, error: int, told: type[Exception]
) -> None:
    """As NFS tells where its first answer was lost."""
    write(1)
    rename, raised = os.rename, list[int]()

    def lost(source: Any, target: Any, **at: int) -> None:
        rename(source, target, **at)
        raised.append(error)
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(os, "rename", lost)
    write(2)
    with pytest.raises(told):
        once(folder).make_void(batch_of(3))
    monkeypatch.undo()
    assert raised == [error] * 2
    assert once(folder).make_void(batch_of(3)).landing is Landing.VOID
    assert rows("batch", "item") == [(1, "tea"), (2, "tea")]


@pytest.mark.parametrize(("error", "told"), [(errno.EIO, OutcomeUnknown), (errno.ENOSPC, SinkError)])
def test_a_rename_that_failed_is_told_for_what_it_is(
    folder: Path, write: Write, monkeypatch: pytest.MonkeyPatch, error: int, told: type[Exception]
) -> None:
    write(1)

    def failing(*_: Any, **_at: int) -> None:
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(os, "rename", failing)
    with pytest.raises(told) as raised:
        write(2)
    assert raised.type is told
    monkeypatch.undo()
    assert once(folder).mark("shop") == OutputMark.of(batch_of(1))


def opened(descriptor: int) -> Path:
    """Return the folder of a descriptor."""
    return Path(f"/proc/self/fd/{descriptor}").readlink()


def test_all_is_durable_before_it_has_its_name_and_the_name_before_it_counts(
    folder: Path, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced, rename = list[str](), os.rename
    before = dict[str, set[str]]()

    def told(path: Path | str, at: int | None = None) -> None:
        synced.append(str(path if at is None else opened(at) / path))

    def renamed(source: Any, target: Any, src_dir_fd: int, dst_dir_fd: int) -> None:
        whole = opened(src_dir_fd) / source
        below = {str(each) for each in [whole, *whole.rglob("*")]} - {f"{whole}/{HIDDEN}"}
        before[target] = below - set(synced)
        if target == "batch=1":
            synced.clear()
        rename(source, target, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)

    monkeypatch.setattr(local, "sync", told)
    monkeypatch.setattr(os, "rename", renamed)
    write(1, "select 1 as n, explode(array('de', 'fr')) as country", partition_by=["country"])
    assert before == {"owner": set(), "batch=1": set()}
    assert synced == [str(folder)]
    synced.clear()
    once(folder, partition_by=["country"]).mark("shop")
    assert str(folder) in synced, "who renamed it may have died before it was durable"


def test_a_mark_that_was_deleted_is_told(folder: Path, write: Write) -> None:
    write(1)
    write(2)
    (folder / "batch=2" / HIDDEN).unlink()
    with pytest.raises(
        MarkError, match=r"batch=2 was not written by offsetkeeper, or _offsetkeeper, which has the mark, was deleted"
    ):
        once(folder)


@pytest.mark.parametrize("text", [b"", b"{}", b'{"version": 2}', b"\xff"])
def test_a_mark_that_something_else_wrote_is_told(folder: Path, write: Write, text: bytes) -> None:
    write(1)
    (folder / "batch=1" / HIDDEN).write_bytes(text)
    with pytest.raises(MarkError, match="not written by offsetkeeper"):
        once(folder)


def test_a_mark_of_a_newer_release_is_refused(folder: Path, write: Write) -> None:
    write(1)
    mark = folder / "batch=1" / HIDDEN
    mark.write_text(mark.read_text("utf-8").replace('"version": 1', '"version": 2'), "utf-8")
    with pytest.raises(MarkError, match="newer offsetkeeper"):
        once(folder)


@pytest.mark.parametrize("gone", ["", "batch=2"])
def test_a_run_whose_folder_goes_back_writes_nothing_into_it(folder: Path, write: Write, sql: Any, gone: str) -> None:
    """As where the file system is not mounted any more, or the folder was restored from a backup."""
    write(1)
    write(2)
    way = once(folder)
    way.mark("shop")
    shutil.rmtree(folder / gone)
    folder.mkdir(exist_ok=True)
    with pytest.raises(SinkError, match="has gone back"):
        way.write(sql("select 'tea' as item"), batch_of(3))
    found = once(folder).mark("shop")  # as the next start finds it
    assert found == (OutputMark.of(batch_of(1)) if gone else None)


def test_a_folder_that_is_gone_is_an_error_and_not_an_empty_one(folder: Path, write: Write, sql: Any) -> None:
    write(1)
    way = once(folder)
    shutil.rmtree(folder)
    with pytest.raises(SinkError, match="No such file"):
        way.write(sql("select 'tea' as item"), batch_of(2))
    assert not folder.exists()


def test_a_batch_that_somebody_else_put_there_is_told(folder: Path, write: Write) -> None:
    write(1)
    (folder / "batch=2").mkdir()
    with pytest.raises(MarkError, match="batch=2 was not written by offsetkeeper"):
        write(2)


def test_old_batches_may_be_emptied(folder: Path, write: Write, rows: Any) -> None:
    for sequence in (1, 2, 3):
        write(sequence)
    for each in (folder / "batch=1").glob("part-*"):
        each.unlink()
    shutil.rmtree(folder / "batch=2")
    write(4)
    assert rows("batch") == [(3,), (4,)]


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path, reachable_folder: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(Refused, match="Check the path"):
        once(tmp_path / "file" / "orders")
    reachable_folder.chmod(0o555)
    with nobody(), pytest.raises(Refused, match="Permission denied"):
        once(reachable_folder / "orders")


@pytest.mark.parametrize("url", ["s3://bucket/orders", "s3a://key:secret@bucket/orders", "gs://bucket/orders"])
def test_object_stores_are_refused(url: str) -> None:
    with pytest.raises(GuaranteeRefused, match=r"has no rename.*DeltaTable") as raised:
        Files(url)
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize("settings", [{"format": "csv"}, {"partition_by": "item"}, {"partition_by": ["a", "a"]}])
def test_wrong_arguments_are_refused(settings: Mapping[str, Any]) -> None:
    with pytest.raises(SettingsError):
        Files("/data/orders", **settings)
    with pytest.raises(UnknownScheme):
        Files("ftp://host/orders")
    with pytest.raises(UnknownScheme):
        Files("file://host/orders")


def test_a_folder_of_this_machine_is_refused_where_executors_may_be_on_others(folder: Path) -> None:
    frame = SimpleNamespace(sparkSession=SimpleNamespace(conf={"spark.master": "spark://host:7077"}))
    with pytest.raises(SettingsError, match=r"executors of spark://host:7077 .*shared=True"):
        once(folder).write(frame, batch_of(1))  # type: ignore[arg-type]
    with pytest.raises(AttributeError, match="schema"):  # it comes further
        once(folder, shared=True).write(frame, batch_of(1))  # type: ignore[arg-type]


def test_what_spark_wrote_elsewhere_is_noticed(folder: Path, sql: Any, tmp_path: Path) -> None:
    """As where driver and executors have the path, but on two machines."""
    way = once(folder)
    way.lander.seen.__self__.tree.address = f"file://{tmp_path}/elsewhere"  # type: ignore[attr-defined]
    with pytest.raises(SinkError, match="does not see it"):
        way.write(sql("select 1 as n"), batch_of(1))


@pytest.mark.parametrize("settings", [{}, {"format": "json"}, {"partition_by": ["item", "half"]}])
def test_a_task_that_has_written_elsewhere_is_noticed(
    folder: Path, spark: SparkSession, rows: Any, tmp_path: Path, settings: Mapping[str, Any]
) -> None:
    """As where a mount is missing on its machine: the other tasks' rows landed without its rows."""
    way, kept = once(folder, shared=True, **settings), settings.get("format", "parquet")
    tree = way.lander.seen.__self__.tree  # type: ignore[attr-defined]
    names_of = tree.names
    frame = spark.range(0, 40, 1, 4).selectExpr("id", "string(id % 5) as item", "id % 2 as half")

    def elsewhere(path: str) -> Any:
        for each in [*folder.glob(f"{HIDDEN}/1-*/**/part-00002-*")]:
            each.rename(tmp_path / each.name)
        return names_of(path)

    tree.names = elsewhere
    with pytest.raises(SinkError, match=r"does not see what 1 of 4 tasks have written, such as task 2: .* a mount"):
        way.write(frame, batch_of(1))
    assert way.mark("shop") is None
    assert (names(folder), attempts(folder)) == ([HIDDEN], [])
    tree.names = names_of
    way.write(frame, batch_of(1))
    assert rows("id", format=kept) == [(number,) for number in range(40)]


@pytest.mark.parametrize(
    "query",
    [
        "select id as item from range(0, 40, 1, 8) where id between 11 and 17 or id = 39",
        "select id as item from range(0, 40, 1, 8) where id < 0",
        "select 1L as item where false",
        "select id as item from range(0, 8, 1, 2) union all select id from range(9, 12, 1, 3)",
        "select count(*) as item from range(0, 40, 1, 8) group by id % 7",
        "select id as item from range(0, 40, 1, 8) order by id desc",
        "select id as item from range(0, 40, 1, 8) limit 7",
    ],
)
@pytest.mark.parametrize("settings", [{}, {"partition_by": ["country"]}])
def test_what_all_see_lands_whichever_tasks_have_rows(
    folder: Path, spark: SparkSession, rows: Any, query: str, settings: Mapping[str, Any]
) -> None:
    """A task without rows writes no file, or an empty one."""
    frame = spark.sql(query).selectExpr("item", "item % 3 as country")
    way = once(folder, shared=True, **settings)
    way.write(frame, batch_of(1))
    assert way.mark("shop") == OutputMark.of(batch_of(1))
    way.write(spark.sql("select 99L as item, 0L as country"), batch_of(2))
    assert rows("item") == [*sorted((row.item,) for row in frame.collect()), (99,)]


def test_texts_do_not_become_folders_where_capitals_do_not_count(folder: Path, write: Write) -> None:
    """`A` and `a` were one folder, and all rows were read with one of them. A link stands for such a file system."""
    write(1, "select 'A' as city, 1 as n union all select 'a', 2", partition_by=["city"])
    (folder / "_OFFSETKEEPER").symlink_to(folder / "_offsetkeeper")
    with pytest.raises(SinkMismatch, match=r"takes a and A for one name, so city in partition_by would change"):
        write(2, "select 'A' as city, 1 as n union all select 'a', 2", partition_by=["city"])
    assert (once(folder, partition_by=["city"]).mark("shop"), attempts(folder)) == (OutputMark.of(batch_of(1)), [])


def test_a_write_of_which_spark_tells_nothing_is_not_landed(
    folder: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark drops events under load: the answer would be waited for without end."""
    from offsetkeeper.sinks.files import tasks  # noqa: PLC0415 - loads pyspark

    silent = threading.Event()
    monkeypatch.setattr(tasks, "_TOLD_S", 0.05)
    monkeypatch.setattr(Observation, "get", property(lambda _: silent.wait(60)))
    way = once(folder, shared=True)
    try:
        with pytest.raises(SinkError, match=r"has not told within 0\.05 s which tasks had rows"):
            way.write(spark.range(4), batch_of(1))
    finally:
        silent.set()
    assert (way.mark("shop"), attempts(folder)) == (None, [])


def test_it_travels_to_another_process(folder: Path, write: Write) -> None:
    sink = pickle.loads(pickle.dumps(Files(f"file://{folder}")))  # noqa: S301 - our own
    assert repr(sink) == f"Files('{folder}', format='parquet')"
    way = sink.prepare(MemoryStore("memory://"), Guarantee.EXACTLY_ONCE)
    assert isinstance(way, Lander)
    write(1)
    assert way.seen(KEY).mark == OutputMark.of(batch_of(1))
