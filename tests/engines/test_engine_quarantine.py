"""Records that cannot be processed: they end in the dead letters, all others in the output, each once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import deltalake
import pyarrow as pa
import pytest
from pyspark.sql.functions import udf
from pyspark.sql.types import IntegerType

from engines.lab import Lab
from engines.marked import Died, Marked, dies
from offsetkeeper import Batch, Policies, TopicPartition
from offsetkeeper.core.batch import batch_id
from offsetkeeper.core.model import Guarantee
from offsetkeeper.errors import GuaranteeRefused, SettingsError, SinkError
from offsetkeeper.operate.outlook import outlook
from offsetkeeper.sinks import DeltaTable, Files, Idempotent, Outputs, Table, Topic
from sinks.icebergs import Lake
from sinks.topics import committed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

NewTopic = Callable[..., str]
QUARANTINE = Policies(poison="quarantine")
BAD = {(0, 3), (0, 4), (2, 7)}
"""Partition and offset of the records whose value is no number."""
PLACES = [(partition, offset) for partition in range(3) for offset in range(8)]


@pytest.fixture
def fill(lab: Lab, topic: NewTopic) -> Callable[[], str]:
    """`fill()` returns a topic with eight records in each of three partitions."""

    def fill() -> str:
        lab.produce_all(name := topic(3), [(p, "bad" if (p, n) in BAD else str(n)) for p, n in PLACES])
        return name

    return fill


@pytest.fixture
def topics(fill: Callable[[], str]) -> list[str]:
    """Such a topic; two would take twice as long."""
    return [fill()]


number = udf(lambda value: int(value.decode()), IntegerType())


def numbers(frame: DataFrame, _: Batch) -> DataFrame:
    return frame.select("topic", "partition", "offset", number("value").alias("value"))


def run(lab: Lab, topics: list[str], sink: Any, letters: Any, process: Any = numbers, **settings: Any) -> Any:
    given = {"policies": QUARANTINE, "dead_letters": letters, "attempts": 2, **settings}
    guarantee = given.pop("guarantee", "exactly_once")
    pipeline = lab.pipeline(*topics, **given)
    return pipeline.run(lab.spark, process, sink=sink, guarantee=guarantee, until="caught_up")


def test_what_fails_is_in_the_dead_letters_and_all_else_in_the_table_once(
    lab: Lab, fill: Callable[[], str], tables: Callable[[str], list[Any]]
) -> None:
    topics = [fill(), fill()]
    summary = run(lab, topics, Table(lab.store, "orders"), Table(lab.store, "letters"))
    bad = [(name, p, n) for name in sorted(topics) for p, n in sorted(BAD)]
    good = [(name, p, n, n) for name in sorted(topics) for p, n in PLACES if (p, n) not in BAD]
    assert tables("select * from orders order by 1, 2, 3") == good
    assert tables('select topic, "partition", "offset" from letters order by 1, 2, 3') == bad
    assert {value for (value,) in tables("select value from letters")} == {b"bad"}
    errors = [error for (error,) in tables("select error from letters")]
    assert [error for error in errors if "invalid literal for int()" not in error] == []
    assert (summary.quarantined, summary.offsets) == (len(bad), len(bad) + len(good))
    told = [entry for entry in lab.history() if entry.reason.startswith("quarantined: ")]
    assert [entry.event for entry in told] == ["commit"] * len(bad)
    ids = {f"group/{entry.token}/{entry.sequence}" for entry in told}
    assert {batch for (batch,) in tables("select batch from letters")} == ids


@pytest.mark.parametrize("step", ["before", "after"], ids=["before it lands", "after it landed"])
def test_a_crash_at_a_letter_leaves_each_record_in_one_place(
    step: str, lab: Lab, topics: list[str], tmp_path: Path
) -> None:
    """Output and dead letters keep marks, in places of their own."""
    output, letters = Marked(tmp_path / "output.db"), Marked(tmp_path / "letters.db")
    crashing = Marked(letters.path, **{step: dies})
    with pytest.raises(Died):
        run(lab, topics, output, crashing, failing)
    pending = lab.snapshot().pending
    assert pending is not None
    assert pending.lands_in == ("dead_letters",)
    ahead = outlook(lab.snapshot(), [], Guarantee.EXACTLY_ONCE, QUARANTINE)
    assert ahead.why.endswith("if its outputs turn out to have it, it counts as done")
    assert "policy" not in ahead.why
    run(lab, topics, output, letters, failing)
    both = output.counted() + letters.counted()
    assert letters.counted() == dict.fromkeys(BAD, 1)
    assert both == dict.fromkeys(PLACES, 1)


def test_letters_in_a_topic_say_in_headers_where_they_come_from(lab: Lab, topics: list[str], topic: NewTopic) -> None:
    letters = topic(1)
    run(lab, topics, Idempotent(lab.keep), Topic(lab.kafka.bootstrap, letters), failing, guarantee="at_least_once")
    found = [dict(each.headers or []) for each in committed(lab.kafka.bootstrap, letters)]
    assert {each.value for each in committed(lab.kafka.bootstrap, letters)} == {b"bad"}
    told = sorted(
        ((each["topic"] or b"").decode(), int(each["partition"] or 0), int(each["offset"] or 0)) for each in found
    )
    assert told == sorted((name, p, n) for name in topics for p, n in BAD)
    assert all((each["error"] or b"").startswith(b"ValueError: record ") for each in found)
    assert lab.values.count("bad") == 0
    assert len(lab.values) >= len(PLACES) - len(BAD)


REFUSED = "java.net.ConnectException: Connection refused\n\tat a.B.c(B.java:1)"
LOGGED = [
    f"ERROR cannot reach\n{REFUSED}\nCaused by: {REFUSED}",
    "ERROR\nTraceback (most recent call last):\n  File x\noffsetkeeper.errors.RangeGone: of a producer's choice",
    "ERROR\noffsetkeeper.errors.MarkAhead: of a producer's choice",
    "Record for partition orders-3 at offset 17 is invalid, cause: of a producer's choice",
]


@pytest.mark.parametrize("way", ["a cast", "a function"])
def test_a_log_line_that_tells_of_an_outage_is_a_dead_letter_as_any_other(
    lab: Lab, topic: NewTopic, tables: Callable[[str], list[Any]], way: str
) -> None:
    """A run waited as for an output that is away, or ended by words that a producer chose."""
    name = topic()
    lab.produce(name, "1", *LOGGED, "2")

    def priced(text: str) -> int:
        if not text.isdigit():
            raise ValueError(f"no price in {text}")
        return int(text)

    price = udf(lambda value: priced(value.decode()), IntegerType())

    def prices(frame: DataFrame, _: Batch) -> DataFrame:
        made = price("value") if way == "a function" else frame["value"].cast("string").cast("int")
        return frame.select("topic", "partition", "offset", made.alias("value"))

    run(lab, [name], Table(lab.store, "orders"), Table(lab.store, "letters"), prices, attempts=1)
    assert tables("select value from orders order by 1") == [(1,), (2,)]
    assert tables('select value from letters order by "offset"') == [(each.encode(),) for each in LOGGED]


def test_a_program_that_makes_every_row_wrong_quarantines_none(
    lab: Lab, topic: NewTopic, tables: Callable[[str], list[Any]]
) -> None:
    """However often it is started, and also if the program before has written some."""
    topics = [topic(2)]
    lab.produce_all(topics[0], [(p, str(n)) for p in (0, 1) for n in range(4)])

    def none(frame: DataFrame, batch: Batch) -> DataFrame:
        if batch.size and not frame.isEmpty():
            raise ValueError("a new release is broken")
        return numbers(frame, batch)

    for starts in range(2):
        with pytest.raises(ValueError, match="a new release is broken") as raised:
            run(lab, topics, Table(lab.store, "orders"), Table(lab.store, "letters"), none, attempts=1)
        assert "this program has written no other record yet" in "".join(raised.value.__notes__)
        assert tables("select count(*) from letters") == [(0,)]
        assert sum(at.offset for at in lab.snapshot().positions.values()) == 3 * (starts > 0)
        assert lab.snapshot().owner is None
        if not starts:  # the program before writes three records, and dies
            steps = iter([None] * 3)
            with pytest.raises(Died):
                run(lab, topics, Table(lab.store, "orders"), Table(lab.store, "letters"), dying(steps), max_records=1)


def test_offsets_in_a_row_are_counted_over_restarts(
    lab: Lab, topic: NewTopic, tables: Callable[[str], list[Any]]
) -> None:
    """Until a record is written, or somebody resets the group."""
    source = topic(1)
    lab.produce(source, "0", "1", *["bad"] * 6, "8")
    policies = Policies(poison="quarantine", poison_limit=3)
    to = Table(lab.store, "orders"), Table(lab.store, "letters")
    for _ in range(3):
        with pytest.raises(Exception, match="invalid literal") as raised:
            run(lab, [source], *to, policies=policies, attempts=1)
        assert "3 offsets in a row were quarantined before this one" in "".join(raised.value.__notes__)
        assert tables('select "offset" from letters order by 1') == [(2,), (3,), (4,)]
    mended = Policies(poison="quarantine", poison_limit=6)
    run(lab, [source], *to, policies=mended, attempts=1)
    assert tables('select "offset" from letters order by 1') == [(at,) for at in range(2, 8)]
    assert tables('select "offset" from orders order by 1') == [(0,), (1,), (8,)]


LETTER = pa.schema(
    [
        *(
            ("topic", pa.string()),
            ("partition", pa.int32()),
            ("offset", pa.int64()),
            ("timestamp", pa.timestamp("us", "UTC")),
        ),
        *(("key", pa.binary()), ("value", pa.binary()), ("error", pa.string()), ("batch", pa.string())),
    ]
)


def files(lab: Lab, folder: Path) -> tuple[Any, Callable[[], Any]]:
    path = str(folder / "letters")
    return Files(path), lambda: lab.spark.read.parquet(path)


def json_files(lab: Lab, folder: Path) -> tuple[Any, Callable[[], Any]]:
    path = str(folder / "letters")
    schema = "topic string, partition int, offset bigint, value binary, error string, batch_id string, batch int"
    return Files(path, format="json", partition_by=["topic"]), lambda: lab.spark.read.schema(schema).json(path)


def delta(lab: Lab, folder: Path) -> tuple[Any, Callable[[], Any]]:
    path = str(folder / "letters")
    deltalake.DeltaTable.create(path, LETTER)
    return DeltaTable(path), lambda: lab.spark.createDataFrame(
        deltalake.DeltaTable(path).to_pyarrow_table().to_pandas()
    )


def iceberg(lab: Lab, folder: Path) -> tuple[Any, Callable[[], Any]]:
    lake = Lake.made(folder / "lake")
    lake.create("letters", LETTER)
    return lake.sink("letters"), lambda: lab.spark.createDataFrame(lake.table("letters").scan().to_pandas())


@pytest.mark.parametrize("kind", [files, json_files, delta, iceberg])
@pytest.mark.usefixtures("tables")
def test_letters_go_into_each_kind_of_output_that_is_no_database(
    lab: Lab, topic: NewTopic, tmp_path: Path, kind: Callable[..., tuple[Any, Callable[[], Any]]]
) -> None:
    """`Files` has a column `batch` of its own: the first bad record of a run showed that, and stopped it for good."""
    lab.produce(name := topic(1), "0", "bad", "2", "worse")
    sink, read = kind(lab, tmp_path)
    run(lab, [name], Table(lab.store, "orders"), sink)
    found = [row.asDict() for row in read().orderBy("offset").collect()]
    assert [(row["topic"], row["partition"], row["offset"], bytes(row["value"])) for row in found] == [
        (name, 0, 1, b"bad"),
        (name, 0, 3, b"worse"),
    ]
    assert all("invalid literal" in row["error"] for row in found)
    letters = [entry for entry in lab.history() if entry.is_of_letters]
    ids = [batch_id("group", entry.token, entry.sequence) for entry in letters]
    assert [row.get("batch_id", row["batch"]) for row in found] == ids
    if "batch_id" in found[0]:
        assert [row["batch"] for row in found] == [entry.sequence for entry in letters]


@pytest.mark.parametrize("size", [24, 1], ids=["a batch", "a single record, among trials"])
def test_a_run_that_is_asked_to_stop_while_records_fail_ends_as_stopped(
    size: int, lab: Lab, topics: list[str], tables: Callable[[str], list[Any]]
) -> None:
    """The next run goes on with them: nothing is lost, and no error is told."""
    pipeline = lab.pipeline(*topics, policies=QUARANTINE, dead_letters=Table(lab.store, "letters"), attempts=1)

    def stopping(frame: DataFrame, batch: Batch) -> DataFrame:
        if batch.size and frame.filter("cast(value as string) = 'bad'").count():
            if batch.size <= size:
                pipeline.stop()
            raise ValueError("a record is bad")
        return numbers(frame, batch)

    summary = pipeline.run(lab.spark, stopping, sink=Table(lab.store, "orders"), guarantee="exactly_once")
    assert (summary.ended, summary.quarantined) == ("stopped", 0)
    run(lab, topics, Table(lab.store, "orders"), Table(lab.store, "letters"))
    assert tables('select "partition", "offset" from letters order by 1, 2') == sorted(BAD)
    assert tables('select "partition", "offset" from orders order by 1, 2') == [at for at in PLACES if at not in BAD]


def test_a_start_that_is_asked_to_stop_at_the_batch_before_leaves_its_offsets_to_the_next(
    lab: Lab, topic: NewTopic
) -> None:
    """The batch before is still pending, so nothing was set: the next start with these offsets sets them."""
    lab.produce(name := topic(1), "a", "b", "c")

    def dying(_: DataFrame, __: Batch) -> None:
        dies()

    def stopping(_: DataFrame, __: Batch) -> None:
        pipeline.stop()
        raise ValueError("a record is bad")

    offsets, given = {TopicPartition(name, 0): 1}, {"policies": QUARANTINE, "dead_letters": stopping}
    with pytest.raises(Died):
        lab.pipeline(name, **given).run(lab.spark, dying, until="caught_up")
    pipeline = lab.pipeline(name, attempts=1, **given)

    assert pipeline.run(lab.spark, stopping, until="caught_up", offsets=offsets).ended == "stopped"
    pending = lab.snapshot().pending
    assert pending is not None
    assert lab.read(name, offsets=offsets, **given) == ["a", "b", "c", "b", "c"]


def test_without_a_quarantine_the_error_says_what_finds_the_record(lab: Lab, topics: list[str], tmp_path: Path) -> None:
    pipeline = lab.pipeline(*topics, attempts=1)
    with pytest.raises(ValueError, match="record") as told:
        pipeline.run(lab.spark, failing, sink=Marked(tmp_path / "output.db"), until="caught_up")
    assert "Policies(poison='quarantine') finds it" in "".join(told.value.__notes__)


def test_where_no_records_fail_too_none_is_quarantined(
    lab: Lab, topics: list[str], tables: Callable[[str], list[Any]]
) -> None:
    def broken(frame: DataFrame, _: Batch) -> DataFrame:
        return frame.select("no_such_column")

    with pytest.raises(Exception, match="no_such_column") as raised:
        run(lab, topics, Table(lab.store, "orders"), Table(lab.store, "letters"), broken)
    assert "it also fails without records" in "".join(raised.value.__notes__)
    assert tables("select count(*) from letters") == [(0,)]


def test_where_one_of_several_outputs_has_the_batch_the_run_stops_and_mended_code_finishes_it(
    lab: Lab, topics: list[str], tmp_path: Path
) -> None:
    """It cannot be cut any more. So nothing is dropped in the others either, and the next run writes what lacks."""
    one, two, letters = (Marked(tmp_path / f"{name}.db") for name in ("one", "two", "letters"))
    outputs = Outputs(one=one, two=two)

    def half_broken(frame: DataFrame, _: Batch) -> dict[str, DataFrame]:
        return {"one": frame, "two": frame.where(number("value") >= 0)}

    for _ in range(2):
        with pytest.raises(Exception, match="invalid literal") as raised:
            run(lab, topics, outputs, letters, half_broken)
        assert "output 'one' already has the batch, so it is not cut" in "".join(raised.value.__notes__)
    pending = lab.snapshot().pending
    assert pending is not None
    assert pending.written == ("one",)
    run(lab, topics, outputs, letters, lambda frame, _: frame)
    everything = dict.fromkeys(PLACES, 1)
    assert (one.counted(), two.counted(), letters.counted()) == (everything, everything, {})


def test_an_output_that_is_away_is_no_poison(lab: Lab, topics: list[str]) -> None:
    def away(_: DataFrame, __: Batch) -> None:
        raise SinkError("the service is away")

    with pytest.raises(SinkError, match="away"):
        run(lab, topics, away, lab.keep, None, guarantee="at_least_once")
    assert lab.values == []


def test_what_cannot_be_kept_is_refused_before_anything_is_read(lab: Lab, topics: list[str], tmp_path: Path) -> None:
    kept = Marked(tmp_path / "output.db")
    with pytest.raises(GuaranteeRefused, match="a batch is committed before it is written"):
        run(lab, topics, lab.keep, lab.keep, None, guarantee="at_most_once")
    for sink, letters in ((Idempotent(lab.keep), kept), (kept, Idempotent(lab.keep))):
        with pytest.raises(GuaranteeRefused, match="it is unknown whether the output"):
            run(lab, topics, sink, letters, failing)
    for given in ({"policies": QUARANTINE}, {"dead_letters": kept}):
        with pytest.raises(SettingsError, match="go together: give both or neither"):
            lab.pipeline(*topics, **given)
    with pytest.raises(SettingsError, match="is the name of Pipeline"):
        Outputs(dead_letters=kept)
    with pytest.raises(SettingsError, match="the checkpoint of a query fixes the content of a batch"):
        lab.pipeline(*topics, policies=QUARANTINE, dead_letters=kept).start(
            lab.spark, sink=kept, checkpoint=str(tmp_path / "checkpoint")
        )
    assert lab.events() == []


def dying(steps: Iterator[None]) -> Callable[[DataFrame, Batch], DataFrame]:
    """Return a program that dies after so many batches."""

    def process(frame: DataFrame, batch: Batch) -> DataFrame:
        try:
            next(steps)
        except StopIteration:
            raise Died from None
        return numbers(frame, batch)

    return process


def failing(frame: DataFrame, batch: Batch) -> DataFrame:
    """Return the frame, unless it has one of the records that fail."""
    for r in batch.ranges:
        for partition, offset in BAD:
            if r.partition == partition and r.start <= offset < r.end:
                raise ValueError(f"record {partition} {offset}")
    return frame
