"""The cases of Kafka's own reset tool (ResetConsumerGroupOffsetTest, Kafka 4.3), held against ours.

Each row says what Kafka's tool does, which a soak test asks it for, and what ours does: the same, or a refusal with the
reason that docs/operating.md gives.
"""

from __future__ import annotations

import csv
import io
import os
import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as Assigned
from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]
from typer.testing import CliRunner, Result

from offsetkeeper import Ledger, Position, TopicPartition, open_store
from offsetkeeper.cli.main import app
from offsetkeeper.errors import OffsetkeeperError
from offsetkeeper.testing.artifacts import fetch_jars
from offsetkeeper.testing.java import java
from offsetkeeper.testing.kafka import KafkaServer, KafkaServers
from offsetkeeper.testing.server import wait_until

LIMIT_S = 60
TOOL = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
HOUR_S = 3600.0


@dataclass(frozen=True)
class Case:
    """One case: `{a}` and `{b}` in the arguments are topics of two partitions with 20 records each.

    The ten older ones are two hours old, the others half an hour. The group stands at 10 in all partitions of both.

    Attributes:
        arguments: of the command, without groups and `--execute`.
        moved: to which offset each partition of a topic moves; those that are left out stay.
        groups: that are moved: "one", "both", "all", or "new" for one that has no positions.
        refused: why ours does not do it; Kafka's tool does what `moved` says.
        instead: what is added to the arguments so that ours does the same as Kafka's.
    """

    arguments: Sequence[str]
    moved: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    groups: str = "one"
    refused: str = ""
    instead: tuple[str, ...] = ()


def all_to(offset: int, *topics: str) -> dict[str, dict[int, int]]:
    """Return both partitions of each topic at an offset."""
    return {topic: {0: offset, 1: offset} for topic in topics or "ab"}


def ago(seconds: float, zone: str = "+00:00") -> str:
    at = datetime.now(UTC) - timedelta(seconds=seconds)
    return f"{at:%Y-%m-%dT%H:%M:%S}.{at.microsecond // 1000:03}{zone}"


CASES = {
    "a group that does not exist": Case(["--all-topics", "--to-current"], {}, "new", "has no positions|is not in"),
    "a topic": Case(["--topic", "{a}", "--to-offset", "5"], all_to(5, "a"), "new"),
    "a topic, selected groups": Case(["--topic", "{a}", "--to-offset", "5"], all_to(5, "a"), "both"),
    "a topic, all groups": Case(["--topic", "{a}", "--to-offset", "5"], all_to(5, "a"), "all"),
    "all topics, all groups": Case(["--all-topics", "--to-offset", "5"], all_to(5), "all"),
    "to a local time": Case(
        ["--all-topics", "--to-datetime", ago(24 * HOUR_S, "")], all_to(0), refused="has no time zone"
    ),
    "to a time with its zone": Case(["--all-topics", "--to-datetime", ago(HOUR_S)], all_to(10)),
    "by a duration": Case(["--all-topics", "--by-duration", "PT1H"], all_to(10)),
    "by a short duration": Case(["--all-topics", "--by-duration", "PT0.1S"], all_to(20)),
    "by a duration without records": Case(["--topic", "{empty}", "--by-duration", "PT1M"], {"empty": {0: 0}}, "new"),
    "to the earliest": Case(["--all-topics", "--to-earliest"], all_to(0)),
    "to the latest": Case(["--all-topics", "--to-latest"], all_to(20)),
    "to the current": Case(["--all-topics", "--to-current"], all_to(10)),
    "to an offset": Case(["--all-topics", "--to-offset", "1"], all_to(1)),
    "shift forwards": Case(["--all-topics", "--shift-by", "5"], all_to(15)),
    "shift backwards": Case(["--all-topics", "--shift-by", "-5"], all_to(5)),
    "shift below the earliest": Case(
        ["--all-topics", "--shift-by", "-15"],
        all_to(0),
        refused="is outside the offsets that Kafka holds",
        instead=("--clip",),
    ),
    "shift above the latest": Case(
        ["--all-topics", "--shift-by", "15"],
        all_to(20),
        refused="is outside the offsets that Kafka holds",
        instead=("--clip",),
    ),
    "one topic": Case(["--topic", "{a}", "--to-earliest"], all_to(0, "a")),
    "one topic and partition": Case(["--topic", "{a}:1", "--to-earliest"], {"a": {1: 0}}),
    "topics": Case(["--topic", "{a}", "--topic", "{b}", "--to-earliest"], all_to(0)),
    "topics and partitions": Case(
        ["--topic", "{a}:1", "--topic", "{b}:1", "--to-earliest"], {"a": {1: 0}, "b": {1: 0}}
    ),
    "a partition that does not exist": Case(
        ["--topic", "{a}:2,3", "--to-earliest"], {}, "one", "2 does not exist in Kafka.*\n.*3 does not exist in Kafka"
    ),
    "an option that is not known": Case(
        ["--all-topics", "--to-offset", "2", "--new-consumer"], {}, "one", "No such option"
    ),
}
# Kafka's tool fails, as ours does.
FAILS_TOO = {"a partition that does not exist", "an option that is not known"}


