"""The command replay on a real broker: what it shows and reads, and that nothing of the group is touched."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from confluent_kafka import Producer
from confluent_kafka import TopicPartition as KafkaPartition
from typer.testing import CliRunner

from docs.pages import ROOT, blocks
from fixtures.groups import commit, committed
from offsetkeeper import Ledger, OffsetRange, Position, TopicPartition, open_store
from offsetkeeper.cli.main import app
from offsetkeeper.cli.replay import _function, _opened
from offsetkeeper.core.environment import Environment, using
from offsetkeeper.errors import NotAllowed, OffsetkeeperError, RangeGone, Refused, SettingsError
from offsetkeeper.kafka import KafkaCluster
from offsetkeeper.testing.kafka import KafkaServer
from readers.test_readers_headers import produce

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from offsetkeeper.core.batch import Batch

LIMIT_S = 30


@dataclass
class Desk:
    """A topic of two partitions with ten records each, and a group that has read 6 and 10 of them in two batches."""

    topic: str
    folder: Path
    server: KafkaServer
    times: list[int]

    def run(self, *arguments: str, code: int = 0, group: str = "shop") -> str:
        """Run the command and return what it printed."""
        result = CliRunner().invoke(app, ["replay", group, *arguments])
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == code
        return result.stdout

    def stretches(self, *arguments: str, code: int = 0) -> list[tuple[int, int, int]]:
        """Return partition, start and end of what would be read."""
        found = json.loads(self.run(*arguments, "--json", code=code))["stretches"]
        return [(each["partition"], each["start"], each["end"]) for each in found]

    def live(self) -> tuple[dict[str, str], Any]:
        """Return the digest of each of the store's files, and what Kafka holds for the groups that might be meant."""
        files = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in self.folder.glob("offsets.db*")}
        names = ("shop", "shop.replay", "offsetkeeper-shop")
        partitions = [(self.topic, 0), (self.topic, 1)]
        return files, [committed(self.server.bootstrap, name, partitions) for name in names]

    @contextmanager
    def untouched(self) -> Iterator[None]:
        """Check that the block changes nothing of the group."""
        before = self.live()
        yield
        assert self.live() == before

    def delete_before(self, offset: int) -> None:
        """Let records go as retention does."""
        admin = self.server.admin()
        [future] = admin.delete_records([KafkaPartition(self.topic, 0, offset)]).values()
        future.result(LIMIT_S)


