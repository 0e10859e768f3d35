"""A group is for one program: another one does not finish its pending batch, but a redeploy of the same one does."""

from __future__ import annotations

import re
import shlex
import sqlite3
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame
from typer.testing import CliRunner

from engines.lab import LIMIT_S, Lab, Running
from engines.marked import Died, Placed, Stall, dies, stalled
from offsetkeeper import Batch, Policies, TopicPartition
from offsetkeeper.cli.main import app
from offsetkeeper.errors import Fenced, StartRefused
from offsetkeeper.sinks import Outputs, Table, Writer

NewTopic = Callable[..., str]


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """Two tables, each in a database beside the store: batches are begun for them, and they keep marks."""
    for name in ("orders", "payments"):
        make_tables(tmp_path / f"{name}.db", name)
    return tmp_path


def make_tables(file: Path, *names: str) -> None:
    """Make tables in a file."""
    with closing(sqlite3.connect(file)) as connection:
        for name in names:
            connection.execute(f"create table {name} (value text)")


def rows(shop: Path, table: str, file: str = "") -> list[str]:
    """Return the values in a table, by default in a file of its name."""
    with closing(sqlite3.connect(shop / f"{file or table}.db")) as connection:
        return sorted(value for (value,) in connection.execute(f"select value from {table}"))  # noqa: S608 - ours


def parse(frame: DataFrame, _: Batch) -> DataFrame:
    """Return the tables' column."""
    return frame.selectExpr("cast(value as string) as value")


def die(frame: DataFrame, _: Batch) -> DataFrame:
    """Fail once the batch is begun."""
    return frame.selectExpr("raise_error('dead') || 'x' as value")


def failing(frame: DataFrame, _: Batch) -> DataFrame:
    """Fail with the first record."""
    return frame.where("assert_true(offset > 0, 'dead') is null")


def run(lab: Lab, *topics: str, sink: Any, process: Any = parse, **settings: Any) -> None:
    """Run a program until all is read."""
    pipeline = lab.pipeline(*topics, attempts=1, **settings)
    pipeline.run(lab.spark, process, sink=sink, guarantee="exactly_once", until="caught_up")


def begin(lab: Lab, *topics: str, sink: Any) -> None:
    """Let the first program die with a batch that is begun."""
    with pytest.raises(Exception, match="dead"):
        run(lab, *topics, sink=sink, process=die)
    assert lab.snapshot().pending is not None


def table(shop: Path, name: str) -> Table:
    return Table(f"sqlite:///{shop}/{name}.db", name)


OTHERS: Mapping[str, tuple[str, str]] = {
    "other topic and table": ("payments", "payments"),
    "other topic": ("payments", "orders"),
    "other table": ("orders", "payments"),
}


@pytest.mark.parametrize("other", OTHERS)
def test_another_program_on_the_group_is_refused_and_the_first_one_loses_nothing(
    lab: Lab, topic: NewTopic, shop: Path, other: str
) -> None:
    """It finished the batch with its own function, into its own table; the first program never got these rows.

    The table of the second program lacks batches that have landed in the first one's: that is no loss to tell of.
    """
    topics = {"orders": topic(), "payments": topic()}
    lab.produce(topics["orders"], "orders 0")
    run(lab, topics["orders"], sink=table(shop, "orders"))
    for kind, name in topics.items():
        lab.produce(name, f"{kind} 1", f"{kind} 2")
    begin(lab, topics["orders"], sink=table(shop, "orders"))
    reads, writes = OTHERS[other]
    with pytest.raises(StartRefused) as refused:
        run(lab, topics[reads], sink=table(shop, writes))
    told = f"That one reads {topics['orders']} and writes Table orders. This one reads {topics[reads]} and writes"
    assert f"{told} Table {writes}." in str(refused.value)
    assert (rows(shop, "orders"), rows(shop, "payments")) == (["orders 0"], [])
    run(lab, topics["orders"], sink=table(shop, "orders"))
    assert (rows(shop, "orders"), rows(shop, "payments")) == (["orders 0", "orders 1", "orders 2"], [])


