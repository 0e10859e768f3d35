"""The commands as an operator runs them, on a real broker."""

from __future__ import annotations

import csv
import io
import json
import os
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient
from typer.testing import CliRunner, Result

from offsetkeeper import Ledger, OffsetRange, Position, TopicPartition, open_store
from offsetkeeper.cli.main import app
from offsetkeeper.errors import Fenced, NotAllowed, OffsetkeeperError, Refused, SettingsError, Stale
from offsetkeeper.kafka import KafkaCluster
from offsetkeeper.testing.kafka import KafkaServer

LIMIT_S = 30


@dataclass
class Desk:
    """An operator's desk: a topic of two partitions with ten records each, and a group that has read some of them."""

    topic: str
    store: str
    brokers: str
    times: list[int]

    def run(self, *arguments: str, ok: bool = True) -> Result:
        """Run a command."""
        result = CliRunner().invoke(app, arguments)
        if ok and result.exception is not None:
            raise result.exception
        return result

    def json(self, *arguments: str, ok: bool = True) -> Any:
        """Run a command and return the JSON it printed."""
        return json.loads(self.run(*arguments, "--json", ok=ok).stdout)

    def offsets(self) -> list[int]:
        """Return the stored offsets, by partition."""
        found = open_store(self.store).load("shop").positions
        return [found[tp].offset for tp in sorted(found)]