def iso(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat()


@pytest.fixture
def desk(kafka_server: KafkaServer, topic: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    name, store = topic(2), f"sqlite:///{tmp_path}/offsets.db"
    start = time.time_ns() // 1_000_000 - 100_000
    times = [start + 1000 * number for number in range(10)]
    producer = Producer({"bootstrap.servers": kafka_server.bootstrap})
    for number, at in enumerate(times):
        for partition in (0, 1):
            value = b"\xff" if number == 9 else f"record {number}".encode()
            producer.produce(name, value, key=b"k", partition=partition, timestamp=at, headers=[("n", str(number))])
    assert producer.flush(LIMIT_S) == 0
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OFFSETKEEPER_STORE", store)
    monkeypatch.setenv("OFFSETKEEPER_BROKERS", kafka_server.bootstrap)
    with KafkaCluster(kafka_server.bootstrap) as cluster:
        topic_id = cluster.describe([name])[name].topic_id
    opened = open_store(store)
    ledger = Ledger(opened, "shop", name="host:1")
    ledger.acquire("start")
    ledger.place({TopicPartition(name, p): Position(0, topic_id) for p in (0, 1)})
    ledger.commit(ledger.batch([OffsetRange(name, 0, 0, 4), OffsetRange(name, 1, 0, 10)]))
    ledger.commit(ledger.batch([OffsetRange(name, 0, 4, 6)]))
    opened.close()
    commit(kafka_server.bootstrap, "shop", {(name, 0): 6, (name, 1): 10})
    return Desk(name, tmp_path, kafka_server, times)


def test_what_would_be_read_is_shown_and_nothing_is_read(desk: Desk) -> None:
    with desk.untouched():
        assert desk.stretches("--version", "3") == [(0, 0, 4), (1, 0, 10)]
        assert desk.stretches("--version", "4") == [(0, 4, 6)]
        assert desk.stretches("--topic", desk.topic) == [(0, 0, 6), (1, 0, 10)]
        assert desk.stretches("--topic", f"{desk.topic}:0", "--from-offset", "2", "--to-offset", "9") == [(0, 2, 9)]
        told = desk.run("--version", "4")
    assert f"{desk.topic}\t0\t4\t6\t2\t-" in told
    assert "Nothing was read" in told


def test_a_stretch_may_be_given_by_times(desk: Desk) -> None:
    bounds = ["--from-datetime", iso(desk.times[3]), "--to-datetime", iso(desk.times[8])]
    assert desk.stretches(*bounds) == [(0, 3, 10), (1, 3, 10)]
    assert desk.stretches(*bounds, "--ordered") == [(0, 3, 8), (1, 3, 8)]
    assert desk.stretches(*bounds[:2]) == [(0, 3, 6), (1, 3, 10)]
    assert f"14 offsets to look at, for records with a time from {bounds[1]} to {bounds[3]}" in desk.run(*bounds)


def test_exactly_the_records_between_two_times_are_read_whatever_their_order(desk: Desk, spark: SparkSession) -> None:
    """The offset of the first record after them ended the range: what came later with an earlier time was left out."""
    producer = Producer({"bootstrap.servers": desk.server.bootstrap})
    for value, at in (("late", desk.times[5]), ("too early", desk.times[2]), ("latest", desk.times[8] - 1)):
        producer.produce(desk.topic, value, partition=1, timestamp=at)
    assert producer.flush(LIMIT_S) == 0
    bounds = ["--topic", f"{desk.topic}:1", "--from-datetime", iso(desk.times[3]), "--to-datetime", iso(desk.times[8])]
    desk.run(*bounds, "--output", "x.jsonl")
    found = [json.loads(line)["offset"] for line in Path("x.jsonl").read_text("utf-8").splitlines()]
    assert found == [3, 4, 5, 6, 7, 10, 12]
    SEEN.clear()
    desk.run(*bounds, "--process", f"{__name__}:keep")
    assert SEEN[0][0] == found
    SEEN.clear()
    desk.run(*bounds, "--ordered", "--process", f"{__name__}:keep")
    assert SEEN[0][0] == [3, 4, 5, 6, 7]
    assert spark.range(1).count() == 1


def test_records_are_written_as_json_lines_and_nothing_of_the_group_is_touched(desk: Desk) -> None:
    with desk.untouched():
        told = desk.run("--topic", f"{desk.topic}:0", "--from-offset", "7", "--to-offset", "10", "--output", "x.jsonl")
    assert told == "3 records written\n"
    found = [json.loads(line) for line in Path("x.jsonl").read_text("utf-8").splitlines()]
    assert [each["offset"] for each in found] == [7, 8, 9]
    assert (found[0]["key"], found[0]["value"], found[0]["headers"]) == ("k", "record 7", [["n", "7"]])
    assert found[2]["value"] == {"base64": "/w=="}
    assert datetime.fromisoformat(found[0]["timestamp"]).timestamp() * 1000 == pytest.approx(desk.times[7])
    assert [path.name for path in desk.folder.glob("x.jsonl*")] == ["x.jsonl"]


def test_records_may_go_through_a_pipe(desk: Desk) -> None:
    found = [json.loads(line) for line in desk.run("--version", "4", "--output", "-").splitlines()]
    assert [each["offset"] for each in found] == [4, 5]


@pytest.mark.parametrize("native", ["never", "required"])
def test_records_that_no_frame_can_hold_are_shown(desk: Desk, topic: Callable[..., str], native: str) -> None:
    """Their times are microseconds and nanoseconds, or their headers cannot be read. The others are whole."""
    if native == "required" and find_spec("offsetkeeper_native") is None:
        pytest.skip("no C compiler made it")
    times = [1_700_000_000_000 * 1000**power for power in (1, 2, 0)]
    name = topic(1, {"retention.ms": "-1", "message.timestamp.after.max.ms": str(2**62)})
    odd = [b"h"] * 100_001 if native == "required" else [b"\xff", b"\xfe"]
    with Producer({"bootstrap.servers": desk.server.bootstrap}) as producer:
        for at in times:
            producer.produce(name, "v", partition=0, timestamp=at, headers=[("n", b"1")])
            assert producer.flush(LIMIT_S) == 0
        produce(desk.server, name, odd, odd)
        producer.produce(name, "v", partition=0, timestamp=times[2], headers=[("n", b"1")])
        assert producer.flush(LIMIT_S) == 0
    asked = ["--topic", name, "--to-offset", "6", "--kafka", f"offsetkeeper.native={native}", "--output"]
    with desk.untouched():
        found = [json.loads(line) for line in desk.run(*asked, "-").splitlines()]
    assert [each["offset"] for each in found] == [*range(6)]
    assert [each.get("timestamp_ms") for each in found] == [times[0], times[1], None, None, None, None]
    assert [each["timestamp"] is None for each in found] == [True, True, False, False, False, False]
    assert [each["value"] for each in found] == ["v", "v", "v", "x", "x", "v"]
    assert [each["headers"] for each in found] == [[["n", "1"]]] * 3 + [[]] * 2 + [[["n", "1"]]]
    for each in found:
        bad = each["offset"] in {3, 4}
        assert each.get("unreadable", "").startswith(f"{name} 0: the record at offset {each['offset']} has h" * bad)
        assert ("unreadable" in each) is bad
    until = ["--from-datetime", iso(times[2] - 1), "--to-datetime", iso(times[2] + 1)]
    asked = ["--topic", name, *until, "--kafka", f"offsetkeeper.native={native}", "--output"]
    found = [json.loads(line) for line in desk.run(*asked, "-").splitlines()]
    assert [each["offset"] for each in found] == [2, 5]


def test_a_replay_goes_beside_a_run_that_holds_the_group(desk: Desk) -> None:
    opened = open_store(f"sqlite:///{desk.folder}/offsets.db")
    run = Ledger(opened, "shop")
    run.acquire()
    desk.run("--version", "3", "--output", "x.jsonl")
    run.commit(run.batch([OffsetRange(desk.topic, 0, 6, 7)]))
    opened.close()


def test_what_retention_has_taken_is_said_and_refused_unless_accepted(desk: Desk) -> None:
    desk.delete_before(3)
    assert desk.stretches("--version", "3", code=1) == [(0, 3, 4), (1, 0, 10)]
    assert f"{desk.topic}\t0\t3\t4\t1\t3" in desk.run("--version", "3", code=1)
    with pytest.raises(SettingsError, match="retention has deleted 3 of these offsets"):
        desk.run("--version", "3", "--output", "x.jsonl")
    assert not Path("x.jsonl").exists()
    desk.run("--version", "3", "--output", "x.jsonl", "--partial")
    assert len(Path("x.jsonl").read_text("utf-8").splitlines()) == 11


def test_a_batch_of_a_topic_that_was_made_again_is_refused(desk: Desk) -> None:
    desk.server.delete_topic(desk.topic)
    desk.server.create_topic(desk.topic, 2)
    with pytest.raises(Refused, match="created again since"):
        desk.run("--version", "3")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "say what to read"),
        (["--version", "3", "--from-offset", "1"], "say what to read"),
        (["--from-offset", "1", "--from-datetime", "2026-01-31T12:00:00Z"], "not both"),
        (["--from-datetime", "2026-01-31T12:00:00"], "--from-datetime .* has no time zone"),
        (["--from-offset", "0", "--to-offset", "11"], "but the partition ends at 10"),
        (["--from-offset", "0", "--ordered"], "--ordered is about --to-datetime"),
        (["--topic", "nowhere", "--from-offset", "0"], "topic nowhere does not exist"),
        (["--from-offset", "10"], "the requested ranges are empty"),
        (["--topic", "nowhere:0", "--from-offset", "0"], "nowhere 0 does not exist"),
        (["--version", "3", "--output", "-", "--process", "a:b"], "not both"),
        (["--version", "3", "--output", "there.txt"], "already exists"),
        (["--version", "3", "--output", "no/folder/x"], "cannot be written"),
        (["--version", "3", "--process", "nowhere:f"], "write module:function"),
        (["--version", "3", "--process", "json:nothing"], "write module:function"),
        (["--version", "3", "--process", "json"], "write module:function"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_cannot_be_read_is_refused(desk: Desk, arguments: list[str], told: str) -> None:
    Path("there.txt").write_text("mine", "utf-8")
    with pytest.raises(OffsetkeeperError, match=told):
        desk.run(*arguments)
    assert Path("there.txt").read_text("utf-8") == "mine"


def test_a_version_that_is_of_no_batch_is_refused(desk: Desk) -> None:
    with pytest.raises(NotAllowed, match="was made by place, not by a batch"):
        desk.run("--version", "2")
    with pytest.raises(NotAllowed, match="is not in its history"):
        desk.run("--version", "99")


SEEN: list[tuple[list[int], Batch]] = []


def keep(records: DataFrame, batch: Batch) -> None:
    SEEN.append((sorted(row.offset for row in records.select("offset").collect()), batch))


def test_a_function_gets_the_frame_and_the_ranges_under_another_identity(desk: Desk, spark: SparkSession) -> None:
    SEEN.clear()
    with desk.untouched():
        assert "is done" in desk.run("--version", "4", "--process", f"{__name__}:keep")
    [(offsets, batch)] = SEEN
    assert offsets == [4, 5]
    assert (batch.group, batch.ranges) == ("shop.replay", (OffsetRange(desk.topic, 0, 4, 6),))
    with desk.untouched():
        desk.run("--version", "4", "--process", f"{__name__}:keep")
    assert SEEN[1][1].id != batch.id, "each replay has an identity of its own"
    assert spark.range(1).count() == 1
    assert "" not in sys.path


def give_back(records: DataFrame, _: Batch) -> DataFrame:
    return records.where("offset > 4")


def test_a_frame_that_a_function_returns_is_not_lost_in_silence(desk: Desk, spark: SparkSession) -> None:
    assert spark.range(1).count() == 1
    with pytest.raises(SettingsError, match="give_back returned a DataFrame, and nothing writes it: write it in"):
        desk.run("--version", "4", "--process", f"{__name__}:give_back")


def test_a_group_that_nobody_knows_is_nothing_to_replay(desk: Desk) -> None:
    with pytest.raises(Refused, match="group 'nobody' is not in"):
        desk.run("--topic", desk.topic, "--from-offset", "1", "--to-offset", "2", group="nobody")


def test_the_repair_of_the_page_puts_right_rows_over_wrong_ones(
    desk: Desk, spark: SparkSession, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """docs/operating.md: also when it runs twice."""
    del spark
    [repair] = blocks(ROOT / "docs" / "operating.md")
    (desk.folder / "repair.py").write_text(repair.replace("postgresql://localhost/shop", database), "utf-8")
    monkeypatch.delitem(sys.modules, "repair", raising=False)
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute('create table archive (topic text, partition int, "offset" bigint, item text)')
        connection.execute('create unique index archived on archive (topic, partition, "offset")')
        connection.execute("insert into archive values (%s, 0, 3, 'right'), (%s, 0, 4, 'wrong')", [desk.topic] * 2)
        for _ in range(2):
            with desk.untouched():
                assert "is done" in desk.run("--version", "4", "--process", "repair:again")
        rows = connection.execute('select "offset", item from archive order by 1').fetchall()
    assert rows == [(3, "right"), (4, "RECORD 4"), (5, "RECORD 5")]


def test_a_file_of_the_current_folder_hides_no_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be a stranger's."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    for name in ("colorsys", "repair_of_a_shop"):
        (tmp_path / f"{name}.py").write_text("def again(frame, batch): ...")
    with pytest.raises(SettingsError, match="colorsys:again: write module:function"):
        _function("colorsys:again")
    assert callable(_function("repair_of_a_shop:again"))
    assert "" not in sys.path


LATE: list[Callable[[], None]] = []


def read_late(records: DataFrame, _batch: Batch) -> None:
    LATE.pop()()
    records.count()


def test_what_goes_wrong_in_a_task_is_raised_as_ours(desk: Desk, spark: SparkSession) -> None:
    """Spark tells it as text in an error of its own."""
    LATE[:] = [lambda: desk.delete_before(5)]
    with pytest.raises(
        RangeGone, match=f"^{desk.topic} 0: offsets 4 up to 6 are to be read, but Kafka holds 5"
    ) as told:
        desk.run("--version", "4", "--process", f"{__name__}:read_late")
    assert type(told.value.__cause__).__module__.startswith("pyspark.")
    assert spark.range(1).count() == 1


@pytest.mark.timeout(30)  # a FIFO would be waited for without an end
def test_what_others_put_in_place_of_the_unfinished_file_is_not_written_into(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine", "utf-8")
    with using(SameToken()):
        part = tmp_path / "x.jsonl.token.part"
        for make in (lambda: part.symlink_to(victim), lambda: os.mkfifo(part), lambda: part.write_text("old", "utf-8")):
            make()
            with pytest.raises(SettingsError, match="cannot be written"), _opened(str(tmp_path / "x.jsonl")):
                pass
            part.unlink()
    assert victim.read_text("utf-8") == "mine"
    (tmp_path / "away").symlink_to(tmp_path / "nowhere")
    with pytest.raises(SettingsError, match="already exists"), _opened(str(tmp_path / "away")):
        pass


class SameToken(Environment):
    """All know the token."""

    def token(self, size: int = 8) -> str:
        """Return it."""
        del size
        return "token"


def test_two_replays_to_one_file_do_not_write_into_each_other(tmp_path: Path) -> None:
    """The name of the unfinished file was the same, and the second deleted that of the first."""
    path = tmp_path / "x.jsonl"
    with _opened(str(path)) as first:
        first.write("first")
        with _opened(str(path)) as second:
            second.write("second")
        assert path.read_text("utf-8") == "second"
        path.unlink()
    assert path.read_text("utf-8") == "first"
    assert [*tmp_path.iterdir()] == [path]


def test_what_a_killed_replay_leaves_is_not_taken_for_records(tmp_path: Path) -> None:
    """It has a name of its own, and the next replay begins anew."""
    path = tmp_path / "x.jsonl"
    code = "import sys; from offsetkeeper.cli.replay import _opened\nwith _opened(sys.argv[1]) as file:\n"
    code += " file.write('half'); file.flush(); print('begun', flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", code, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as killed:
        assert killed.stdout is not None
        assert killed.stdout.readline() == b"begun\n"
        killed.kill()
    [left] = tmp_path.iterdir()
    assert re.fullmatch(r"x\.jsonl\.\w+\.part", left.name)
    with _opened(str(path)) as file:
        file.write("whole")
    assert {each: each.read_text("utf-8") for each in tmp_path.iterdir()} == {left: "half", path: "whole"}


def test_a_replay_that_fails_leaves_nothing(tmp_path: Path) -> None:
    with suppress(Refused), _opened(str(tmp_path / "x.jsonl")) as file:
        file.write("half")
        raise Refused("no")
    assert not [*tmp_path.iterdir()]