@pytest.mark.parametrize("before", [(), ("order 0",)], ids=["first batch", "landed before"])
@pytest.mark.parametrize("other", ["other topic and table", "other table"])
def test_another_program_finishes_the_batch_if_its_policy_says_so(
    lab: Lab, topic: NewTopic, shop: Path, before: tuple[str, ...], other: str
) -> None:
    """What has landed in the first program's table under the same name is no loss of this one's."""
    topics = {"orders": topic(), "payments": topic()}
    if before:
        lab.produce(topics["orders"], *before)
        run(lab, topics["orders"], sink=table(shop, "orders"))
    lab.produce(topics["orders"], "order")
    lab.produce(topics["payments"], "payment")
    begin(lab, topics["orders"], sink=table(shop, "orders"))
    reads, writes = OTHERS[other]
    finish = Policies(pending="finish")
    run(lab, topics[reads], sink=table(shop, writes), policies=finish)
    there = ["order", "payment"] if reads == "payments" else ["order"]
    assert (rows(shop, "orders"), rows(shop, "payments")) == ([*before], there)
    lab.produce(topics[reads], "later")
    run(lab, topics[reads], sink=table(shop, writes))
    assert (rows(shop, "orders"), rows(shop, "payments")) == ([*before], sorted([*there, "later"]))


def test_a_finish_that_dies_goes_on_in_the_program_that_took_the_batch_over(
    lab: Lab, topic: NewTopic, shop: Path
) -> None:
    """The first program gets the batch back by the same policy."""
    name = topic()
    lab.produce(name, "order 0")
    run(lab, name, sink=table(shop, "orders"))
    lab.produce(name, "order 1")
    begin(lab, name, sink=table(shop, "orders"))
    finish = Policies(pending="finish")
    for policies in (finish, finish, Policies()):
        with pytest.raises(Exception, match="dead"):
            run(lab, name, sink=table(shop, "payments"), policies=policies, process=die)
    with pytest.raises(StartRefused, match="another program began it"):
        run(lab, name, sink=table(shop, "orders"))
    run(lab, name, sink=table(shop, "orders"), policies=finish)
    assert (rows(shop, "orders"), rows(shop, "payments")) == (["order 0", "order 1"], [])


class Plain:
    """An output without a mark that tells its target."""

    def __init__(self, writes_to: str) -> None:
        self.writes_to = writes_to
        self.values: list[str] = []

    def prepare(self, store: Any, guarantee: Any) -> Writer:  # noqa: ARG002 - the protocol's signature
        """See `Sink.prepare`."""
        return Writer(lambda frame, _: self.values.extend(row["value"] for row in frame.collect()))


def dying_in(*names: str) -> Callable[[DataFrame, Batch], dict[str, DataFrame]]:
    """Return a function that fails for some of the outputs a and b."""
    return lambda frame, batch: {name: (die if name in names else parse)(frame, batch) for name in ("a", "b")}


@pytest.mark.parametrize("then", ["the second goes on", "the first drops it"])
def test_an_output_of_another_program_under_the_same_name_does_not_count_as_the_first_ones(
    lab: Lab, topic: NewTopic, then: str
) -> None:
    """The second program wrote its a, and died; the first one skipped its own a, which never got the batch."""
    name, finish, drop = topic(), Policies(pending="finish"), Policies(pending="drop")
    first, second = ({side: Plain(f"{side} of {who}") for side in ("a", "b")} for who in ("first", "second"))

    def go(sinks: Mapping[str, Plain], *dies_in: str, **settings: Any) -> None:
        pipeline = lab.pipeline(name, attempts=1, **settings)
        pipeline.run(lab.spark, dying_in(*dies_in), sink=Outputs(**sinks), guarantee="at_least_once", until="caught_up")

    lab.produce(name, "1")
    go(first)
    lab.produce(name, "2")
    with pytest.raises(Exception, match="dead"):
        go(first, "a")
    with pytest.raises(Exception, match="dead"):
        go(second, "b", policies=finish)
    for policies in (Policies(), finish):
        with pytest.raises(StartRefused, match=r"output 'a' has it|another program began it"):
            go(first, policies=policies)
    if then == "the second goes on":
        go(second)
        expected = [["1"], ["1"], ["2"], ["2"]]
    else:
        go(first, policies=drop)
        expected = [["1", "2"], ["1", "2"], ["2"], []]
    assert [sink.values for sink in (*first.values(), *second.values())] == expected