@pytest.fixture
def desk(kafka_server: KafkaServer, topic: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    name, store = topic(2), f"sqlite:///{tmp_path}/offsets.db"
    start = time.time_ns() // 1_000_000 - 100_000
    times = [start + 1000 * number for number in range(10)]
    producer = Producer({"bootstrap.servers": kafka_server.bootstrap})
    for at in times:
        for partition in (0, 1):
            producer.produce(name, b"x", partition=partition, timestamp=at)
    assert producer.flush(LIMIT_S) == 0
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OFFSETKEEPER_STORE", store)
    monkeypatch.setenv("OFFSETKEEPER_BROKERS", kafka_server.bootstrap)
    with KafkaCluster(kafka_server.bootstrap) as cluster:
        topic_id = cluster.describe([name])[name].topic_id
    ledger = Ledger(open_store(store), "shop", name="host:1")
    ledger.acquire("start")
    ledger.place({TopicPartition(name, p): Position(0, topic_id) for p in (0, 1)})
    ledger.commit(ledger.batch([OffsetRange(name, 0, 0, 4), OffsetRange(name, 1, 0, 10)]))
    ledger.release("end")
    return Desk(name, store, kafka_server.bootstrap, times)


def test_groups_and_one_group_are_shown(desk: Desk) -> None:
    assert [(each["group"], each["held_by"], each["partitions"]) for each in desk.json("groups")] == [("shop", None, 2)]
    shown = desk.json("show", "shop")
    assert [(each["partition"], each["offset"]) for each in shown["positions"]] == [(0, 4), (1, 10)]
    held, counted = "held by nobody, version 4 (number of changes)", "epoch 1 (number of runs that took the group)"
    assert f"{held}, {counted}, generation 0 (number of rewinds)\n" in desk.run("show", "shop").stdout


def test_tables_are_tab_separated_when_piped(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OFFSETKEEPER_BROKERS")
    lines = desk.run("show", "shop").stdout.splitlines()
    assert lines[1:] == ["topic\tpartition\toffset", f"{desk.topic}\t0\t4", f"{desk.topic}\t1\t10"]


def test_a_batch_under_way_is_shown(desk: Desk) -> None:
    ledger = Ledger(open_store(desk.store), "shop", name="host:2")
    ledger.acquire()
    ledger.begin(ledger.batch([OffsetRange(desk.topic, 0, 4, 6)]))
    assert f"{desk.topic} 0 4 6" in desk.run("show", "shop").stdout
    assert desk.json("show", "shop")["pending"]["ranges"] == [[desk.topic, 0, 4, 6]]


def test_the_plan_says_where_a_run_would_start_and_whether(desk: Desk) -> None:
    assert desk.json("plan", "shop")["counts"]["resume"] == 2
    with KafkaCluster(desk.brokers) as cluster:
        assert cluster.bounds_of_topics([desk.topic])[TopicPartition(desk.topic, 0)].end == 10
    Ledger(open_store(desk.store), "shop").load()
    ledger = Ledger(open_store(desk.store), "shop")
    ledger.load()
    ledger.rewind({TopicPartition(desk.topic, 0): Position(99)}, "too far")
    refused = desk.run("plan", "shop", ok=False)
    assert refused.exit_code == 1
    assert "beyond" in refused.stdout
    assert "'offsetkeeper plan shop --policy beyond_end=beginning' shows what one does" in refused.stdout
    assert "To start anyway" not in desk.run("plan", "shop", "--policy", "beyond_end=beginning").stdout


def test_a_partition_given_to_a_command_that_takes_whole_topics_is_answered_with_what_to_give(desk: Desk) -> None:
    for command in ("lag", "plan"):
        with pytest.raises(SettingsError, match=r"takes whole topics, so give --topic orders$"):
            desk.run(command, "shop", "--topic", "orders:2")


def test_a_run_is_fenced_and_no_position_moves(desk: Desk) -> None:
    assert desk.run("fence", "shop").stdout == "Nothing to do: no run holds group shop.\n"
    run = Ledger(open_store(desk.store), "shop", name="host:2")
    run.acquire()
    run.begin(run.batch([OffsetRange(desk.topic, 0, 4, 6)]))
    begun = open_store(desk.store).load("shop")
    shown = desk.run("fence", "shop").stdout
    assert shown.startswith("host:2 holds group shop: --execute fences that run\n")
    assert "it stays, and the next start deals with it\nNothing was changed. Add --execute" in shown
    assert open_store(desk.store).load("shop") == begun
    assert desk.json("fence", "shop", "--reason", "hangs", "--execute") == {"executed": True, "held_by": "host:2"}
    found = open_store(desk.store).load("shop")
    assert (found.owner, found.pending, desk.offsets()) == (None, begun.pending, [4, 10])
    assert "hangs (by " in desk.run("history", "shop").stdout
    with pytest.raises(Fenced, match=r"was taken over by an operator at .* \(hangs \(by "):
        run.commit(run.batch([OffsetRange(desk.topic, 0, 4, 6)]))
    Ledger(open_store(desk.store), "shop").acquire()
    assert desk.run("fence", "shop", "--execute").stdout.endswith("Done. Now start the job.\n")


def test_lag_is_told_in_records_and_in_seconds_while_nothing_runs(desk: Desk) -> None:
    found = desk.json("lag", "shop")
    assert (found["records"], found["status"]) == (6, "stopped")
    behind, done = found["partitions"]
    age = (time.time_ns() // 1_000_000 - desk.times[4]) / 1000
    assert behind["records"] == 6
    assert age - 60 < behind["seconds"] <= age + 1
    assert 0 < behind["retention_used"] < 0.01
    assert (done["records"], done["seconds"]) == (0, 0.0)
    assert f"{desk.topic}\t0\t4\t10\t6" in desk.run("lag", "shop").stdout


def test_the_history_is_told_newest_first(desk: Desk) -> None:
    assert [each["event"] for each in desk.json("history", "shop")] == ["release", "commit", "place", "acquire"]
    assert "\tcommit\thost:1\t14\t" in desk.run("history", "shop", "--limit", "2").stdout


def test_verify_tells_what_a_reset_went_back_over(desk: Desk) -> None:
    assert desk.json("verify", "shop")["findings"] == []
    assert desk.run("reset", "shop", "--topic", f"{desk.topic}:0", "--to-offset", "2", "--execute").exit_code == 0
    assert f"{desk.topic} 0 4 → 2" in desk.run("history", "shop", "--limit", "1").stdout
    explained = desk.run("verify", "shop")
    assert explained.exit_code == 0
    assert f"overlap {desk.topic} 0 2 4: rewind by" in explained.stdout


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (["--to-earliest"], [0, 0]),
        (["--to-latest"], [10, 10]),
        (["--to-offset", "3"], [3, 3]),
        (["--shift-by", "-2"], [2, 8]),
    ],
    ids=lambda value: " ".join(map(str, value)),
)
def test_a_reset_is_shown_first_and_done_when_asked(desk: Desk, target: list[str], expected: list[int]) -> None:
    shown = desk.json("reset", "shop", "--all-topics", *target)
    assert not shown["executed"]
    assert desk.offsets() == [4, 10]
    moved = {step["partition"]: step["new"] for step in shown["steps"]}
    assert [moved.get(number, old) for number, old in enumerate([4, 10])] == expected
    desk.run("reset", "shop", "--all-topics", *target, "--execute", "--reason", "test")
    assert desk.offsets() == expected


def test_a_reset_to_where_the_group_stands_changes_nothing_and_says_so(desk: Desk) -> None:
    run = Ledger(open_store(desk.store), "shop")
    run.acquire()
    run.begin(run.batch([OffsetRange(desk.topic, 0, 4, 6)]))
    command = ("reset", "shop", "--all-topics", "--to-current", "--execute", "--force")
    assert desk.run(*command).stdout.endswith("Nothing to do: group shop is already at these offsets.\n")
    told = desk.json(*command)
    assert (told["executed"], told["steps"]) == (False, [])
    assert open_store(desk.store).load("shop") == run.snapshot


def test_a_reset_to_a_time_begins_with_the_first_record_of_it(desk: Desk) -> None:
    at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(desk.times[7] / 1000)) + f".{desk.times[7] % 1000:03}+00:00"
    desk.run("reset", "shop", "--topic", desk.topic, "--to-datetime", at, "--execute")
    assert desk.offsets() == [7, 7]
    desk.run("reset", "shop", "--topic", desk.topic, "--by-duration", "PT1H", "--execute")
    assert desk.offsets() == [0, 0]


