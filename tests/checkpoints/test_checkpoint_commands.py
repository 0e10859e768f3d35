"""The commands on checkpoints, as an operator runs them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from typer.testing import CliRunner, Result

from checkpoints.written import content, offsets, put, write
from offsetkeeper import Policies, open_store
from offsetkeeper.checkpoint import LocalFiles, read_checkpoint
from offsetkeeper.cli.main import app
from offsetkeeper.core.ledger import Ledger
from offsetkeeper.core.offsets import OffsetRange, Position, TopicPartition
from offsetkeeper.errors import Fenced, NotAllowed, OffsetkeeperError, Refused, SettingsError
from offsetkeeper.testing.kafka import KafkaServer

LIMIT_S = 30


def run(*arguments: str, ok: bool = True) -> Result:
    """Run a command on a checkpoint."""
    result = CliRunner().invoke(app, ["checkpoint", *arguments])
    if ok and result.exception is not None:
        raise result.exception
    return result


def run_json(*arguments: str, ok: bool = True) -> Any:
    """Run a command and return the JSON it printed."""
    return json.loads(run(*arguments, "--json", ok=ok).stdout)


class Program:
    """What the line of an export calls: it only keeps what it is given."""

    def __init__(self, **given: Any) -> None:
        self.given = given

    def run(self, *_: object) -> Program:
        """Return the program."""
        return self

    def start(self, *_: object, **given: Any) -> Program:
        """Return the program with what the query is given."""
        return Program(**self.given, **given)


def called(printed: str, **names: object) -> dict[str, Any]:
    """Return what the last line of an export gives to the program; a name is one of the program's, or `names`."""
    known = dict.fromkeys(("brokers", "spark", "process", "query")) | {"Pipeline": Program, "Policies": Policies}
    line = printed.splitlines()[-1].removeprefix("Next: ")
    return dict(eval(line, known | names).given)  # noqa: S307 - printed by the command


@dataclass
class Place:
    """A checkpoint, and a topic of two partitions with fifty records each of which it has read forty."""

    files: LocalFiles
    topic: str
    brokers: str

    @property
    def path(self) -> str:
        """The folder."""
        return str(self.files.path)

    def next(self) -> list[int]:
        """Where the query goes on, by partition."""
        found = read_checkpoint(self.files).next().positions
        return [found[tp] for tp in sorted(found)]


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalFiles:
    monkeypatch.chdir(tmp_path)
    return write(tmp_path / "checkpoint")


@pytest.fixture
def place(files: LocalFiles, kafka_server: KafkaServer, topic: Callable[..., str]) -> Place:
    name = topic(2)
    with Producer({"bootstrap.servers": kafka_server.bootstrap}) as producer:
        for _ in range(50):
            for partition in (0, 1):
                producer.produce(name, b"x", partition=partition)
        assert producer.flush(LIMIT_S) == 0
    for path in [*(f"offsets/{n}" for n in range(4)), "sources/0/0"]:
        put(files, path, (files.read(path) or b"").decode().replace("orders", name))
    return Place(files, name, kafka_server.bootstrap)


def test_a_checkpoint_is_shown(files: LocalFiles) -> None:
    shown = run("inspect", str(files.path)).stdout.splitlines()
    assert shown[1].startswith("newest batch planned 3 at 1970-01-01T00:00:01Z, committed 3")
    assert shown[-3:] == [
        "source\ttopic\tpartition\tran from\tran to\tnext from\tnext to",
        "0\torders\t0\t30\t40\t40\t-",
        "0\torders\t1\t30\t40\t40\t-",
    ]
    assert run_json("inspect", str(files.path))["next"] == {"batch": 4, "kind": "new", "watermark_ms": 20}


def test_verify_exits_with_1_where_anything_is_wrong(files: LocalFiles) -> None:
    assert run("verify", str(files.path)).stdout == "0 problems, 0 harmless notes\n"
    files.delete("offsets/1")
    assert run("verify", str(files.path)).stdout.splitlines()[-1] == "0 problems, 1 harmless note"
    files.delete("metadata")
    result = run("verify", str(files.path), ok=False)
    assert (result.exit_code, result.stdout.splitlines()[-1]) == (1, "1 problem, 1 harmless note")
    [first, _] = run_json("verify", str(files.path), ok=False)["findings"]
    assert (first["file"], first["harmless"]) == ("metadata", False)