def test_one_of_several_outputs_that_has_the_batch_elsewhere_is_written_here_too(
    lab: Lab, topic: NewTopic, shop: Path
) -> None:
    name = topic()
    for each in ("one", "two"):
        make_tables(shop / f"{each}.db", each)
    lab.produce(name, "1")
    first = Outputs(a=table(shop, "orders"), b=table(shop, "payments"))

    run(lab, name, sink=first, process=dying_in())
    lab.produce(name, "2")
    with pytest.raises(Exception, match="dead"):
        run(lab, name, sink=first, process=dying_in("b"))
    pending = lab.snapshot().pending
    assert pending is not None
    assert pending.written == ("a",)
    others = Outputs(a=table(shop, "one"), b=table(shop, "two"))
    run(lab, name, sink=others, process=dying_in(), policies=Policies(pending="finish"))
    assert [rows(shop, each) for each in ("orders", "payments", "one", "two")] == [["1", "2"], ["1"], ["2"], ["2"]]


def test_a_mark_that_two_tables_share_does_not_count_the_batch_as_done_in_the_other_one(
    lab: Lab, topic: NewTopic, tmp_path: Path
) -> None:
    """Both tables are in one file, with one mark for outputs of one name: the second table never got the batch."""
    name, url = topic(), f"sqlite:///{tmp_path}/shop.db"
    make_tables(tmp_path / "shop.db", "orders", "bills", "payments", "debts")
    first = Outputs(a=Table(url, "orders"), b=Table(url, "bills"))
    second = Outputs(a=Table(url, "payments"), b=Table(url, "debts"))
    lab.produce(name, "1")
    with pytest.raises(Exception, match="dead"):
        run(lab, name, sink=first, process=dying_in("b"))
    assert rows(tmp_path, "orders", "shop") == ["1"]
    with pytest.raises(StartRefused, match="but in another target than here"):
        run(lab, name, sink=second, process=dying_in(), policies=Policies(pending="finish"))
    run(lab, name, sink=first, process=dying_in())
    lab.produce(name, "2")
    run(lab, name, sink=second, process=dying_in())
    found = {each: rows(tmp_path, each, "shop") for each in ("orders", "bills", "payments", "debts")}
    assert found == {"orders": ["1"], "bills": ["1"], "payments": ["2"], "debts": ["2"]}


@dataclass
class Slow:
    """A table that calls a function before a batch lands in it, and one before a batch is staged."""

    table: Table
    before: Callable[[], object]
    staging: Callable[[], object] = lambda: None

    @property
    def writes_to(self) -> str:
        """The name of the table."""
        return self.table.writes_to

    def prepare(self, store: Any, guarantee: Any) -> Any:
        """See `Sink.prepare`."""
        lander: Any = self.table.prepare(store, guarantee)
        return replace(
            lander,
            stage=lambda *arguments: (self.staging(), lander.stage(*arguments))[1],
            land=lambda *arguments: (self.before(), lander.land(*arguments))[1],
        )


