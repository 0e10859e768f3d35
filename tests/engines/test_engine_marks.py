"""Outputs that keep a mark, under the real engine: crashes, resets, backups, and a run that wakes up late."""

from __future__ import annotations

import shlex
import shutil
import sqlite3
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame
from typer.testing import CliRunner

from engines.lab import LIMIT_S, Lab, Running
from engines.marked import Died, Marked, Stall, dies
from offsetkeeper import Batch, Policies, Position, Progress, TopicPartition
from offsetkeeper.cli.main import app
from offsetkeeper.core.model import Landed
from offsetkeeper.errors import Fenced, MarkAhead, MarkBehind, MarkMismatch, SinkError, StartRefused
from offsetkeeper.kafka import KafkaCluster
from offsetkeeper.operate.audit import Kind, audit
from offsetkeeper.operate.reset import apply_reset, plan_rewind, plan_undo
from offsetkeeper.operate.reset_plan import load_plan
from offsetkeeper.operate.reset_words import notes_of
from offsetkeeper.sinks import Idempotent, Outputs

NewTopic = Callable[..., str]
ALL = {(partition, offset): 1 for partition in (0, 1) for offset in (0, 1)}


@pytest.fixture
def output(tmp_path: Path) -> Marked:
    return Marked(tmp_path / "output.db")


@pytest.fixture
def name(lab: Lab, topic: NewTopic) -> str:
    """A topic with two records in each of two partitions."""
    name = topic(2)
    lab.produce_all(name, [(p, f"{p}-{n}") for p in (0, 1) for n in (0, 1)])
    return name


def run(lab: Lab, name: str, sink: Any, **settings: Any) -> None:
    pipeline = lab.pipeline(name, **settings)
    pipeline.run(lab.spark, sink=sink, guarantee="exactly_once", until="caught_up")


def test_what_landed_before_a_crash_is_committed_without_being_read_again(lab: Lab, name: str, output: Marked) -> None:
    output.after = dies
    with pytest.raises(Died):
        run(lab, name, output)
    assert output.counted() == ALL
    assert lab.snapshot().pending is not None
    lab.delete_records(name, 2)  # what is there needs no reading
    run(lab, name, Marked(output.path), policies=Policies(below_beginning="beginning"))
    assert output.counted() == ALL
    assert lab.events()[-2:] == ["commit", "release"]
    assert lab.snapshot().landed == {"": Landed(1)}


def test_a_batch_that_landed_is_committed_by_its_run_though_kafka_has_lost_it(
    lab: Lab, name: str, output: Marked
) -> None:
    """The run asked the policy for records that it does not read any more, and ended with `StartRefused`."""

    def fails_after_retention() -> None:
        output.after = lambda: None
        lab.delete_records(name, 2)
        raise SinkError("the output went away")

    output.after = fails_after_retention
    run(lab, name, output, attempts=2)
    assert output.counted() == ALL
    assert (lab.snapshot().pending, lab.events()[-2:]) == (None, ["commit", "release"])


def test_a_batch_that_is_to_be_dropped_and_has_landed_is_counted_and_no_position_goes_back(
    lab: Lab, name: str, output: Marked
) -> None:
    """The plan of that start begins before the batch: retention has deleted its first record, and a policy jumps."""
    output.after = dies
    with pytest.raises(Died):
        run(lab, name, output)
    lab.delete_records(name, 1)
    run(lab, name, Marked(output.path), policies=Policies(pending="drop", below_beginning="beginning"))
    assert output.counted() == ALL
    assert {at.offset for at in lab.snapshot().positions.values()} == {2}


def test_what_did_not_land_before_a_crash_is_written(lab: Lab, name: str, output: Marked) -> None:
    output.before = dies
    with pytest.raises(Died):
        run(lab, name, output)
    assert not output.counted()
    run(lab, name, Marked(output.path))
    assert output.counted() == ALL