def test_two_checkpoints_are_compared(files: LocalFiles, tmp_path: Path) -> None:
    other = write(tmp_path / "other")
    assert run_json("diff", str(files.path), "--against", str(other.path)) == []
    files.delete("commits/3")
    result = run("diff", str(files.path), "--against", str(other.path), ok=False)
    assert result.exit_code == 1
    assert result.stdout.splitlines()[1:] == ["orders\t0\t30\t40\t-10", "orders\t1\t30\t40\t-10"]


@pytest.mark.parametrize("settings", ["", "?table=team"])
def test_the_line_that_an_export_prints_is_of_the_store_with_the_positions(files: LocalFiles, settings: str) -> None:
    """Without its settings the URL is of another table: empty, so that a run would read all again."""
    store = f"sqlite:///{files.path.parent}/offsets.db{settings}"
    told = run("export", str(files.path), "--to", store, "--group", "shop", "--execute").stdout
    assert told.splitlines()[-2] == "If the query had subscribePattern or assign, give topics= as it had them."
    given = called(told, store=store)
    stored = open_store(given["store"]).load(given["group"]).positions
    assert {tp: at.offset for tp, at in stored.items()} == {TopicPartition("orders", p): 40 for p in (0, 1)}
    assert given["topics"] == ["orders"]
    assert given["policies"].first_run == "stop"


def test_a_query_with_state_goes_on_with_the_location_that_spark_knows(tmp_path: Path) -> None:
    """A path is the same to Spark; a URL for these commands is not, and may have a key."""
    path = str(write(tmp_path / "checkpoint", stateful=True).path)
    to = ("--to", f"sqlite:///{tmp_path}/offsets.db", "--group", "shop", "--execute", "--overwrite")
    assert called(run("export", path, *to).stdout)["checkpoint"] == path
    assert called(run("export", f"file://{path}", *to).stdout, checkpoint="Spark's")["checkpoint"] == "Spark's"


def test_a_checkpoint_goes_into_a_store_and_comes_out_of_it(files: LocalFiles, tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/offsets.db"
    assert run("export", str(files.path)).stdout == '{"orders":{"0":40,"1":40}}\n'
    assert "Nothing was changed" in run("export", str(files.path), "--to", store, "--group", "shop").stdout
    assert list(open_store(store).groups()) == []
    run("export", str(files.path), "--to", store, "--group", "shop", "--execute")
    assert {at.offset for at in open_store(store).load("shop").positions.values()} == {40}
    run("diff", str(files.path), "--store", store, "--group", "shop")
    new = LocalFiles(tmp_path / "new")
    told = run("seed", "new", "--store", store, "--group", "shop").stdout
    assert "Nothing was changed" in told
    assert "ids of topics" not in told  # the store has none either
    assert content(new) == {}
    run("seed", "new", "--store", store, "--group", "shop", "--topic", "orders:1", "--execute")
    assert content(new) == {"sources/0/0": b'\0v1\n{"orders":{"1":40}}'}
    ledger = Ledger(open_store(store), "shop")
    ledger.load()
    ledger.acquire()
    ledger.begin(ledger.batch([OffsetRange("orders", 0, 40, 50)]), lands_in=["table"])
    seed = ("seed", "held", "--store", store, "--group", "shop", "--execute")
    assert "group 'shop' is held by" in str(run(*seed, ok=False).exception)
    ledger.release()
    assert "was begun and not committed, and outputs may have its records" in str(run(*seed, ok=False).exception)
    ledger.rewind({TopicPartition("orders", 0): Position(0)}, "the batch is dropped")
    told = str(run(*seed, ok=False).exception)
    assert "orders 0 40 50" in told
    assert not content(LocalFiles(tmp_path / "held"))
    run(*seed, "--force")
    Path("offsets.csv").write_text("orders,0,7\n")
    run("seed", "named", "--from-file", "offsets.csv", "--source", "a", "--execute")
    assert content(LocalFiles(tmp_path / "named")) == {"sources/a/0": b'\0v1\n{"orders":{"0":7}}'}


def test_a_checkpoint_is_held_against_kafka(place: Place) -> None:
    against = ("diff", place.path, "--brokers", place.brokers)
    assert [each["verdict"] for each in run_json(*against)] == ["ok", "ok"]
    log = (place.files.read("offsets/3") or b"").decode().replace('"1":40', '"1":51,"2":0')
    put(place.files, "offsets/3", log)
    result = run(*against, ok=False)
    assert result.exit_code == 1
    assert [line.split("\t", 1)[1] for line in result.stdout.splitlines()[1:]] == [
        "0\t40\t0\t50\tok",
        "1\t51\t0\t50\tbeyond the end",
        "2\t0\t-\t-\tgone",
    ]


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (["--to-earliest"], [0, 0]),
        (["--to-latest"], [50, 50]),
        (["--to-offset", "7"], [7, 7]),
        (["--shift-by", "-5"], [35, 35]),
        (["--shift-by", "0"], [40, 40]),
        (["--to-batch", "1"], [20, 20]),
        (["--to-datetime", "2099-01-01T00:00:00Z"], [50, 50]),
        (["--to-current"], [40, 40]),
        (["--by-duration", "P1W"], [0, 0]),
        (["--by-duration", "P1DT2H30M"], [0, 0]),
        (["--by-duration", "PT1.5H"], [0, 0]),
        (["--by-duration", "PT0.001S"], [50, 50]),
        (["--by-duration", "90m"], [0, 0]),
        (["--to-offset", "60", "--clip"], [50, 50]),
        (["--shift-by", "-70", "--clip"], [0, 0]),
    ],
    ids=lambda value: " ".join(map(str, value)),
)
def test_a_query_is_moved_when_asked(place: Place, target: list[str], expected: list[int]) -> None:
    command = ["move", place.path, "--brokers", place.brokers, *target]
    shown = run_json(*command, "--dry-run")
    assert (shown["executed"], place.next()) == (False, [40, 40])
    assert [step["new"] for step in shown["steps"]] == [at for at in expected if at != 40]
    nothing = expected == [40, 40]
    told = run(*command).stdout
    done = run(*command, "--execute", "--force").stdout
    assert done.splitlines()[: len(told.splitlines()) - 1] == told.splitlines()[:-1]
    assert ("Nothing to do: the query already resumes there." in done, "Done." in done) == (nothing, not nothing)
    assert place.next() == expected