@pytest.mark.parametrize("then", ["the second drops it", "the first takes it back"])
def test_a_run_that_stalls_until_its_batch_is_taken_over_lands_it_only_in_its_own_table(
    lab: Lab, topic: NewTopic, tmp_path: Path, then: str
) -> None:
    """Both tables are in one file. The mark of the late run counted for the second table, which never got the batch."""
    name, url = topic(), f"sqlite:///{tmp_path}/shop.db"
    make_tables(tmp_path / "shop.db", "orders", "payments")
    lab.produce(name, "1")
    stall, orders, payments = Stall(), Table(url, "orders"), Table(url, "payments")
    with Running(lab.pipeline(name), lab.spark, parse, sink=Slow(orders, stall), guarantee="exactly_once") as older:
        assert stall.reached.wait(LIMIT_S)
        with pytest.raises(Exception, match="dead"):
            run(lab, name, sink=payments, process=die, policies=Policies(pending="finish"))
        stall.go.set()
        with pytest.raises(Fenced):
            older.end()
    assert (rows(tmp_path, "orders", "shop"), rows(tmp_path, "payments", "shop")) == (["1"], [])
    for policies in (Policies(), Policies(pending="finish")):
        with pytest.raises(StartRefused, match="but in another target than here") as refused:
            run(lab, name, sink=payments, policies=policies)
    assert "Policies(pending='drop') drops the batch" in str(refused.value)
    if then == "the second drops it":
        run(lab, name, sink=payments, policies=Policies(pending="drop"))
    else:
        run(lab, name, sink=orders, policies=Policies(pending="finish"))
    lab.produce(name, "2")
    run(lab, name, sink=payments)
    there = ["1", "2"] if then == "the second drops it" else ["2"]
    assert (rows(tmp_path, "orders", "shop"), rows(tmp_path, "payments", "shop")) == (["1"], there)


def test_a_record_that_fails_in_a_batch_that_the_first_program_has_landed_meanwhile_cuts_nothing(
    lab: Lab, topic: NewTopic, tmp_path: Path
) -> None:
    name, url = topic(), f"sqlite:///{tmp_path}/shop.db"
    make_tables(tmp_path / "shop.db", "orders", "payments")
    lab.produce(name, "1", "2")
    stall, orders, payments = Stall(), Table(url, "orders"), Table(url, "payments")
    with Running(lab.pipeline(name), lab.spark, parse, sink=Slow(orders, stall), guarantee="exactly_once") as older:
        assert stall.reached.wait(LIMIT_S)

        def lands_now() -> None:
            stall.go.set()
            with pytest.raises(Fenced):
                older.end()

        settings = {"policies": Policies(pending="finish", poison="quarantine")}
        letters = Placed(tmp_path / "letters.db")
        with pytest.raises(Exception, match="dead") as failed:
            run(lab, name, sink=Slow(payments, Stall, lands_now), process=die, dead_letters=letters, **settings)
    assert "the output already has the batch, so it is not cut" in "".join(failed.value.__notes__)
    assert (rows(tmp_path, "orders", "shop"), rows(tmp_path, "payments", "shop")) == (["1", "2"], [])
    assert letters.counted() == {}


def test_dead_letters_that_two_programs_share_do_not_make_them_one(lab: Lab, topic: NewTopic, tmp_path: Path) -> None:
    """The second program finished the batch by the default policy, and the first one's table never got it."""
    name, orders, payments = topic(), Placed(tmp_path / "orders.db"), Placed(tmp_path / "payments.db")
    letters = {"dead_letters": Placed(tmp_path / "letters.db"), "policies": Policies(poison="quarantine")}
    words: dict[str, Any] = {"guarantee": "exactly_once", "until": "caught_up"}
    lab.produce(name, "1", "2")
    orders.before = dies
    with pytest.raises(Died):
        lab.pipeline(name, **letters).run(lab.spark, sink=orders, **words)
    orders.before = lambda: None
    with pytest.raises(StartRefused, match=r"writes Placed orders, dead letters to Placed letters\. This one"):
        lab.pipeline(name, **letters).run(lab.spark, sink=payments, **words)
    lab.pipeline(name, **letters).run(lab.spark, sink=orders, **words)
    assert (orders.counted(), payments.counted()) == ({(0, 0): 1, (0, 1): 1}, {})