@dataclass
class Shop:
    """Topics `a`, `b` and `empty`, and two groups that stand in the middle of both."""

    brokers: str
    store: str
    names: dict[str, str]

    def arguments(self, case: Case) -> list[str]:
        """Return the arguments of a case, with the topics' names."""
        return [each.format(**self.names) for each in case.arguments]

    def reset(self, case: Case, *more: str) -> Result:
        """Run our command."""
        named = {"one": ["shop"], "both": ["shop", "till"], "all": ["--all-groups"], "new": ["new"]}[case.groups]
        return CliRunner().invoke(app, ["reset", *named, *self.arguments(case), *(case.instead if more else ()), *more])

    def offsets(self, group: str) -> dict[str, dict[int, int]]:
        """Return the stored offsets of a group, by topic as the cases name it."""
        found = open_store(self.store).load(group).positions
        letters = {name: letter for letter, name in self.names.items()}
        offsets: dict[str, dict[int, int]] = {}
        for tp in sorted(found):
            offsets.setdefault(letters[tp.topic], {})[tp.partition] = found[tp].offset
        return offsets


@pytest.fixture
def shop(kafka_server: KafkaServer, topic: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shop:
    names = {"a": topic(2), "b": topic(2), "empty": topic(1)}
    now_ms = round(datetime.now(UTC).timestamp() * 1000)
    producer = Producer({"bootstrap.servers": kafka_server.bootstrap})
    for number in range(20):
        for letter, partition in (("a", 0), ("a", 1), ("b", 0), ("b", 1)):
            at = now_ms - round((2 * HOUR_S if number < 10 else HOUR_S / 2) * 1000)
            producer.produce(names[letter], b"x", partition=partition, timestamp=at + number)
    assert producer.flush(LIMIT_S) == 0
    store = f"sqlite:///{tmp_path}/offsets.db"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OFFSETKEEPER_STORE", store)
    monkeypatch.setenv("OFFSETKEEPER_BROKERS", kafka_server.bootstrap)
    for group in ("shop", "till"):
        ledger = Ledger(open_store(store), group)
        ledger.acquire()
        ledger.place({TopicPartition(names[letter], part): Position(10) for letter in "ab" for part in (0, 1)})
        ledger.release()
    return Shop(kafka_server.bootstrap, store, names)


def after(case: Case, group: str) -> dict[str, dict[int, int]]:
    """Return where a group stands afterwards."""
    before = {} if group == "new" else all_to(10)
    moves = case.groups in {"both", "all"} or group == {"one": "shop", "new": "new"}[case.groups]
    moved = case.moved if moves else {}
    return {topic: {**before.get(topic, {}), **moved.get(topic, {})} for topic in {**before, **moved}}


@pytest.mark.parametrize("name", CASES)
def test_a_reset_does_what_kafkas_own_tool_does_or_says_why_not(shop: Shop, name: str) -> None:
    case = CASES[name]
    shown = shop.reset(case)
    if case.refused:
        assert isinstance(shown.exception, OffsetkeeperError | SystemExit)
        told = str(shown.exception) if isinstance(shown.exception, OffsetkeeperError) else shown.output
        assert re.search(case.refused, re.sub("\x1b.*?m", "", told)), told
    if not case.refused or case.instead:
        assert shop.reset(case, "--dry-run").exit_code == 0
        assert shop.offsets("shop") == all_to(10)
        assert shop.reset(case, "--execute").exit_code == 0
        for group in ("shop", "till", *["new"] * (case.groups == "new")):
            assert shop.offsets(group) == after(case, group)
        return
    assert shop.offsets("shop") == shop.offsets("till") == all_to(10)
    assert shop.offsets("new") == {}


@pytest.mark.parametrize("groups", [["shop"], ["shop", "till"]], ids=len)
def test_an_export_is_a_plan_that_comes_back(shop: Shop, groups: list[str]) -> None:
    """Its lines begin with the group where there are several. One of several may come back alone."""
    run = CliRunner()
    exported = run.invoke(app, ["reset", *groups, "--all-topics", "--to-offset", "2", "--export"]).stdout
    Path("plan.csv").write_text(exported)
    lines = list(csv.reader(io.StringIO(exported)))
    assert [len(line) for line in lines] == [2 + len(groups)] * 4 * len(groups)
    for each in [groups, groups[:1]] if len(groups) > 1 else [groups]:
        assert run.invoke(app, ["reset", *each, "--from-file", "plan.csv", "--execute"]).exit_code == 0
        assert [shop.offsets(group) for group in each] == [all_to(2)] * len(each)


def test_what_lies_on_a_broker_that_is_away_hinders_only_what_asks_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Partitions 0 and 1 lie on two brokers; the second one dies."""
    monkeypatch.chdir(tmp_path)
    with KafkaServers() as servers:
        admin = servers.brokers[1].admin()
        admin.create_topics([NewTopic("orders", replica_assignment=[[1], [2]], num_partitions=2)])["orders"].result(
            LIMIT_S
        )
        servers.kill(2)
        given = ["--store", f"sqlite:///{tmp_path}/o.db", "--brokers", servers.brokers[1].bootstrap]
        given += ["--kafka", "socket.timeout.ms=4000"]

        def leaderless() -> bool:
            found = admin.list_topics("orders", timeout=LIMIT_S).topics["orders"].partitions
            return found[0].leader == 1 and found[1].leader == -1

        wait_until(leaderless, "the second partition has no leader", LIMIT_S)
        alone = CliRunner().invoke(app, ["reset", "new", "--topic", "orders:0", "--to-earliest", "--execute", *given])
        assert alone.exit_code == 0, alone.exception
        both = CliRunner().invoke(app, ["reset", "new", "--topic", "orders:0,1", "--to-earliest", "--execute", *given])
        assert isinstance(both.exception, OffsetkeeperError), both.stdout
        stored = open_store(f"sqlite:///{tmp_path}/o.db").load("new").positions
        assert [tp.partition for tp in stored] == [0]


@pytest.mark.soak
def test_kafkas_own_tool_does_what_the_cases_say(shop: Shop) -> None:
    jars, wrong = [*fetch_jars("kafka"), *fetch_jars("kafka-tools")], {}
    for group in ("shop", "till"):
        consumer = Consumer({"bootstrap.servers": shop.brokers, "group.id": group})
        consumer.commit(offsets=[Assigned(shop.names[x], p, 10) for x in "ab" for p in (0, 1)], asynchronous=False)
        consumer.close()
    for name, case in CASES.items():
        named = {"one": ["shop"], "both": ["shop", "till"], "all": ["shop", "till"], "new": ["new"]}[case.groups]
        words = [word for group in named for word in ("--group", group)]
        command = [str(java()), "-cp", os.pathsep.join(map(str, jars)), TOOL, "--bootstrap-server", shop.brokers]
        done = subprocess.run(
            [*command, "--reset-offsets", *words, *shop.arguments(case), "--export", "--dry-run"],
            capture_output=True,
            text=True,
            check=False,
        )
        letters = {topic: letter for letter, topic in shop.names.items()}
        told: dict[str, dict[int, int]] = {}
        for line in csv.reader(io.StringIO(done.stdout)):
            if len(line) >= 3 and line[-3].strip('"') in letters:
                told.setdefault(letters[line[-3].strip('"')], {})[int(line[-2])] = int(line[-1])
        failed = bool(done.returncode) or "Error:" in done.stdout + done.stderr
        if told != dict(case.moved) or failed != (name in FAILS_TOO):
            wrong[name] = (told, done.returncode, done.stdout[-300:], done.stderr[-300:])
    assert not wrong