def test_what_a_reset_reads_again_and_skips_is_counted(desk: Desk) -> None:
    back, ahead = (desk.json("reset", "shop", "--topic", desk.topic, "--to-offset", "6"))["steps"][::-1]
    assert (back["replayed"], back["skipped"]) == (4, 0)
    assert (ahead["replayed"], ahead["skipped"]) == (0, 2)
    desk.run("reset", "shop", "--topic", f"{desk.topic}:0", "--to-offset", "9", "--execute")
    scope = ("shop", "--topic", f"{desk.topic}:0")
    for words in (("undo", *scope), ("rewind", *scope, "--version", "4"), ("reset", *scope, "--to-offset", "3")):
        [step] = desk.json(*words)["steps"]
        assert (step["replayed"], step["skipped"]) == (1 if words[0] == "reset" else 0, 0), "4 to 9 was never read"


def test_a_csv_goes_out_and_comes_back(desk: Desk) -> None:
    exported = desk.run("reset", "shop", "--all-topics", "--to-earliest", "--export").stdout
    assert list(csv.reader(io.StringIO(exported))) == [[desk.topic, "0", "0"], [desk.topic, "1", "0"]]
    Path("offsets.csv").write_text(exported, "utf-8")
    desk.run("reset", "shop", "--from-file", "offsets.csv", "--execute")
    assert desk.offsets() == [0, 0]


def test_an_export_while_a_batch_is_pending_says_that_it_would_be_written_again(desk: Desk) -> None:
    """The mark of the batch is of this group: under another one no start would notice it."""
    export = ("reset", "shop", "--all-topics", "--to-current", "--export")
    assert desk.run(*export).stderr == ""
    ledger = Ledger(open_store(desk.store), "shop", name="host:2")
    ledger.acquire()
    ledger.begin(batch := ledger.batch([OffsetRange(desk.topic, 0, 4, 6)]))
    told = desk.run(*export)
    assert f"batch {batch.id} was begun and not committed, and an output may have it" in told.stderr
    assert told.stdout.splitlines()[0] == f"{desk.topic},0,4"


def test_an_export_has_every_partition_also_those_that_do_not_move(desk: Desk) -> None:
    """What is exported before a reset is the way back from it; Kafka's tool exports what comes after."""
    before = desk.run("reset", "shop", "--all-topics", "--to-current", "--export", "--brokers", "127.0.0.1:1").stdout
    assert before.splitlines() == [f"{desk.topic},0,4", f"{desk.topic},1,10"]
    ahead = desk.run("reset", "shop", "--topic", desk.topic, "--to-latest", "--export").stdout
    assert ahead.splitlines() == [f"{desk.topic},0,10", f"{desk.topic},1,10"]
    assert desk.run("reset", "shop", "--topic", f"{desk.topic}:1", "--to-current", "--export").stdout == (
        f"{desk.topic},1,10\n"
    )
    Path("before.csv").write_text(before, "utf-8")
    desk.run("reset", "shop", "--all-topics", "--to-earliest", "--execute")
    desk.run("reset", "shop", "--from-file", "before.csv", "--execute")
    assert desk.offsets() == [4, 10]


def test_a_csv_of_several_groups_moves_the_one_that_is_named(desk: Desk) -> None:
    Path("offsets.csv").write_text(f"till,{desk.topic},0,9\nshop,{desk.topic},0,2\nshop,{desk.topic},1,3\n", "utf-8")
    desk.run("reset", "shop", "--from-file", "offsets.csv", "--execute")
    assert desk.offsets() == [2, 3]
    with_header = f"Group,Topic,Partition,Offset\nshop,{desk.topic},0,4\n"
    Path("offsets.csv").write_text(with_header, "utf-8")
    desk.run("reset", "shop", "--from-file", "offsets.csv", "--execute")
    assert desk.offsets() == [4, 3]
    Path("offsets.csv").write_text(f"till,{desk.topic},0,9\n", "utf-8")
    with pytest.raises(SettingsError, match="no line of group 'shop'; it has groups till"):
        desk.run("reset", "shop", "--from-file", "offsets.csv")