def test_positions_that_kafka_does_not_hold_are_taken_to_the_nearest(place: Place) -> None:
    """What retention has overtaken, or what is beyond the end, and nothing else."""
    put(place.files, "offsets/3", (place.files.read("offsets/3") or b"").decode().replace('"1":40', '"1":70'))
    command = ["move", place.path, "--brokers", place.brokers, "--to-current"]
    with pytest.raises(OffsetkeeperError, match="outside the offsets that Kafka holds, 0 to 50"):
        run(*command)
    shown = run_json(*command, "--clip")
    assert [(step["partition"], step["old"], step["new"]) for step in shown["steps"]] == [(1, 70, 50)]
    assert any("50" in note for note in shown["notes"])
    run(*command, "--clip", "--execute", "--force")
    assert place.next() == [40, 50]


def test_a_part_of_the_partitions_is_moved(place: Place) -> None:
    Path("offsets.csv").write_text(f"{place.topic},0,3\n{place.topic},1,4\n")
    command = ["move", place.path, "--brokers", place.brokers, "--topic", f"{place.topic}:1", "--execute", "--force"]
    run(*command, "--from-file", "offsets.csv")
    assert place.next() == [40, 4]
    run(*command, "--to-batch", "0")
    assert place.next() == [40, 10]


def test_a_move_is_undone(place: Place) -> None:
    run("move", place.path, "--brokers", place.brokers, "--to-offset", "7", "--execute", "--force")
    assert "undo of move" in run("undo", place.path).stdout
    assert place.next() == [7, 7]
    done = run_json("undo", place.path, "--execute")
    assert place.next() == [40, 40]
    assert place.files.backups()[-1] == done["backup"]
    run("undo", place.path, "--backup", done["backup"], "--execute")
    assert place.next() == [7, 7]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["move", "--to-offset", "51"], "outside the offsets that Kafka holds, 0 to 50"),
        (["move"], "exactly one target"),
        (["move", "--to-earliest", "--to-batch", "1"], "exactly one target"),
        (["diff"], "give one side"),
        (["diff", "--store", "memory://x"], "give --group"),
        (["export", "--to", "memory://x"], "give --group"),
        (["seed"], "give --group and --store"),
        (["seed", "--store", "memory://x", "--group", "g"], "no positions of group"),
        (["truncate", "--batch", "1"], "Choose the query id"),
        (["undo"], "no change to undo"),
        (["undo", "--backup", "typo"], "has no backup 'typo'; its backups: none"),
        (["move", "--topic", "typo:0", "--to-earliest"], "typo 0 does not exist"),
        (["move", "--topic", "typo", "--to-batch", "1"], "no partition of typo is among the offsets given"),
        (["move", "--to-earliest", "--group", "g"], "--group selects lines"),
        (["diff", "--group", "g", "--brokers", "127.0.0.1:1"], "give one side"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_cannot_be_done_is_told_and_changes_nothing(place: Place, arguments: list[str], told: str) -> None:
    before = content(place.files)
    brokers = ["--brokers", place.brokers] if arguments[0] == "move" else []
    execute = ["--execute", "--force"] if arguments[0] not in {"diff", "export"} else []
    with pytest.raises(OffsetkeeperError, match=told):
        run(arguments[0], place.path, *arguments[1:], *brokers, *execute)
    assert content(place.files) == before


def test_a_query_that_may_run_is_not_changed_unless_on_purpose(files: LocalFiles) -> None:
    command = ["truncate", str(files.path), "--batch", "1", "--query-id", "new", "--execute"]
    with pytest.raises(Fenced, match="a query may be running"):
        run(*command)
    assert "Done. The backup is" in run(*command, "--force").stdout
    assert read_checkpoint(files).offsets == [0, 1]


def test_formats_are_converted_and_completed(files: LocalFiles) -> None:
    run("convert", str(files.path), "--to", "2", "--source", "a", "--execute", "--force")
    assert (files.read("offsets/3") or b"").decode().split("\n")[2] == f"a:{offsets(40, 40)}"
    with pytest.raises(NotAllowed, match="give its sources a in the order"):
        run("convert", str(files.path), "--to", "1")
    run("convert", str(files.path), "--to", "1", "--source", "a", "--execute")
    put(files, "offsets/3", f"v1\n\n{offsets(40, 40)}")
    run("complete", str(files.path), "--execute", "--force")
    assert '"x":"1"' in (files.read("offsets/3") or b"").decode().split("\n")[1]
    with pytest.raises(SettingsError, match=r"Write webhdfs://user@namenode:9870/path,"):
        run("complete", "hdfs://host/checkpoint")


def test_a_topic_that_the_query_does_not_read_is_told(place: Place, topic: Callable[..., str]) -> None:
    other = topic(1)
    with pytest.raises(NotAllowed, match=f"has begun to read topic {other}"):
        run("move", place.path, "--brokers", place.brokers, "--topic", other, "--to-earliest")
    assert TopicPartition(place.topic, 0) in read_checkpoint(place.files).next().positions


def test_a_partition_that_is_not_there_is_not_left_out_in_silence(place: Place) -> None:
    command = ["move", place.path, "--brokers", place.brokers, "--topic", f"{place.topic}:0,9", "--to-earliest"]
    with pytest.raises(Refused, match=f"{place.topic} 9 does not exist"):
        run(*command, "--execute", "--force")
    assert place.next() == [40, 40]


def test_a_wrong_name_of_a_backup_is_told_with_those_there_are(files: LocalFiles) -> None:
    run("truncate", str(files.path), "--batch", "1", "--query-id", "new", "--execute", "--force")
    [name] = files.backups()
    with pytest.raises(NotAllowed, match=f"has no backup 'backup-typo'; its backups: {name}"):
        run("undo", str(files.path), "--backup", "backup-typo")


def test_a_csv_of_several_groups_moves_and_seeds_by_the_one_that_is_named(place: Place, tmp_path: Path) -> None:
    Path("offsets.csv").write_text(f"till,{place.topic},0,9\nshop,{place.topic},0,2\n")
    command = ["move", place.path, "--brokers", place.brokers, "--from-file", "offsets.csv", "--execute", "--force"]
    with pytest.raises(SettingsError, match="select one with --group"):
        run(*command)
    run(*command, "--group", "shop")
    assert place.next() == [2, 40]
    run("seed", "new", "--from-file", "offsets.csv", "--group", "till", "--execute")
    assert b'"0":9' in content(LocalFiles(tmp_path / "new"))["sources/0/0"]
    Path("offsets.csv").write_text(f"{place.topic},0,2\n")
    with pytest.raises(SettingsError, match="line 1 names no group"):
        run("seed", "other", "--from-file", "offsets.csv", "--group", "till", "--execute")
    with pytest.raises(Refused, match="no partition of typo is among the offsets given"):
        run("seed", "other", "--from-file", "offsets.csv", "--topic", "typo", "--execute")


def test_sides_to_compare_with_come_from_the_environment_too(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    store = f"sqlite:///{place.path}.db"
    run("export", place.path, "--to", store, "--group", "shop", "--execute")
    monkeypatch.setenv("OFFSETKEEPER_STORE", store)
    assert run_json("diff", place.path, "--group", "shop") == []
    Path("offsetkeeper.toml").write_text(f'brokers = "{place.brokers}"\n')
    assert run_json("diff", place.path, "--group", "shop") == []
    assert [each["verdict"] for each in run_json("diff", place.path)] == ["ok", "ok"]