def test_dead_letters_on_their_way_are_read_again_by_a_program_that_has_none(
    lab: Lab, topic: NewTopic, tmp_path: Path
) -> None:
    """The void mark in the other output counted for the dead letters, and the record was nowhere."""
    name, orders, letters = topic(), Placed(tmp_path / "orders.db"), Placed(tmp_path / "letters.db", before=dies)
    words: dict[str, Any] = {"sink": orders, "guarantee": "exactly_once", "until": "caught_up"}
    lab.produce(name, "1", "2")
    dead = {"dead_letters": letters, "policies": Policies(poison="quarantine")}
    with pytest.raises(Died):
        lab.pipeline(name, attempts=1, **dead).run(lab.spark, failing, **words)
    pending = lab.snapshot().pending
    assert pending is not None
    assert pending.lands_in == ("dead_letters",)
    lab.pipeline(name, policies=Policies(pending="drop")).run(lab.spark, **words)
    assert (orders.counted(), letters.counted()) == ({(0, 0): 1, (0, 1): 1}, {})


@pytest.mark.parametrize("before", [(), ("1",)], ids=["first batch", "landed before"])
def test_another_program_does_not_drop_a_batch_that_a_run_which_stalls_may_still_land(
    lab: Lab, topic: NewTopic, tmp_path: Path, before: tuple[str, ...]
) -> None:
    """The mark that keeps it out would be in the other program's output, where nobody looks for it."""
    name, orders, payments = topic(), Placed(tmp_path / "orders.db"), Placed(tmp_path / "payments.db")
    words: dict[str, Any] = {"guarantee": "exactly_once", "until": "caught_up"}
    if before:
        lab.produce(name, *before)
        lab.pipeline(name).run(lab.spark, sink=orders, **words)
    lab.produce(name, "2", "3")
    orders.before = stall = Stall()
    drop = Policies(pending="drop")
    with Running(lab.pipeline(name), lab.spark, sink=orders, **words) as older:
        assert stall.reached.wait(LIMIT_S)
        with pytest.raises(StartRefused, match="may still land") as refused:
            lab.pipeline(topic(), policies=drop).run(lab.spark, sink=payments, **words)
        assert "Start that program once with Policies(pending='drop')" in str(refused.value)
        assert "Policies(pending='finish')" in str(refused.value)
        stall.go.set()
        older.end()
    lab.pipeline(name).run(lab.spark, sink=orders, **words)
    assert orders.counted() == dict.fromkeys([(0, n) for n in range(len(before) + 2)], 1)
    assert payments.counted() == {}


def test_who_follows_the_words_on_a_program_that_is_gone_skips_no_record(
    lab: Lab, topic: NewTopic, tmp_path: Path
) -> None:
    """They said to move a partition, and not where to, nor back: a record was skipped or came twice."""
    name, orders, payments = topic(2), Placed(tmp_path / "orders.db"), Placed(tmp_path / "payments.db")
    lab.produce_all(name, [(p, f"{p}-{n}") for p in (0, 1) for n in range(3)])
    words: dict[str, Any] = {"guarantee": "exactly_once", "until": "caught_up", "sink": payments}
    orders.before = dies
    with pytest.raises(Died):
        run(lab, name, sink=orders, process=None)
    drop = Policies(pending="drop")
    with pytest.raises(StartRefused, match="go back by a second one, not by undo") as refused:
        lab.pipeline(name, policies=drop).run(lab.spark, **words)
    commands = re.findall(r"offsetkeeper (reset [^;.]*--execute)", str(refused.value))
    assert len(commands) == 2
    for each in commands:
        done = CliRunner().invoke(app, [*shlex.split(each), "--store", lab.store, "--brokers", lab.kafka.bootstrap])
        assert done.exit_code == 0, done.output
    lab.pipeline(name, policies=drop).run(lab.spark, **words)
    assert (orders.counted(), payments.counted()) == ({}, {(p, n): 1 for p in (0, 1) for n in range(3)})


def test_the_program_of_a_batch_drops_it_for_good(lab: Lab, topic: NewTopic, tmp_path: Path) -> None:
    """As the refusal of another one advises."""
    name, orders = topic(), Placed(tmp_path / "orders.db")
    words: dict[str, Any] = {"guarantee": "exactly_once", "until": "caught_up"}
    lab.produce(name, "1", "2")
    with stalled(lab, name, orders, orders):
        lab.pipeline(name, topic(), policies=Policies(pending="drop")).run(lab.spark, sink=orders, **words)
    assert orders.counted() == {(0, 0): 1, (0, 1): 1}