def test_a_topic_narrows_what_a_csv_moves(desk: Desk) -> None:
    Path("offsets.csv").write_text(f"{desk.topic},0,2\n{desk.topic},1,3\n", "utf-8")
    said = desk.run("reset", "shop", "--from-file", "offsets.csv", "--topic", f"{desk.topic}:0", "--execute").stderr
    assert f"what is before these is not read again: {desk.topic} 1\n" in said
    assert desk.offsets() == [2, 10]
    with pytest.raises(Refused, match=f"{desk.topic} 7 is not among the offsets given"):
        desk.run("reset", "shop", "--from-file", "offsets.csv", "--topic", f"{desk.topic}:1,7", "--execute")
    assert desk.offsets() == [2, 10]


@pytest.mark.parametrize(
    ("group", "scope", "told"),
    [
        ("shop", ["--topic", "typo"], "no partition of typo is among the positions of group 'shop'"),
        ("shop", ["--topic", "typo:3"], "typo 3 is not among the positions of group 'shop'"),
        ("typo", ["--all-topics"], "group 'typo' has no positions: there is nothing to export"),
    ],
)
def test_an_export_of_nothing_is_no_backup(desk: Desk, group: str, scope: list[str], told: str) -> None:
    with pytest.raises(Refused, match=told):
        desk.run("reset", group, *scope, "--to-current", "--export")


def test_an_export_may_be_saved_as_a_plan_too(desk: Desk) -> None:
    before = f"{desk.topic},0,4\n{desk.topic},1,10\n"
    assert desk.run("reset", "shop", "--all-topics", "--to-current", "--export", "--save", "plan.json").stdout == before
    assert desk.run("reset", "shop", "--plan", "plan.json", "--export").stdout == before


@pytest.mark.parametrize("arguments", [["--to-datetime", "2099-01-01T00:00:00+00:00"], ["--by-duration", "PT0S"]])
def test_a_time_after_all_records_is_the_end_and_what_is_skipped_is_counted(desk: Desk, arguments: list[str]) -> None:
    """Kafka's tool calls such a partition empty."""
    [step] = desk.json("reset", "shop", "--all-topics", *arguments)["steps"]
    assert (step["partition"], step["new"], step["skipped"]) == (0, 10, 6)


@pytest.mark.parametrize("arguments", [["--to-current"], ["--shift-by", "1"]])
def test_a_partition_without_a_commit_is_not_taken_to_be_at_the_end(
    desk: Desk, topic: Callable[..., str], arguments: list[str]
) -> None:
    """With Kafka's tool --to-current skips all of it, and --shift-by is an exception."""
    other = topic(1)
    with pytest.raises(Refused, match=f"{other} 0 has no stored position: use an offset"):
        desk.run("reset", "shop", "--topic", other, *arguments, "--execute")
    assert desk.offsets() == [4, 10]


def test_all_topics_are_those_of_the_group_and_those_that_the_file_names(desk: Desk, topic: Callable[..., str]) -> None:
    other = topic(1)
    assert len(desk.json("reset", "shop", "--all-topics", "--to-earliest")["steps"]) == 2
    Path("offsetkeeper.toml").write_text(f'topics = ["{other}"]\n', "utf-8")
    steps = desk.json("reset", "shop", "--all-topics", "--to-earliest")["steps"]
    assert {(step["topic"], step["partition"], step["old"]) for step in steps} == {
        (desk.topic, 0, 4),
        (desk.topic, 1, 10),
        (other, 0, None),
    }


