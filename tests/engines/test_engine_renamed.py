"""A redeploy that renames outputs goes on: a batch is finished under the names with which it was begun."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame

from engines.lab import LIMIT_S, Lab, Running
from engines.marked import Died, Placed, Stall, dies, hooked, nothing, stalled
from offsetkeeper import Batch, Policies, TopicPartition
from offsetkeeper.errors import Fenced, MarkAhead, Refused, StartRefused
from offsetkeeper.sinks import Cassandra, DeltaTable, Files, Outputs, Sink, Table, Topic
from offsetkeeper.sinks.sink import place_of

NewTopic = Callable[..., str]
WORDS: Mapping[str, Any] = {"guarantee": "exactly_once", "until": "caught_up"}
DROP = Policies(pending="drop")


@dataclass
class Beside:
    """A table in a file that it shares with others, and so the marks of a name.

    Attributes:
        path: of the file.
        table: its name.
        before, after: called before and after rows or a void mark land.
    """

    path: Path
    table: str
    before: Callable[[], object] = field(default=nothing)
    after: Callable[[], object] = field(default=nothing)

    def __post_init__(self) -> None:
        """Make the table."""
        with closing(sqlite3.connect(self.path)) as connection:
            connection.execute(f'create table {self.table} ("partition", "offset")')

    @property
    def writes_to(self) -> str:
        """The name of the table."""
        return self.table

    @property
    def place(self) -> str:
        """Where it is."""
        return f"{self.path} {self.table}"

    def prepare(self, store: Any, guarantee: Any) -> Any:
        """See `Sink.prepare`."""
        lander: Any = Table(f"sqlite:///{self.path}", self.table).prepare(store, guarantee)
        stage = lander.stage
        narrow = replace(lander, stage=lambda frame, batch: stage(frame.select("partition", "offset"), batch))
        return hooked(narrow, self)

    def counted(self) -> Counter[tuple[int, int]]:
        """Return how often each record is there, by partition and offset."""
        with closing(sqlite3.connect(self.path)) as connection:
            return Counter(connection.execute(f'select "partition", "offset" from {self.table}').fetchall())  # noqa: S608 - ours


Output = Beside | Placed


@pytest.fixture(params=["marks that tables share", "marks of their own"])
def outputs(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Output, Output]:
    """Two outputs that keep marks."""
    if request.param == "marks of their own":
        return Placed(tmp_path / "x.db"), Placed(tmp_path / "y.db")
    return Beside(tmp_path / "shop.db", "x"), Beside(tmp_path / "shop.db", "y")


def run(lab: Lab, topic: str, process: Any = None, sink: Any = None, **settings: Any) -> None:
    """Run a program until all is read; its sink may be written as the arguments of `Outputs`."""
    lab.pipeline(topic, attempts=1, **settings).run(lab.spark, process, sink=sink, **WORDS)


def die(lab: Lab, topic: str, at: Output, when: str, sink: Any) -> None:
    """Let a run of the program die before or after an output gets its batch."""
    setattr(at, when, dies)
    with pytest.raises(Died):
        run(lab, topic, sink=sink)
    setattr(at, when, nothing)
    assert lab.snapshot().pending is not None


def each_once(records: int, *outputs: Output) -> None:
    """Check that each output has each record once."""
    for each in outputs:
        assert each.counted() == {(0, offset): 1 for offset in range(records)}, each


@pytest.mark.parametrize(("place", "when"), [(0, "before"), (1, "before"), (1, "after")], ids=["none", "one", "all"])
@pytest.mark.parametrize("first", [True, False], ids=["first batch", "landed before"])
def test_a_redeploy_that_renames_outputs_goes_on_with_what_they_have(
    lab: Lab, topic: NewTopic, outputs: tuple[Output, Output], *, place: int, when: str, first: bool
) -> None:
    """It was refused: an output is noted to have the batch, or may have it, and none here has its name."""
    name, (x, y) = topic(), outputs
    old, new = Outputs(a=x, b=y), Outputs(orders=x, payments=y)
    count = 2
    if not first:
        lab.produce(name, "before")
        run(lab, name, sink=old)
        count += 1
    lab.produce(name, "1", "2")
    die(lab, name, outputs[place], when, old)
    run(lab, name, sink=new)
    each_once(count, *outputs)
    lab.produce(name, "3")
    run(lab, name, sink=new)
    each_once(count + 1, *outputs)
    assert {*lab.snapshot().landed} == {"a", "b", "orders", "payments"}
    lab.produce(name, "4")
    die(lab, name, y, "before", new)
    run(lab, name, sink=old)
    each_once(count + 2, *outputs)


@pytest.mark.parametrize("policies", [Policies(), DROP], ids=["finished", "dropped"])
def test_a_run_under_the_old_name_that_stalls_lands_nothing_twice(
    lab: Lab, topic: NewTopic, outputs: tuple[Output, Output], policies: Policies
) -> None:
    """A void mark under the new name did not keep the batch out, as it was to land under the old one."""
    name, (x, _) = topic(), outputs
    lab.produce(name, "1", "2")
    with stalled(lab, name, x, Outputs(a=x)):
        run(lab, name, sink=Outputs(orders=x), policies=policies)
    each_once(2, x)


def test_a_run_under_the_old_name_that_lands_meanwhile_is_seen(
    lab: Lab, topic: NewTopic, outputs: tuple[Output, Output]
) -> None:
    name, (x, _) = topic(), outputs
    lab.produce(name, "1", "2")
    x.before = stall = Stall()
    with Running(lab.pipeline(name), lab.spark, sink=Outputs(a=x), **WORDS) as older:
        assert stall.reached.wait(LIMIT_S)

        def lands_now(records: DataFrame, _: Batch) -> DataFrame:
            stall.go.set()
            with pytest.raises(Fenced):
                older.end()
            return records

        run(lab, name, lands_now, sink=Outputs(orders=x))
    each_once(2, x)


@pytest.mark.parametrize("landed", [False, True], ids=["nowhere", "landed"])
def test_a_batch_that_a_reset_has_dropped_is_settled_under_its_old_name(
    lab: Lab, topic: NewTopic, outputs: tuple[Output, Output], *, landed: bool
) -> None:
    """The reset leaves out the first record of partition 0. It does not name partition 1."""
    name, (x, _) = topic(partitions=2), outputs
    for partition in (0, 1):
        lab.produce(name, "1", "2", partition=partition)
    x.before = stall = Stall()
    with Running(lab.pipeline(name), lab.spark, sink=Outputs(a=x), **WORDS) as older:
        assert stall.reached.wait(LIMIT_S)
        if landed:
            x.after = dies
            stall.go.set()
            with pytest.raises(Died):
                older.end()
            x.after = nothing
        with lab.ledger() as ledger:
            moved = TopicPartition(name, 0)
            ledger.rewind({moved: ledger.snapshot.positions[moved]._replace(offset=1)}, "without the first", force=True)
        run(lab, name, sink=Outputs(orders=x))
        if not landed:
            stall.go.set()
            with pytest.raises(Fenced):
                older.end()
    assert x.counted() == {**({(0, 0): 1} if landed else {}), (0, 1): 1 + landed, (1, 0): 1, (1, 1): 1}


def test_one_output_becomes_one_of_several_and_back(lab: Lab, topic: NewTopic, outputs: tuple[Output, Output]) -> None:
    name, (x, y) = topic(), outputs
    several = Outputs(orders=x, audit=y)
    lab.produce(name, "1")
    die(lab, name, x, "after", x)
    run(lab, name, sink=several)
    each_once(1, *outputs)
    lab.produce(name, "2")
    die(lab, name, x, "before", several)
    with pytest.raises(StartRefused, match="may be in output 'audit'"):
        run(lab, name, sink=x)
    run(lab, name, sink=several)
    each_once(2, *outputs)


def test_outputs_that_have_swapped_their_names_are_refused(
    lab: Lab, topic: NewTopic, outputs: tuple[Output, Output]
) -> None:
    """X has the batch under the name that Y has now: Y got nothing, or X got it twice."""
    name, (x, y) = topic(), outputs
    lab.produce(name, "1")
    die(lab, name, y, "before", Outputs(a=x, b=y))
    with pytest.raises(StartRefused, match="a name has gone from one output to another"):
        run(lab, name, sink=Outputs(b=x, a=y))
    run(lab, name, sink=Outputs(orders=x, b=y))
    each_once(1, *outputs)


@pytest.mark.parametrize("policies", [Policies(), DROP], ids=["own", "drop"])
def test_a_name_of_the_batch_that_is_another_outputs_now_is_refused(
    lab: Lab, topic: NewTopic, outputs: tuple[Output, Output], policies: Policies
) -> None:
    """The run that stalls would land the batch under the name that the new output writes to."""
    name, (x, y) = topic(), outputs
    lab.produce(name, "1")
    with stalled(lab, name, x, Outputs(a=x)):
        with pytest.raises(StartRefused, match="names that no output had before"):
            run(lab, name, sink=Outputs(orders=x, a=y), policies=policies)
        run(lab, name, sink=Outputs(orders=x, c=y), policies=policies)
    each_once(1, *outputs)


def test_the_function_and_its_batch_have_the_names_of_the_program(
    lab: Lab, topic: NewTopic, outputs: tuple[Output, Output]
) -> None:
    name, (x, y) = topic(), outputs
    lab.produce(name, "1")
    die(lab, name, y, "before", Outputs(a=x, b=y))
    seen = list[Any]()

    def process(records: DataFrame, batch: Batch) -> dict[str, DataFrame]:
        seen.append(batch.written)
        return {"orders": records.where("false"), "payments": records}

    run(lab, name, process, sink=Outputs(orders=x, payments=y))
    assert seen == [("orders",)]
    each_once(1, *outputs)


def test_a_record_that_fails_is_cut_out_of_a_batch_that_was_begun_under_old_names(
    lab: Lab, topic: NewTopic, outputs: tuple[Output, Output], tmp_path: Path
) -> None:
    name, (x, y), letters = topic(), outputs, Placed(tmp_path / "letters.db")
    lab.produce(name, "1", "bad", "3")
    with stalled(lab, name, x, Outputs(a=x, b=y)):
        run(
            lab,
            name,
            lambda frame, _: frame.where("assert_true(cast(value as string) != 'bad') is null"),
            sink=Outputs(orders=x, payments=y),
            dead_letters=letters,
            policies=Policies(poison="quarantine"),
        )
    for each in outputs:
        assert each.counted() == {(0, 0): 1, (0, 2): 1}
    assert letters.counted() == {(0, 1): 1}


@pytest.mark.parametrize("when", ["before", "after"])
def test_an_output_that_was_added_while_the_batch_was_pending_may_be_renamed_too(
    lab: Lab, topic: NewTopic, outputs: tuple[Output, Output], when: str
) -> None:
    """The ledger knew it only by its name there, so the next release wrote the batch into it once more."""
    name, (x, y) = topic(), outputs
    lab.produce(name, "1")
    die(lab, name, x, "before", Outputs(a=x))
    die(lab, name, y, when, Outputs(a=x, added=y))
    run(lab, name, sink=Outputs(a=x, other=y))
    each_once(1, *outputs)


def test_an_output_that_was_added_gets_its_void_mark_under_its_first_name(
    lab: Lab, topic: NewTopic, outputs: tuple[Output, Output]
) -> None:
    name, (x, y) = topic(), outputs
    lab.produce(name, "1")
    die(lab, name, x, "before", Outputs(a=x))
    with stalled(lab, name, y, Outputs(added=y, a=x)):
        run(lab, name, sink=Outputs(a=x, other=y), policies=DROP)
    each_once(1, *outputs)


def test_a_release_that_added_an_output_may_be_rolled_back_after_the_batch_that_goes_there_too(
    lab: Lab, topic: NewTopic, outputs: tuple[Output, Output]
) -> None:
    """The release before cannot ask the output whether it has the batch."""
    name, (x, y) = topic(), outputs
    lab.produce(name, "1")
    die(lab, name, x, "before", Outputs(a=x))
    die(lab, name, y, "before", Outputs(a=x, added=y))
    with pytest.raises(StartRefused, match="may be in output 'added', which keeps a mark, but the program has no such"):
        run(lab, name, sink=Outputs(a=x))
    run(lab, name, sink=Outputs(a=x, added=y))
    lab.produce(name, "2")
    run(lab, name, sink=Outputs(a=x))
    each_once(2, x)
    each_once(1, y)


def test_a_later_batch_under_the_new_name_is_told_before_anything_is_written(
    lab: Lab, topic: NewTopic, outputs: tuple[Output, Output], tmp_path: Path
) -> None:
    """The ledger is from before the new name: the batch was finished, and the next one came into the first output."""
    name, (x, y) = topic(), outputs
    for value in ("1", "2"):
        lab.produce(name, value)
        run(lab, name, sink=Outputs(orders=x))
    restored = replace(lab, store=f"sqlite:///{tmp_path}/restored.db")
    die(restored, name, x, "before", Outputs(y=y, a=x))
    written = y.counted()
    with pytest.raises(MarkAhead, match="output 'orders' has batch 2"):
        run(restored, name, sink=Outputs(y=y, orders=x))
    assert y.counted() == written


def test_a_folder_may_be_renamed_and_two_outputs_may_not_share_it(lab: Lab, topic: NewTopic, tmp_path: Path) -> None:
    """Its mark is of the folder, whatever the output is called."""
    name, x, folder = topic(), Placed(tmp_path / "x.db"), Files(f"{tmp_path}/orders")

    def select(records: DataFrame, _: Batch) -> DataFrame:
        return records.select("topic", "partition", "offset")

    lab.produce(name, "1")
    die(lab, name, x, "before", Outputs(a=folder, b=x))
    for sink in (Outputs(orders=folder, b=x), Outputs(items=folder, b=x), Outputs(orders=folder, b=x)):
        run(lab, name, select, sink=sink)
        lab.produce(name, "more")
    assert sorted(row["offset"] for row in lab.spark.read.parquet(f"{tmp_path}/orders").collect()) == [0, 1, 2]
    with pytest.raises(Refused, match="the target of output 'two' is that of output 'one'"):
        run(lab, name, select, sink=Outputs(one=folder, two=Files(f"{tmp_path}/orders")))


def test_the_same_name_on_another_server_is_another_output(lab: Lab, topic: NewTopic, tmp_path: Path) -> None:
    """The first batch had landed in X, and no mark in the other one could say so: it had the batch too."""
    name, x = topic(), Placed(tmp_path / "orders.db")
    (tmp_path / "other").mkdir()
    other = Placed(tmp_path / "other" / "orders.db")
    lab.produce(name, "1")
    die(lab, name, x, "after", Outputs(a=x))
    with pytest.raises(StartRefused, match="may be in output 'a', which keeps a mark, but the program has no"):
        run(lab, name, sink=Outputs(b=other))
    run(lab, name, sink=Outputs(b=x))
    each_once(1, x)
    assert other.counted() == {}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Table("sqlite:///one.db", "orders"), Table("sqlite:///two.db", "orders")),
        (Table("mysql://me:secret@one/shop", "orders"), Table("mysql://me:secret@one/store", "orders")),
        (Topic("one:9092", "orders"), Topic("two:9092", "orders")),
        (Topic("one:9092", "orders"), Topic("one:9092", "orders", prefix="team")),
        (Topic("one:9092", "orders"), Topic("one:9092", "orders", mark_topic="marks")),
        (Files("hdfs://one/orders"), Files("hdfs://two/orders")),
        (DeltaTable("/one/orders"), DeltaTable("/two/orders")),
        (
            Cassandra("cassandra://one/shop", "orders", key=["id"]),
            Cassandra("cassandra://two/shop", "orders", key=["id"]),
        ),
    ],
    ids=lambda sink: repr(sink) if isinstance(sink, Sink) else "",
)
def test_a_place_has_all_that_decides_where_a_mark_is_and_no_secret(one: Any, other: Any) -> None:
    assert one.place != other.place
    assert "secret" not in one.place
    assert place_of(one) != place_of(other)


def test_outputs_that_share_their_place_may_not_be_renamed_while_a_batch_is_pending(
    lab: Lab, topic: NewTopic, tmp_path: Path
) -> None:
    name, x = topic(), Placed(tmp_path / "x.db")
    lab.produce(name, "1")
    die(lab, name, x, "after", Outputs(a=x))
    for pending in ("own", "drop"):
        with pytest.raises(StartRefused, match="was begun for output 'a', and several outputs have its place"):
            run(lab, name, sink=Outputs(b=x, c=replace(x)), policies=Policies(pending=pending))
    run(lab, name, sink=Outputs(b=x))
    each_once(1, x)


def test_an_output_that_a_redeploy_adds_in_the_place_of_another_may_not_be_renamed_before_its_batch_is_done(
    lab: Lab, topic: NewTopic, tmp_path: Path
) -> None:
    """It had the batch under its first name, and got it once more under the next one."""
    name, x = topic(), Placed(tmp_path / "x.db")
    more = replace(x)
    lab.produce(name, "1")
    die(lab, name, x, "before", Outputs(a=x))
    die(lab, name, more, "after", Outputs(a=x, added=more))
    with pytest.raises(StartRefused, match="was begun for output 'added', and several outputs have its place"):
        run(lab, name, sink=Outputs(a=x, other=more))
    run(lab, name, sink=Outputs(a=x, added=more))
    assert x.counted() == {(0, 0): 2}  # once from each output