@pytest.mark.parametrize("pending", ["own", "finish"])
@pytest.mark.parametrize("before", [False, True], ids=["first batch", "landed before"])
def test_another_program_does_not_settle_a_batch_that_a_run_which_stalls_may_still_land(
    lab: Lab, topic: NewTopic, tmp_path: Path, *, before: bool, pending: Any
) -> None:
    """Its void mark was in its own output. The stalled run landed the batch, and one partition's records came twice."""
    name, orders, payments = topic(partitions=2), Placed(tmp_path / "orders.db"), Placed(tmp_path / "payments.db")
    words: dict[str, Any] = {"guarantee": "exactly_once", "until": "caught_up"}
    lab.produce(name, "0")
    moved, first = TopicPartition(name, 0), 0 if before else 1
    lab.pipeline(name).run(lab.spark, sink=orders, offsets={moved: first}, **words)
    lab.produce(name, "1")
    lab.produce(name, "0", "1", partition=1)
    orders.before, payments.before = (stall := Stall()), dies
    with Running(lab.pipeline(name), lab.spark, sink=orders, **words) as older:
        assert stall.reached.wait(LIMIT_S)
        with lab.ledger() as ledger:
            ledger.rewind({moved: ledger.snapshot.positions[moved]._replace(offset=0)}, "again", force=True)
        with pytest.raises(StartRefused, match="dropped by a reset, and another program began it"):
            lab.pipeline(name, policies=Policies(pending=pending)).run(lab.spark, sink=payments, **words)
        stall.go.set()
        with pytest.raises(Fenced):
            older.end()
    lab.pipeline(name).run(lab.spark, sink=orders, **words)
    # The reset asks for offsets 0 and 1 of partition 0 again.
    assert orders.counted() == {(0, 0): 1 + before, (0, 1): 2, (1, 0): 1, (1, 1): 1}
    assert payments.counted() == {}


@pytest.mark.parametrize("reads", [(0, 1), (1,), (1, 2), "pattern"])
def test_a_redeploy_with_other_topics_goes_on(lab: Lab, topic: NewTopic, shop: Path, reads: Any) -> None:
    """Of topics 0 and 1, only 0 has records: the batch is of it alone, and the program that began it read both."""
    topics = [topic(), topic(), topic()]
    lab.produce(topics[0], "1", "2")
    begin(lab, *topics[:2], sink=table(shop, "orders"))
    if reads == "pattern":
        lab.pipeline(topics=re.compile("|".join(map(re.escape, topics))), attempts=1).run(
            lab.spark, parse, sink=table(shop, "orders"), guarantee="exactly_once", until="caught_up"
        )
    else:
        run(lab, *(topics[n] for n in reads), sink=table(shop, "orders"))
    assert rows(shop, "orders") == ["1", "2"]


def test_a_redeploy_with_an_output_more_goes_on(lab: Lab, topic: NewTopic, shop: Path) -> None:
    name = topic()
    lab.produce(name, "1", "2")
    begin(lab, name, sink=Outputs(orders=table(shop, "orders")))
    run(lab, name, sink=Outputs(orders=table(shop, "orders"), payments=table(shop, "payments")))
    assert rows(shop, "orders") == ["1", "2"]


def test_another_query_on_the_group_is_refused(lab: Lab, topic: NewTopic, shop: Path, tmp_path: Path) -> None:
    one, other = topic(), topic()
    lab.produce(one, "order")
    lab.produce(other, "payment")
    begin(lab, one, sink=table(shop, "orders"))
    with pytest.raises(StartRefused, match="another program began it"):
        lab.pipeline(other).start(
            lab.spark, parse, sink=table(shop, "payments"), guarantee="exactly_once", checkpoint=f"{tmp_path}/other"
        )
    run(lab, one, sink=table(shop, "orders"))
    assert (rows(shop, "orders"), rows(shop, "payments")) == (["order"], [])