def test_a_batch_that_kafka_lost_and_no_output_has_is_dropped_and_the_rest_is_there_once(
    lab: Lab, name: str, output: Marked
) -> None:
    """Without a mark nobody could tell, and the start would be refused."""
    output.before = dies
    with pytest.raises(Died):
        run(lab, name, output)
    lab.delete_records(name, 1)
    run(lab, name, Marked(output.path), policies=Policies(below_beginning="beginning"))
    assert output.counted() == {key: 1 for key in ALL if key != (0, 0)}
    [dropped] = [entry for entry in lab.history() if entry.event == "abandon"]
    assert "the output does not have it" in dropped.reason


@pytest.mark.parametrize("landed", [True, False])
def test_a_reset_leaves_open_what_became_of_a_batch_and_the_next_start_tells(
    lab: Lab,
    name: str,
    output: Marked,
    landed: bool,  # noqa: FBT001 - one of two cases
) -> None:
    output.after = dies if landed else output.after
    output.before = dies if not landed else output.before
    with pytest.raises(Died):
        run(lab, name, output)
    with lab.ledger() as ledger:
        ledger.rewind({TopicPartition(name, p): Position(1) for p in (0, 1)}, "again", force=True)
    assert lab.snapshot().unsettled is not None
    run(lab, name, Marked(output.path))
    again = Counter({(0, 1): 1, (1, 1): 1})
    assert output.counted() == (Counter(ALL) + again if landed else again)
    [told] = [entry for entry in lab.history() if entry.event == "settle"]
    assert told.reason == ("the output has it" if landed else "the output does not have it")


@pytest.mark.parametrize("undone", [False, True])
def test_what_a_reset_does_not_move_of_a_batch_that_landed_comes_once(
    lab: Lab,
    name: str,
    output: Marked,
    undone: bool,  # noqa: FBT001 - one of two cases
) -> None:
    """The reset skips partition 1, which the output has too. With its undo, partition 1 is the operator's word."""
    output.after = dies
    with pytest.raises(Died):
        run(lab, name, output)
    moved = TopicPartition(name, 1)
    with lab.ledger() as ledger:
        ledger.rewind({moved: Position(2)}, "skip", force=True)
        if undone:
            ledger.rewind({moved: Position(0)}, "undo")
    run(lab, name, Marked(output.path))
    again = {(1, offset): 1 for offset in (0, 1)} if undone else {}
    assert output.counted() == Counter(ALL) + Counter(again)
    findings = audit(lab.history(), lab.snapshot())
    assert [(each.kind, each.topic_partition, each.start, each.end) for each in findings] == (
        [(Kind.OVERLAP, moved, 0, 2)] if undone else []
    )


def test_an_undo_before_the_next_start_brings_a_dropped_batch_back(lab: Lab, name: str, output: Marked) -> None:
    """It has landed, so the next start counts it as done. An undo of the last reset alone does not bring it back."""
    output.after = dies
    with pytest.raises(Died):
        run(lab, name, output)
    pending = lab.snapshot().pending
    with lab.ledger() as ledger, KafkaCluster(lab.kafka.bootstrap) as cluster:
        was = ledger.load().positions
        ledger.rewind({TopicPartition(name, 1): Position(1)}, "a reset", force=True)
        ledger.rewind({TopicPartition(name, 1): was[TopicPartition(name, 1)]}, "a reset to the same place")
        ledger.rewind({TopicPartition(name, 0): Position(2)}, "another one")
        assert not plan_undo(ledger, cluster)[0].restores  # the first one has dropped the batch
        plan = plan_rewind(ledger, cluster, ledger.snapshot.version - 3)
        assert any("is pending again" in note for note in notes_of(plan))
        apply_reset(ledger, cluster, load_plan(plan.dump(), "here"), "back")
    assert lab.snapshot().pending == pending
    run(lab, name, Marked(output.path))
    assert output.counted() == ALL
    assert audit(lab.history(), lab.snapshot()) == []


