"""The command lag, on a real broker: while nothing runs, without permission to read, of a checkpoint, at every look."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from typer.testing import CliRunner

from fixtures.guarded import Guarded, options
from offsetkeeper import Ledger, OffsetRange, Position, TopicPartition, open_store
from offsetkeeper.cli.limits import Limits
from offsetkeeper.cli.main import app
from offsetkeeper.core import environment
from offsetkeeper.core.bounds import Bounds
from offsetkeeper.errors import NotAuthorized, Refused, SettingsError
from offsetkeeper.operate.lag import measure, total
from offsetkeeper.operate.status import Status
from offsetkeeper.testing.kafka import KafkaServer
from offsetkeeper.testing.server import wait_until

LIMIT_S = 30


def run(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, arguments)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == code
    return result.stdout


def produce(brokers: str, topic: str, partition: int, times: list[int]) -> None:
    producer = Producer({"bootstrap.servers": brokers})
    for at in times:
        producer.produce(topic, b"x", partition=partition, timestamp=at)
    assert producer.flush(LIMIT_S) == 0


def ago_ms(seconds: int) -> int:
    return time.time_ns() // 1_000_000 - 1000 * seconds


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    url = f"sqlite:///{tmp_path}/offsets.db"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OFFSETKEEPER_STORE", url)
    return url


def stand(store: str, offsets: dict[TopicPartition, int]) -> Ledger:
    """Let the group stand at these offsets, held by a run."""
    ledger = Ledger(open_store(store), "shop", name="host:1")
    ledger.acquire("start")
    ledger.place({tp: Position(offset) for tp, offset in offsets.items()})
    return ledger


def test_topics_and_group_have_their_sums(kafka_server: KafkaServer, topic: Callable[..., str], store: str) -> None:
    one, other = sorted([topic(2), topic(1)])
    brokers = kafka_server.bootstrap
    wide, narrow = (
        (one, other) if len(kafka_server.admin().list_topics(one).topics[one].partitions) == 2 else (other, one)
    )
    produce(brokers, wide, 0, [ago_ms(100)] * 5)
    produce(brokers, wide, 1, [ago_ms(50)] * 5)
    produce(brokers, narrow, 0, [ago_ms(30)] * 3)
    stand(store, {TopicPartition(wide, 0): 2, TopicPartition(narrow, 0): 1})
    found = json.loads(run("lag", "shop", "--brokers", brokers, "--json"))
    topics = {each["topic"]: each for each in found["topics"]}
    assert (topics[wide]["records"], topics[wide]["uncommitted"], topics[narrow]["records"]) == (3, 1, 2)
    assert (found["records"], found["uncommitted"], found["estimated"]) == (5, 1, False)
    assert 99 < found["seconds"] < 160
    assert found["seconds"] == topics[wide]["seconds"]
    lines = run("lag", "shop", "--brokers", brokers).splitlines()
    assert lines[0].startswith("# shop: ok, 5 records behind, the oldest from 1 min")
    assert lines[1].split("\t")[:5] == ["topic", "partition", "position", "end", "records"]
    [added] = [line.split("\t") for line in lines if line.startswith(f"{wide}\t1\t")]
    assert added[2:5] == ["no commit", "5", "-"]
    assert f"{wide}\tall\t-\t-\t3\t" in "\n".join(lines)


@pytest.mark.parametrize(("apart_s", "word"), [(60, "growing"), (5, "ok")])
def test_two_samples_tell_speed_and_some_a_commit_interval_apart_growth_though_nothing_commits(
    kafka_server: KafkaServer,
    topic: Callable[..., str],
    store: str,
    apart_s: int,
    word: str,
) -> None:
    """A run that hangs in a batch is seen: ends are asked for at each look, not when the batch was planned."""
    name, brokers = topic(1), kafka_server.bootstrap
    produce(brokers, name, 0, [ago_ms(100)] * 5)
    ledger = stand(store, {TopicPartition(name, 0): 0})

    class Looking(environment.Environment):
        looks = 0

        def now_ms(self) -> int:
            return super().now_ms() + self.looks * apart_s * 1000

        def wait(self, _: float) -> None:
            self.looks += 1
            if self.looks == 5:
                raise KeyboardInterrupt
            produce(brokers, name, 0, [ago_ms(0)] * 4)
            if self.looks == 4:
                ledger.commit(ledger.batch([OffsetRange(name, 0, 0, 20)]))

    with environment.using(Looking()):
        result = CliRunner().invoke(app, ["lag", "shop", "--brokers", brokers, "--json", "--watch", "1"])
    found = [json.loads(line) for line in result.stdout.splitlines()]
    assert [each["records"] for each in found] == [5, 9, 13, 17, 1]
    assert [each["status"] for each in found[:4]] == ["ok", "ok", "ok", word]
    assert found[1]["processed_per_s"] == 0
    assert found[1]["produced_per_s"] > 0
    assert found[1]["catch_up_s"] is None
    assert found[4]["catch_up_s"] < 60


def test_without_permission_to_read_seconds_are_estimated_and_marked(guarded: Guarded, store: str) -> None:
    name = f"seen-{time.time_ns()}"
    other = f"{name}-other"
    for each in (name, other):
        guarded.server.create_topic(each)
        produce(guarded.server.bootstrap, each, 0, [ago_ms(60 * (200 - minute)) for minute in range(100)])
    guarded.allow(other, "READ")
    stand(store, {TopicPartition(name, 0): 50, TopicPartition(other, 0): 50})
    arguments = ["lag", "shop", "--brokers", guarded.brokers]
    arguments += [word for pair in options().items() for word in ("--kafka", "=".join(pair))]
    with pytest.raises(NotAuthorized):
        run(*arguments)
    guarded.allow(name, "DESCRIBE")
    found = json.loads(run(*arguments, "--json"))
    assert found["estimated"] is True
    assert [each["estimated"] for each in found["partitions"]] == [True, False]
    assert 140 < found["partitions"][0]["seconds"] / 60 < 180
    assert "\t~ 2 h" in run(*arguments)
    guarded.allow(name, "READ")
    assert json.loads(run(*arguments, "--json"))["estimated"] is False


def test_a_checkpoint_has_its_lag_without_a_store(
    kafka_server: KafkaServer, topic: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    name = topic(1)
    produce(kafka_server.bootstrap, name, 0, [ago_ms(100)] * 5)
    metadata = '{"batchWatermarkMs":0,"batchTimestampMs":0,"conf":{}}'
    files: dict[str, Any] = {
        "metadata": '{"id":"9c2b7f6e-5a43-4c7e-9a1d-0f4b6f3f2a11"}',
        "offsets/0": f'v1\n{metadata}\n{{"{name}":{{"0":2}}}}',
        "commits/0": 'v1\n{"nextBatchWatermarkMs":0}',
    }
    for path, text in files.items():
        (tmp_path / "my query" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "my query" / path).write_text(text, "utf-8")
    found = json.loads(run("lag", "--checkpoint", "my query", "--brokers", kafka_server.bootstrap, "--json"))
    assert (found["group"], found["records"], found["status"]) == ("my query", 3, "ok")
    assert found["partitions"][0]["position"] == 2


def test_a_group_that_nobody_knows_is_no_group_without_lag(
    kafka_server: KafkaServer, topic: Callable[..., str], store: str
) -> None:
    """A name that is mistyped must not look healthy for ever."""
    stand(store, {TopicPartition(topic(1), 0): 0})
    with pytest.raises(Refused, match=r"shpo: .* has no position"):
        run("lag", "shpo", "--brokers", kafka_server.bootstrap)
    new = json.loads(run("lag", "shpo", "--brokers", kafka_server.bootstrap, "--topic", topic(2), "--json"))
    assert (new["uncommitted"], new["records"]) == (2, None)


def test_show_has_the_lag_where_brokers_are_given(
    kafka_server: KafkaServer, topic: Callable[..., str], store: str
) -> None:
    name = topic(2)
    produce(kafka_server.bootstrap, name, 0, [ago_ms(100)] * 5)
    stand(store, {TopicPartition(name, 0): 2, TopicPartition(name, 1): 9, TopicPartition(name, 7): 1})
    shown = json.loads(run("show", "shop", "--brokers", kafka_server.bootstrap, "--json"))["positions"]
    assert [each.get("lag", {}).get("records") for each in shown] == [3, None, None]
    table = run("show", "shop", "--brokers", kafka_server.bootstrap)
    assert f"{name}\t0\t2\t5\t3\t1 min" in table
    assert f"{name}\t1\t9\t0\tbeyond the end" in table
    assert f"{name}\t7\t1\t-\tgone\t-" in table
    assert f"{name}\t0\t2\n" in run("show", "shop")


def test_where_no_run_could_start_lag_says_so_and_why(
    kafka_server: KafkaServer, topic: Callable[..., str], store: str
) -> None:
    """A position beyond the end has no lag, and neither has a topic that is gone."""
    name = topic(1)
    ledger = stand(store, {TopicPartition("gone-topic", 0): 3})
    arguments = ("lag", "shop", "--brokers", kafka_server.bootstrap)
    found = json.loads(run(*arguments, "--json", code=1))
    assert (found["status"], found["gone"], found["partitions"][0]["remark"]) == ("refused", 1, "gone")
    assert "gone-topic\t0\t3 (gone)\t-\t-\t-" in run(*arguments, code=1)
    ledger.place({TopicPartition(name, 0): Position(0)})
    found = json.loads(run(*arguments, "--json", code=1))
    assert (found["status"], found["gone"], found["records"]) == ("topic gone", 1, 0)
    ledger.commit(ledger.batch([OffsetRange(name, 0, 0, 9)]))
    found = json.loads(run(*arguments, "--json", code=1))
    assert (found["status"], found["records"], found["catch_up_s"]) == ("refused", None, None)


def test_a_position_in_an_open_transaction_is_not_beyond_the_end(
    kafka_server: KafkaServer, topic: Callable[..., str], store: str
) -> None:
    """A run that reads uncommitted records gets there."""
    name = topic(1)
    stand(store, {TopicPartition(name, 0): 2})
    producer = Producer({"bootstrap.servers": kafka_server.bootstrap, "transactional.id": name})
    producer.init_transactions(LIMIT_S)
    producer.begin_transaction()
    for _ in range(2):
        producer.produce(name, b"x")
    assert producer.flush(LIMIT_S) == 0
    found = json.loads(run("lag", "shop", "--brokers", kafka_server.bootstrap, "--json"))
    assert (found["status"], found["partitions"][0]["remark"]) == ("ok", "")
    reset = ("reset", "shop", "--all-topics", "--brokers", kafka_server.bootstrap, "--json")
    for target, new in ((["--to-current"], 2), (["--shift-by", "-1"], 1)):
        [step] = json.loads(run(*reset, *target))["steps"]
        assert (step["new"], step["replayed"], step["retention_used"]) == (new, 2 - new, 0)
    producer.abort_transaction(LIMIT_S)


def test_show_does_without_brokers_that_do_not_answer(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stand(store, {TopicPartition("orders", 0): 2})
    monkeypatch.setattr("offsetkeeper.cli.options._RETRY_TIMEOUT_S", 0.3)
    assert "orders\t0\t2\n" in run("show", "shop", "--brokers", "127.0.0.1:1")


def test_what_an_open_transaction_holds_back_is_told(
    kafka_server: KafkaServer, topic: Callable[..., str], store: str
) -> None:
    """All that can be read is read; 1,000 records wait behind a transaction that nobody ends."""
    name, brokers = topic(2), kafka_server.bootstrap
    produce(brokers, name, 0, [ago_ms(9000)] * 5)
    producer = Producer({"bootstrap.servers": brokers, "transactional.id": name, "transaction.timeout.ms": 900_000})
    producer.init_transactions(LIMIT_S)
    producer.begin_transaction()
    producer.produce(name, b"x", partition=0, timestamp=ago_ms(7200))
    assert producer.flush(LIMIT_S) == 0
    produce(brokers, name, 0, [ago_ms(60)] * 999)
    stand(store, {TopicPartition(name, 0): 5, TopicPartition(name, 1): 0})
    found = json.loads(run("lag", "shop", "--brokers", brokers, "--json"))
    assert (found["status"], found["records"], found["held_back"]) == ("held back", 0, 1000)
    assert 7190 < found["held_back_s"] < 7300
    assert [each["held_back"] for each in found["partitions"]] == [1000, 0]
    lines = run("lag", "shop", "--brokers", brokers).splitlines()
    assert [line.split("\t")[-1] for line in lines[1:]] == ["held back", "1000", "0", "1000"]
    uncommitted = ("--kafka", "isolation.level=read_uncommitted")
    found = json.loads(run("lag", "shop", "--brokers", brokers, *uncommitted, "--json"))
    assert (found["records"], found["held_back"]) == (1000, 0)
    said = run("doctor", "shop", "--brokers", brokers, code=1)
    assert f"abort --topic {name} --partition 0 --start-offset 5" in said
    producer.abort_transaction(LIMIT_S)

    def lag() -> dict[str, Any]:
        return dict(json.loads(run("lag", "shop", "--brokers", brokers, "--json")))

    # The coordinator answers before the partition has the marker of the end.
    wait_until(lambda: lag()["held_back"] == 0, "the transaction has ended", LIMIT_S)
    assert (lag()["records"], lag()["held_back_s"]) == (1001, None)


def test_of_many_partitions_the_worst_come_first(
    kafka_server: KafkaServer, topic: Callable[..., str], store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, brokers = topic(30), kafka_server.bootstrap
    for number in (3, 17, 29):
        produce(brokers, name, number, [ago_ms(1000 + number)] * (40 - number))
    stand(store, {TopicPartition(name, number): 0 for number in range(30)})

    def partitions(*arguments: str) -> list[str]:
        said = run("lag", "shop", "--brokers", brokers, *arguments).splitlines()[2:]
        return [line.split("\t")[1] for line in said if "\t" in line]

    assert partitions() == [*map(str, range(30)), "all"]
    assert partitions("--top", "4")[:4] == ["all", "29", "17", "3"]
    assert partitions("--top", "2", "--sort", "records") == ["all", "3", "17"]
    assert len(partitions("--sort", "age")) == 31
    monkeypatch.setattr("offsetkeeper.cli.lag_table.on_terminal", lambda: True)
    assert len(partitions()) == 11
    assert len(partitions("--all")) == 31


@pytest.fixture
def two_groups(kafka_server: KafkaServer, topic: Callable[..., str], store: str) -> str:
    """Groups `idle`, which has read all, and `shop`, which nobody runs: five records wait, 100 seconds old."""
    name = topic(1)
    produce(kafka_server.bootstrap, name, 0, [ago_ms(100)] * 5)
    for group, offset in (("idle", 5), ("shop", 0)):
        ledger = Ledger(open_store(store), group)
        ledger.acquire()
        ledger.place({TopicPartition(name, 0): Position(offset)})
        ledger.release()
    return kafka_server.bootstrap


def test_all_groups_are_shown_the_worst_first(two_groups: str) -> None:
    lines = run("lag", "--brokers", two_groups).splitlines()
    assert lines[0] == "# 2 groups: 1 stopped, 1 ok"
    assert [line.split("\t")[:3] for line in lines[2:]] == [["shop", "stopped", "5"], ["idle", "ok", "0"]]
    found = json.loads(run("lag", "--brokers", two_groups, "--json"))
    assert [(each["group"], each["status"], each["records"], each["error"]) for each in found] == [
        ("shop", "stopped", 5, None),
        ("idle", "ok", 0, None),
    ]


@pytest.mark.parametrize("group", [["shop"], []], ids=["one", "all"])
@pytest.mark.parametrize(
    ("limits", "code"),
    [
        (["--max-lag", "5", "--max-age", "PT1H"], 0),
        (["--max-lag", "4"], 1),
        (["--max-age", "30s"], 1),
        (["--fail-on", "stalled,losing-data"], 0),
        (["--fail-on", "stalled, stopped"], 1),
    ],
    ids=str,
)
def test_limits_make_the_exit_code(two_groups: str, group: list[str], limits: list[str], code: int) -> None:
    result = CliRunner().invoke(app, ["lag", *group, "--brokers", two_groups, *limits])
    assert result.exit_code == code
    assert ("shop" in result.stderr) is bool(code)


@pytest.mark.parametrize("group", [["shop"], []], ids=["one", "all"])
def test_records_from_the_future_neither_hide_lag_nor_make_it(
    kafka_server: KafkaServer, topic: Callable[..., str], store: str, group: list[str]
) -> None:
    """The first record is of a clock that is 60 days ahead; those behind it are two hours old."""
    any_time = {"message.timestamp.after.max.ms": str(2**62)}
    name, brokers, days = topic(2, any_time), kafka_server.bootstrap, 86_400
    produce(brokers, name, 0, [ago_ms(-60 * days), *[ago_ms(7200)] * 1_000])
    ledger = stand(store, {TopicPartition(name, 0): 0, TopicPartition(name, 1): 0})
    arguments = ["lag", *group, "--brokers", brokers, "--max-age"]

    def problems(limit: str) -> str:
        return CliRunner().invoke(app, [*arguments, limit]).stderr

    assert "shop: the age of the oldest unread record is 2 h; --max-age allows 5 min" in problems("5m")
    assert problems("3h") == ""
    ledger.commit(ledger.batch([OffsetRange(name, 0, 0, 1_001)]))
    produce(brokers, name, 1, [ago_ms(-60 * days)] * 3)
    told = "shop: the age of the oldest unread record is not known, as times are in the future; --max-age allows 7 d"
    assert told in problems("P1W")
    if group:
        assert ", partitions whose age is unknown: 1 (the next record's time is in the future: 1)" in run(
            "lag", "shop", "--brokers", brokers
        )


@pytest.mark.parametrize(
    ("limit", "told"),
    [
        (
            Limits(max_records=9),
            "shop is 10 records behind, 10 of them held back by open transactions; --max-lag allows 9",
        ),
        (Limits(max_age_s=300), "shop: the age of the oldest unread record is 1 h; --max-age allows 5 min"),
    ],
    ids=["records", "age"],
)
def test_what_an_open_transaction_holds_back_is_late_too(limit: Limits, told: str) -> None:
    bounds = {TopicPartition("a", 0): Bounds(0, 5, log_end=15)}
    held = {TopicPartition("a", 0): ago_ms(3600)}
    lags = measure({TopicPartition("a", 0): Position(5)}, bounds, ago_ms(0), held_ms=held)
    assert [each[: len(told)] for each in limit.problems("shop", Status.OK, total(lags, {}))] == [told]


def test_what_is_not_known_is_beyond_a_limit(kafka_server: KafkaServer, topic: Callable[..., str], store: str) -> None:
    """A position past the end: its lag is no number, and certainly not 0."""
    name = topic(1)
    stand(store, {TopicPartition(name, 0): 7})
    for limit in (("--max-lag", "1000000"), ("--max-age", "P1W")):
        run("lag", "shop", "--brokers", kafka_server.bootstrap, "--fail-on", "behind", *limit, code=1)


@pytest.mark.parametrize(
    "wrong", [["--fail-on", "sleepy"], ["--max-age", "P1M"], ["--max-age", "soon"], ["--top", "3"]], ids=" ".join
)
def test_limits_of_lag_that_make_no_sense_are_refused(two_groups: str, wrong: list[str]) -> None:
    with pytest.raises(SettingsError, match=wrong[0]):
        run("lag", "--brokers", two_groups, *wrong)


def test_lag_tells_a_group_that_cannot_be_read_and_hides_no_other(two_groups: str, store: str) -> None:
    with sqlite3.connect(store.removeprefix("sqlite:///")) as database:
        database.execute("update offsetkeeper_groups set control = 'spoilt' where group_id = 'idle'")
    result = CliRunner().invoke(app, ["lag", "--brokers", two_groups])
    assert result.exit_code == 1
    assert "idle\tcannot be read" in result.stdout
    assert "shop\tstopped\t5" in result.stdout
    assert "idle: " in result.stderr