def test_a_preview_tells_what_is_left_what_is_dropped_and_how_near_retention_is(
    desk: Desk, topic: Callable[..., str]
) -> None:
    other = topic(2)
    ledger = Ledger(open_store(desk.store), "shop", name="host:2")
    ledger.acquire()
    ledger.place({TopicPartition(other, 0): Position(0)})
    ledger.begin(batch := ledger.batch([OffsetRange(desk.topic, 0, 4, 6)]))
    ledger.release()
    told = desk.json("reset", "shop", "--all-topics", "--to-earliest")
    again = {"again": [[desk.topic, 0, 4, 6]], "stays": []}
    assert told["left"] == [[other, 1]]
    assert told["drops"] == {"batch": batch.id, "written": [], "lands_in": [], "unasked": []} | again
    step = next(each for each in told["steps"] if each["old"] == 4)
    assert 0 < step["retention_used"] < 0.01
    assert step["seconds_left"] > 600_000
    shown = desk.run("reset", "shop", "--all-topics", "--to-earliest").stdout
    assert "\tabove the beginning\tretention\tlost in\n" in shown
    assert f"note: batch {batch.id} was begun and not committed: it is dropped" in shown
    assert f"may come twice into outputs that have it: {desk.topic} 0 4 6\n" in shown
    assert f"position in the topic, and a start reads them from their beginning: {other} 1\n" in shown
    kept = desk.run("reset", "shop", "--topic", f"{desk.topic}:1", "--to-earliest").stdout
    assert f"note: batch {batch.id} was begun and not committed: none of its partitions moves, so it stays" in kept


def test_who_forgets_to_say_execute_is_told(desk: Desk) -> None:
    told = desk.run("reset", "shop", "--all-topics", "--to-earliest").stdout
    assert f"{desk.topic}\t0\t4\t0\t4\t0\t0" in told  # old, new, read again, skipped, above the beginning
    assert told.endswith("Nothing was changed. Add --execute to make the change.\n")
    done = desk.run("reset", "shop", "--all-topics", "--to-earliest", "--execute").stdout
    assert done.endswith("Done.\n")
    for text in (told, done):
        assert "note: streaming queries of this group need a new checkpoint to follow" in text


def test_a_saved_plan_is_done_as_it_was_looked_at(desk: Desk) -> None:
    before = os.umask(0)
    desk.run("reset", "shop", "--all-topics", "--to-earliest", "--save", "plan.json")
    os.umask(before)
    assert Path("plan.json").stat().st_mode & 0o022 == 0  # else it could not be used
    desk.run("reset", "shop", "--plan", "plan.json", "--execute")
    assert desk.offsets() == [0, 0]


def test_a_saved_plan_is_refused_once_the_group_moved_on(desk: Desk) -> None:
    desk.run("reset", "shop", "--all-topics", "--to-earliest", "--save", "plan.json")
    ledger = Ledger(open_store(desk.store), "shop")
    ledger.acquire()
    ledger.commit(ledger.batch([OffsetRange(desk.topic, 0, 4, 5)]))
    ledger.release()
    with pytest.raises(Stale, match="has changed from version"):
        desk.run("reset", "shop", "--plan", "plan.json", "--execute")
    assert desk.offsets() == [5, 10]


def test_several_groups_are_reset_at_once_and_written_to_one_csv(desk: Desk) -> None:
    ledger = Ledger(open_store(desk.store), "till")
    ledger.acquire()
    ledger.place({TopicPartition(desk.topic, 0): Position(7)})
    ledger.release()
    exported = desk.run("reset", "shop", "till", "--all-topics", "--to-current", "--export").stdout
    assert exported.splitlines() == [f"shop,{desk.topic},0,4", f"shop,{desk.topic},1,10", f"till,{desk.topic},0,7"]
    Path("both.csv").write_text(exported, "utf-8")
    found = json.loads(desk.run("reset", "shop", "till", "--all-topics", "--to-earliest", "--execute", "--json").stdout)
    assert [(each["executed"], len(each["steps"])) for each in found] == [(True, 2), (True, 1)]
    assert (desk.offsets(), ledger.load().positions[TopicPartition(desk.topic, 0)].offset) == ([0, 0], 0)
    desk.run("reset", "shop", "till", "--from-file", "both.csv", "--execute")
    assert (desk.offsets(), ledger.load().positions[TopicPartition(desk.topic, 0)].offset) == ([4, 10], 7)


def test_a_reason_that_is_not_quoted_makes_no_groups_of_its_words(desk: Desk) -> None:
    words = ("reset", "shop", "made", "again", "--topic", desk.topic, "--to-earliest")
    with pytest.raises(Refused, match=r"has no groups made, again: nothing was changed\. Quote a reason of"):
        desk.run(*words, "--reason", "topic", "--execute")
    assert open_store(desk.store).groups() == ["shop"]
    assert desk.offsets() == [4, 10]
    Path("new.csv").write_text(f"new,{desk.topic},0,3\nother,{desk.topic},0,4\n", "utf-8")  # as after a lost store
    desk.run("reset", "new", "other", "--from-file", "new.csv", "--execute")
    assert sorted(open_store(desk.store).groups()) == ["new", "other", "shop"]