def test_a_reset_of_another_topic_leaves_a_batch_that_landed_to_be_committed(
    lab: Lab, name: str, topic: NewTopic, output: Marked
) -> None:
    """Its records come once; only those of the topic that was reset come again."""
    other = topic(1)
    lab.produce_all(other, [(0, "x"), (0, "y")])
    both = [name, other]
    lab.pipeline(other).run(lab.spark, sink=Marked(output.path), guarantee="exactly_once", until="caught_up")
    before = output.counted()
    output.after = dies
    with pytest.raises(Died):
        lab.pipeline(*both).run(lab.spark, sink=output, guarantee="exactly_once", until="caught_up")
    pending = lab.snapshot().pending
    assert pending is not None
    assert {r.topic for r in pending.ranges} == {name}
    with lab.ledger() as ledger:
        ledger.rewind({TopicPartition(other, 0): Position(0)}, "again", force=True)
    assert lab.snapshot().pending == pending
    again = Marked(output.path)
    lab.pipeline(*both).run(lab.spark, sink=again, guarantee="exactly_once", until="caught_up")
    assert again.counted() == Counter(ALL) + before + before
    assert "settle" not in lab.events()


def test_an_output_that_a_redeploy_has_added_gets_a_dropped_batch_no_more(
    lab: Lab, name: str, output: Marked, tmp_path: Path
) -> None:
    """The batch was begun before, so the ledger did not know that it may land there: its records came twice."""
    with pytest.raises(Died):
        run(lab, name, Outputs(x=Marked(output.path, before=dies)))
    stall, added = Stall(), tmp_path / "added.db"
    older = {"sink": Outputs(z=Marked(added, before=stall), x=output), "guarantee": "exactly_once"}
    with Running(lab.pipeline(name), lab.spark, until="caught_up", **older) as running:
        assert stall.reached.wait(LIMIT_S)
        with lab.ledger() as ledger:
            ledger.rewind({TopicPartition(name, 0): Position(0)}, "again", force=True)
        landing = iter([True])

        def wakes_up() -> None:
            if lab.snapshot().unsettled is None and next(landing, False):  # not before the void mark
                stall.go.set()
                with pytest.raises(Fenced):
                    running.end()

        run(lab, name, Outputs(z=Marked(added, before=wakes_up), x=output), attempts=2)
    assert (Marked(added).counted(), output.counted()) == (ALL, ALL)


class Keyed:
    """A function's output without a mark: a record that comes again replaces itself."""

    def __init__(self) -> None:
        self.rows: set[tuple[int, int]] = set()

    def __call__(self, frame: DataFrame, _: Batch) -> None:
        """Write a batch."""
        self.rows |= {(row["partition"], row["offset"]) for row in frame.select("partition", "offset").collect()}

    @property
    def dead(self) -> Idempotent:
        """This output, and a run dies where it would be written."""
        return Idempotent(lambda frame, batch: dies())  # noqa: ARG005 - a function of an output


@pytest.fixture(params=["an output more", "the same name, another kind"])
def redeployed(request: pytest.FixtureRequest, lab: Lab, name: str) -> Callable[[Marked], Outputs]:
    """A batch that was begun for an output without a mark; returns the outputs of the next release."""
    keyed = Keyed()
    with pytest.raises(Died):
        run(lab, name, Outputs(a=keyed.dead))
    pending = lab.snapshot().pending
    assert pending is not None
    assert pending.lands_in == ()
    if request.param == "an output more":
        return lambda t: Outputs(a=Idempotent(keyed), t=t)
    return lambda t: Outputs(a=t)


def test_an_output_with_a_mark_that_joined_a_batch_gets_it_no_more_once_a_reset_has_dropped_it(
    lab: Lab, name: str, output: Marked, redeployed: Callable[[Marked], Outputs]
) -> None:
    """The batch was begun without marks. So the reset forgot it, no void mark was made, and its records came twice."""
    output.before = stall = Stall()
    older = {"sink": redeployed(output), "guarantee": "exactly_once"}
    with Running(lab.pipeline(name), lab.spark, until="caught_up", **older) as running:
        assert stall.reached.wait(LIMIT_S)
        pending = lab.snapshot().pending
        assert pending is not None
        assert pending.lands_in in {("t",), ("a",)}
        with lab.ledger() as ledger:
            ledger.rewind({TopicPartition(name, p): Position(1) for p in (0, 1)}, "again", force=True)
        run(lab, name, redeployed(Marked(output.path)))
        stall.go.set()
        with pytest.raises(Fenced):
            running.end()
    assert output.counted() == {(0, 1): 1, (1, 1): 1}  # as the operator has said


def test_what_a_reset_does_not_move_comes_once_in_an_output_that_joined_a_batch(
    lab: Lab, name: str, output: Marked, redeployed: Callable[[Marked], Outputs]
) -> None:
    """All outputs have the batch, and a crash comes before the commit. A reset then skips partition 1."""
    output.after = dies
    with pytest.raises(Died):
        run(lab, name, redeployed(output))
    assert output.counted() == ALL
    with lab.ledger() as ledger:
        ledger.rewind({TopicPartition(name, 1): Position(2)}, "skip", force=True)
    run(lab, name, redeployed(Marked(output.path)))
    assert output.counted() == ALL


def test_an_output_that_joined_a_batch_and_lost_it_is_refused(
    lab: Lab, name: str, output: Marked, redeployed: Callable[[Marked], Outputs]
) -> None:
    """The ledger did not say that it has the batch, so rows were gone and nobody was told."""
    run(lab, name, redeployed(output))
    assert output.counted() == ALL
    output.path.unlink()
    with pytest.raises(MarkBehind, match="the ledger says that it has batch 1"):
        run(lab, name, redeployed(Marked(output.path)))


def test_an_older_run_that_wakes_up_lands_nothing(lab: Lab, name: str, output: Marked) -> None:
    """It stalls right before it lands; a newer one finishes that batch, and others after it."""
    output.before = stall = Stall()
    arguments = {"sink": output, "guarantee": "exactly_once"}
    with Running(lab.pipeline(name), lab.spark, **arguments) as older:
        assert stall.reached.wait(LIMIT_S)
        run(lab, name, Marked(output.path))
        lab.produce(name, "later")
        run(lab, name, Marked(output.path))
        stall.go.set()
        with pytest.raises(Fenced):
            older.end()
    assert output.counted() == ALL | {(0, 2): 1}