def test_a_group_that_was_a_typo_is_forgotten_and_stays_as_a_name(desk: Desk) -> None:
    desk.run("reset", "shpo", "--topic", desk.topic, "--to-earliest", "--execute")
    desk.run("forget", "shpo", desk.topic, "--execute")
    found = {each["group"]: each["status"] for each in desk.json("lag")}
    assert found == {"shop": "stopped", "shpo": "ok"}
    assert [entry["event"] for entry in desk.json("history", "shpo")] == ["forget", "rewind"]


def test_all_groups_have_the_shape_of_several_however_many_there_are(desk: Desk) -> None:
    """A script that reads it today still can when there is a second group."""
    everything = ("reset", "--all-groups", "--all-topics", "--to-current")
    exported = desk.run(*everything, "--export").stdout
    assert exported.splitlines() == [f"shop,{desk.topic},0,4", f"shop,{desk.topic},1,10"]
    Path("all.csv").write_text(exported, "utf-8")
    assert [each["group"] for each in json.loads(desk.run(*everything, "--json").stdout)] == ["shop"]
    desk.run("reset", "--all-groups", "--from-file", "all.csv", "--execute")
    assert desk.offsets() == [4, 10]


def test_of_several_groups_none_is_changed_where_one_cannot_be_and_those_before_an_error_are_told(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Ledger(open_store(desk.store), "till")
    other.acquire()
    other.place({TopicPartition(desk.topic, 0): Position(7)})
    with pytest.raises(Refused, match="outside the offsets that Kafka holds"):
        desk.run("reset", "shop", "till", "--all-topics", "--shift-by", "-5", "--execute")
    assert desk.offsets() == [4, 10]
    everything = ("reset", "shop", "till", "--all-topics", "--to-earliest", "--execute")
    with pytest.raises(Fenced, match="nothing was changed: runs hold till by "):
        desk.run(*everything)
    assert desk.offsets() == [4, 10]
    monkeypatch.setattr("offsetkeeper.cli.reset._check_free", lambda *_: None)  # it is acquired just after
    result = desk.run(*everything, ok=False)
    assert isinstance(result.exception, Fenced)
    assert "changed before this error: shop" in result.stderr
    assert (desk.offsets(), other.load().positions[TopicPartition(desk.topic, 0)].offset) == ([0, 0], 7)
    for wrong in (["shop", "shop"], ["shop", "till", "--save", "x.json"]):
        with pytest.raises(SettingsError, match=r"named twice|are for one group"):
            desk.run("reset", *wrong, "--all-topics", "--to-earliest")


def test_an_offset_past_the_end_is_clipped_on_request(desk: Desk) -> None:
    said = desk.run("reset", "shop", "--topic", f"{desk.topic}:0", "--to-offset", "99", "--clip", "--execute").stdout
    assert f"note: {desk.topic} 0: Kafka does not hold offset 99; 10 is the nearest one that it holds" in said
    assert desk.offsets() == [10, 10]


def test_a_run_is_not_moved_under_its_feet_unless_on_purpose(desk: Desk) -> None:
    run = Ledger(open_store(desk.store), "shop")
    run.acquire()
    preview = desk.run("reset", "shop", "--all-topics", "--to-earliest", "--dry-run").stdout
    assert "holds the group: --execute is refused until that run ends, unless you add --force" in preview
    with pytest.raises(Fenced, match="is held by"):
        desk.run("reset", "shop", "--all-topics", "--to-earliest", "--execute")
    assert desk.offsets() == [4, 10]
    desk.run("reset", "shop", "--all-topics", "--to-earliest", "--execute", "--force")
    with pytest.raises(Fenced):
        run.commit(run.batch([OffsetRange(desk.topic, 0, 4, 5)]))
    assert desk.offsets() == [0, 0]


def test_the_command_undo_leads_back_and_can_be_undone(desk: Desk) -> None:
    desk.run("reset", "shop", "--all-topics", "--to-earliest", "--execute", "--reason", "oops")
    desk.run("undo", "shop")
    assert desk.offsets() == [0, 0]
    desk.run("undo", "shop", "--execute")
    assert desk.offsets() == [4, 10]
    assert desk.json("history", "shop", "--limit", "1")[0]["reason"].startswith("undo of version 5 (by ")
    assert "to make it, add --again" in " ".join(desk.run("undo", "shop").stdout.split())
    with pytest.raises(Refused, match="version 6 took back version 5 already"):
        desk.run("undo", "shop", "--execute")
    assert desk.offsets() == [4, 10]  # of two operators, or after a lost reply: an undo is done once
    desk.run("undo", "shop", "--again", "--execute")
    assert desk.offsets() == [0, 0]


@pytest.mark.parametrize("error", [KeyError("uid not found"), OSError("No username set in the environment")])
def test_a_user_without_a_name_is_a_number_in_the_history(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """As in containers; it is a KeyError up to Python 3.12, and an OSError since."""

    def nobody() -> str:
        raise error

    monkeypatch.setattr("getpass.getuser", nobody)
    desk.run("reset", "shop", "--all-topics", "--to-earliest", "--execute")
    assert desk.json("history", "shop", "--limit", "1")[0]["reason"] == f"by uid {os.getuid()}"


def test_an_undo_and_a_rewind_may_be_of_some_partitions(desk: Desk) -> None:
    desk.run("reset", "shop", "--all-topics", "--to-offset", "1", "--execute")
    desk.run("undo", "shop", "--topic", f"{desk.topic}:0", "--execute")
    assert desk.offsets() == [4, 1]
    desk.run("rewind", "shop", "--version", "2", "--topic", f"{desk.topic}:1", "--execute")
    assert desk.offsets() == [4, 0]


def test_a_rewind_leads_to_any_version_of_the_ledger(desk: Desk) -> None:
    desk.run("rewind", "shop", "--version", "2", "--execute")
    assert desk.offsets() == [0, 0]
    desk.run("rewind", "shop", "--version", "4", "--execute")
    assert desk.offsets() == [4, 10]


@pytest.mark.parametrize("back", [["rewind", "shop", "--version", "2"], ["undo", "shop"]])
def test_a_way_back_that_retention_has_cut_is_clipped_on_request_and_what_is_lost_is_counted(
    desk: Desk, back: list[str]
) -> None:
    desk.run("reset", "shop", "--all-topics", "--to-earliest", "--execute")
    desk.run("reset", "shop", "--all-topics", "--to-latest", "--execute")
    admin = AdminClient({"bootstrap.servers": desk.brokers})
    [cut] = admin.delete_records([KafkaPartition(desk.topic, 0, 7)]).values()
    assert cut.result(LIMIT_S).low_watermark == 7
    with pytest.raises(Refused, match=r"offset 0 .* 7 to 10 \(7 offsets are lost\)\. --clip takes the nearest one"):
        desk.run(*back, "--execute")
    assert desk.offsets() == [10, 10]
    steps = desk.json(*back, "--clip")["steps"]
    assert [(step["new"], step["lost"]) for step in steps] == [(7, 7), (0, 0)]
    told = desk.run(*back, "--clip", "--execute").stdout
    assert "above the beginning\tlost\n" in told
    assert f"{desk.topic} 0: Kafka does not hold offset 0; 7 is the nearest one that it holds. 7 offsets in" in told
    assert desk.offsets() == [7, 0]


def test_a_position_is_forgotten_on_request_and_undo_puts_it_back(desk: Desk) -> None:
    shown = desk.run("forget", "shop", f"{desk.topic}:1").stdout
    assert f"{desk.topic}\t1\t10\tfrom its beginning" in shown
    assert shown.endswith("Nothing was changed. Add --execute to make the change.\n")
    assert desk.offsets() == [4, 10]
    assert desk.run("forget", "shop", f"{desk.topic}:1", "--reason", "a typo", "--execute").stdout.endswith("Done.\n")
    assert desk.offsets() == [4]
    [entry] = desk.json("history", "shop", "--limit", "1")
    assert (entry["event"], entry["forgot"][0][:2]) == ("forget", [desk.topic, 1])
    assert entry["reason"].startswith("a typo (by ")
    verdicts = {each["partition"]: each["verdict"] for each in desk.json("plan", "shop")["partitions"]}
    assert verdicts == {0: "resume", 1: "new"}
    assert desk.json("verify", "shop")["findings"] == []
    desk.run("undo", "shop", "--execute")
    assert desk.offsets() == [4, 10]


def test_nothing_is_forgotten_under_a_run_or_a_batch(desk: Desk) -> None:
    ledger = Ledger(open_store(desk.store), "shop", name="host:2")
    ledger.acquire("start")
    assert "host:2 holds the group: --execute is refused" in desk.run("forget", "shop", f"{desk.topic}:1").stdout
    with pytest.raises(Fenced):
        desk.run("forget", "shop", f"{desk.topic}:1", "--execute")
    ledger.begin(ledger.batch([OffsetRange(desk.topic, 0, 4, 6)]))
    for arguments in (["--execute", "--force"], []):
        with pytest.raises(NotAllowed, match=r"is in batch .*, which is pending: the next start deals with it"):
            desk.run("forget", "shop", desk.topic, *arguments)
    desk.run("forget", "shop", f"{desk.topic}:1", "--execute", "--force")
    assert desk.offsets() == [4]
    with pytest.raises(Fenced):
        ledger.abandon("over")


def test_a_group_is_copied_to_another_store(desk: Desk, tmp_path: Path) -> None:
    target = f"sqlite:///{tmp_path}/other.db"
    shown = desk.run("copy", "shop", "--to", target).stdout
    assert shown.endswith("Nothing was changed. Add --execute to make the change.\n")
    assert f"{desk.topic}\t1\t-\t10" in shown
    assert list(open_store(target).groups()) == []
    assert "Done: 2 positions" in desk.run("copy", "shop", "--to", target, "--execute").stdout
    assert [(e["partition"], e["offset"]) for e in desk.json("show", "shop", "--store", target)["positions"]] == [
        (0, 4),
        (1, 10),
    ]


def test_a_group_is_copied_in_an_older_format(desk: Desk, tmp_path: Path) -> None:
    target = f"sqlite:///{tmp_path}/older.db"
    told = desk.run("copy", "shop", "--to", target, "--format", "3", "--execute").stdout
    assert "The copy is in format 3, for an older release." in told
    with closing(sqlite3.connect(tmp_path / "older.db")) as connection:
        [control] = connection.execute("select control from offsetkeeper_groups").fetchone()
    assert (json.loads(control)["format"], "leader_epochs" in control) == (3, False)
    assert desk.json("show", "shop", "--store", target)["positions"][0]["offset"] == 4


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--to-earliest"], "say which partitions to reset"),
        (["--all-topics"], "exactly one target"),
        (["--all-groups", "--all-topics", "--to-earliest"], "names of groups, or --all-groups, not both"),
        (["--all-topics", "--to-earliest", "--to-latest"], "exactly one target"),
        (["--all-topics", "--to-offset", "11"], "outside the offsets that Kafka holds, 0 to 10"),
        (["--all-topics", "--shift-by", "-5"], "outside the offsets that Kafka holds"),
        (["--topic", "no-such-topic", "--to-earliest"], "does not exist"),
        (["--topic", "a:b", "--to-earliest"], "write topic, or topic:0,1"),
        (["--all-topics", "--to-datetime", "yesterday"], "write it like 2026"),
        (["--all-topics", "--to-datetime", "2026-01-31T12:00:00"], "has no time zone"),
        (["--all-topics", "--by-duration", "P1M"], "without years and months"),
        (["--all-topics", "--to-earliest", "--dry-run", "--execute"], "give one of them"),
        (["--from-file", "nowhere.csv"], "cannot be read"),
        (["--plan", "nowhere.json"], "cannot be read"),
        (["--plan", "nowhere.json", "--all-topics"], "--plan has targets and topics already"),
        (["--all-topics", "--topic", "a:0", "--to-earliest"], "--topic or --all-topics, not both"),
        (["--all-topics", "--to-earliest", "--save", "no/plan.json"], "cannot be written; nothing was changed"),
        (["--topic", "no:0", "--to-current", "--export"], "no 0"),
        (["--all-topics", "--to-earliest", "--kafka", "x"], "write name=value"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_cannot_be_done_is_told_before_anything_is_changed(desk: Desk, arguments: list[str], told: str) -> None:
    with pytest.raises(OffsetkeeperError, match=told):
        desk.run("reset", "shop", *arguments, "--execute")
    assert desk.offsets() == [4, 10]


def test_settings_may_lie_in_a_file(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OFFSETKEEPER_STORE")
    monkeypatch.delenv("OFFSETKEEPER_BROKERS")
    with pytest.raises(SettingsError, match="no store: give --store"):
        desk.run("groups")
    with pytest.raises(SettingsError, match="no brokers: give --brokers"):
        desk.run("lag", "shop", "--store", desk.store)
    Path("offsetkeeper.toml").write_text(
        f'store = "{desk.store}"\nbrokers = "{desk.brokers}"\n[kafka]\n"client.id" = "me"\n', "utf-8"
    )
    assert desk.json("lag", "shop")["records"] == 6
    Path("offsetkeeper.toml").write_text('shop = "x"\n', "utf-8")
    with pytest.raises(SettingsError, match="unknown setting"):
        desk.run("groups")
    monkeypatch.setenv("OFFSETKEEPER_CONFIG", "nowhere.toml")
    with pytest.raises(SettingsError, match=r"nowhere\.toml cannot be read"):
        desk.run("groups")