def test_a_store_that_was_restored_is_refused_until_an_operator_adopts_the_mark(
    lab: Lab, name: str, output: Marked, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = Path(lab.store.removeprefix("sqlite:///"))
    run(lab, name, output)
    backup = shutil.copy(path, path.with_suffix(".backup"))
    lab.produce(name, "later")
    run(lab, name, output)
    shutil.copy(backup, path)
    before = lab.snapshot()
    with pytest.raises(MarkAhead) as refused:
        run(lab, name, output)
    assert lab.snapshot() == before
    monkeypatch.setenv("OFFSETKEEPER_STORE", lab.store)
    command = shlex.split(str(refused.value).rpartition("as they are: ")[2])[1:]
    assert CliRunner().invoke(app, [*command, "--execute"]).exit_code == 0
    lab.produce(name, "latest")
    run(lab, name, output)
    assert output.counted() == ALL | {(0, 2): 2, (0, 3): 1}  # as the ledger's positions say: the operator was told


def test_an_output_that_was_restored_or_emptied_is_refused(lab: Lab, name: str, output: Marked) -> None:
    run(lab, name, output)
    with closing(sqlite3.connect(output.path)) as connection:
        connection.execute("delete from marks")
        connection.commit()
    with pytest.raises(MarkBehind, match="has no mark, but the ledger says that it has batch 1"):
        run(lab, name, output)


def test_an_output_that_goes_back_in_the_middle_of_a_run_gets_no_further_batch(
    lab: Lab, name: str, output: Marked, tmp_path: Path
) -> None:
    """The mark of a further batch would hide that rows of an earlier one are gone."""
    backup = tmp_path / "backup.db"

    def after(progress: Progress) -> None:
        if progress.batch.sequence == 1:
            shutil.copy(output.path, backup)
        elif progress.batch.sequence == 2:
            shutil.copy(backup, output.path)

    pipeline = lab.pipeline(name, max_records=1)
    with pytest.raises(MarkBehind, match=r"has batch 1 .*, but the ledger says that it has batch 2"):
        pipeline.run(lab.spark, sink=output, guarantee="exactly_once", until="caught_up", on_batch=after)
    assert output.counted().total() == 1
    with pytest.raises(MarkBehind, match=r"has batch 1 .*, but the ledger says that it has batch 2"):
        run(lab, name, output)
    assert output.counted().total() == 1


def test_two_ledgers_that_write_into_one_output_are_told(lab: Lab, name: str, output: Marked, tmp_path: Path) -> None:
    run(lab, name, output)
    other = f"sqlite:///{tmp_path}/other.db"
    with pytest.raises(MarkAhead):
        run(lab, name, output, store=other)
    output.after, lab.store = dies, other
    fresh = Marked(tmp_path / "fresh.db", before=dies)
    with pytest.raises(Died):
        run(lab, name, fresh)
    with pytest.raises(MarkMismatch):
        run(lab, name, Marked(output.path))
    assert output.counted() == ALL


def test_an_output_that_may_have_a_batch_must_not_be_left_out(lab: Lab, name: str, tmp_path: Path) -> None:
    one, two = died(lab, name, tmp_path, after=dies)
    with pytest.raises(StartRefused, match="'two'"):
        run(lab, name, Outputs(one=one))
    run(lab, name, Outputs(one=Marked(one.path), two=Marked(two.path)))
    assert one.counted() == two.counted() == ALL
    assert lab.snapshot().landed == {"one": Landed(1), "two": Landed(1)}


def test_who_follows_the_words_on_an_output_that_lost_its_mark_loses_nothing_in_the_other_output(
    lab: Lab, name: str, tmp_path: Path
) -> None:
    """They said to move the positions behind the batch, and the other output never got its records."""
    one, two = Marked(tmp_path / "one.db"), Marked(tmp_path / "two.db")
    run(lab, name, Outputs(one=one, two=two))
    lab.produce(name, "later")
    one.after = dies
    with pytest.raises(Died):
        run(lab, name, Outputs(one=one, two=two))
    with closing(sqlite3.connect(one.path)) as connection:
        connection.execute("delete from marks")
        connection.commit()
    again = Outputs(one=Marked(one.path), two=two)
    with pytest.raises(MarkBehind) as refused:
        run(lab, name, again)
    told = str(refused.value)
    assert f"({name} 0 2 3). If it has these records, delete them there first" in told
    assert "Do not move the positions behind them, as output 'two' may lack these records" in told
    with closing(sqlite3.connect(one.path)) as connection:
        connection.execute('delete from records where "partition" = 0 and "offset" >= 2')
        connection.commit()
    adopt = shlex.split(told.rpartition("accept both sides as they are: offsetkeeper ")[2])
    accepted = CliRunner().invoke(app, [*adopt, "--store", lab.store, "--execute"])
    assert accepted.exit_code == 0, accepted.output
    run(lab, name, again)
    assert one.counted() == two.counted() == ALL | {(0, 2): 1}


def findings(lab: Lab) -> list[tuple[Kind, int, int, int]]:
    """Return what `verify` finds, without its reasons."""
    every = audit(lab.history(), lab.snapshot())
    return sorted((each.kind, each.topic_partition.partition, each.start, each.end) for each in every)  # type: ignore[union-attr]


def died(lab: Lab, name: str, folder: Path, **hooks: Callable[[], object]) -> tuple[Marked, Marked]:
    """Let a run die at its second output, before or after the batch lands there; the first output has it."""
    one, two = Marked(folder / "one.db"), Marked(folder / "two.db", **hooks)
    with pytest.raises(Died):
        run(lab, name, Outputs(one=one, two=two))
    return one, two


def skip_partition_0(lab: Lab, name: str) -> None:
    """Reset to the end: the pending batch is dropped, and partition 1 stays where it is."""
    with lab.ledger() as ledger:
        ledger.rewind({TopicPartition(name, 0): Position(2)}, "skip", force=True)


def test_an_output_that_was_restored_gets_what_a_reset_has_dropped_and_left_in_its_partition(
    lab: Lab, name: str, tmp_path: Path
) -> None:
    """The ledger had noted that it has the batch: its records counted as done, and were in this output never more."""
    one, two = died(lab, name, tmp_path, after=dies)
    skip_partition_0(lab, name)
    one.path.unlink()
    both = Outputs(one=Marked(one.path), two=Marked(two.path))
    with pytest.raises(MarkBehind, match="--output one --sequence 0"):
        run(lab, name, both)
    with lab.ledger() as ledger:
        ledger.adopt("one", 0, "restored", force=True)
    run(lab, name, both)
    stays = {(1, 0): 1, (1, 1): 1}
    assert one.counted() == stays
    assert two.counted() == Counter(ALL) + Counter(stays)
    assert findings(lab) == [(Kind.GAP, 0, 0, 2), (Kind.OVERLAP, 1, 0, 2)]


def test_what_an_output_lacks_that_is_away_for_a_start_that_drops_comes_when_it_is_back(
    lab: Lab, name: str, tmp_path: Path
) -> None:
    """A reset has dropped the batch. The outputs that were there have it, so it counted as done for the other too."""
    one, two = died(lab, name, tmp_path, before=dies)
    skip_partition_0(lab, name)
    with pytest.raises(Died):
        run(lab, name, Outputs(one=Marked(one.path, before=dies)), policies=Policies(pending="drop"))
    run(lab, name, Outputs(one=Marked(one.path), two=Marked(two.path)))
    stays = {(1, 0): 1, (1, 1): 1}
    assert two.counted() == stays
    assert one.counted() == Counter(ALL) + Counter(stays)
    assert findings(lab) == [(Kind.GAP, 0, 0, 2), (Kind.OVERLAP, 1, 0, 2)]


def test_verify_says_what_an_output_has_twice_that_was_away_when_its_batch_was_dropped(
    lab: Lab, name: str, tmp_path: Path
) -> None:
    one, two = died(lab, name, tmp_path, before=dies)
    with pytest.raises(Died):
        run(lab, name, Outputs(two=Marked(two.path, before=dies)), policies=Policies(pending="drop"))
    run(lab, name, Outputs(one=Marked(one.path), two=Marked(two.path)), policies=Policies(pending="drop"))
    assert two.counted() == ALL
    assert one.counted() == Counter(ALL) + Counter(ALL)
    assert findings(lab) == [(Kind.OVERLAP, p, 0, 2) for p in (0, 1)]


def test_verify_says_what_a_function_may_have_twice_of_a_batch_that_a_start_drops(lab: Lab, name: str) -> None:
    rows = Counter[tuple[int, int]]()

    def collect(records: Any, _: Any) -> None:
        rows.update((row["partition"], row["offset"]) for row in records.collect())

    def collect_and_die(records: Any, batch: Any) -> None:
        collect(records, batch)
        raise Died

    with pytest.raises(Died):
        lab.pipeline(name).run(lab.spark, collect_and_die, guarantee="at_least_once", until="caught_up")
    pipeline = lab.pipeline(name, policies=Policies(pending="drop"))
    pipeline.run(lab.spark, collect, guarantee="at_least_once", until="caught_up")
    assert rows == Counter(ALL) + Counter(ALL)
    assert findings(lab) == [(Kind.MAYBE_TWICE, p, 0, 2) for p in (0, 1)]
