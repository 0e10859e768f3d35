"""Commands that only look, without a broker: what they find, what they refuse, and that a live group is no alarm."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from fixtures.fake_cluster import Fake
from offsetkeeper import Ledger, OffsetRange, Position, TopicPartition, open_store
from offsetkeeper.cli import options
from offsetkeeper.cli import replay as replaying
from offsetkeeper.cli.main import app
from offsetkeeper.core.batch import Batch, Program, QueryBatch
from offsetkeeper.core.bounds import Bounds
from offsetkeeper.core.model import Entry
from offsetkeeper.errors import Refused, SettingsError
from offsetkeeper.kafka.cluster import Retentions

A = TopicPartition("a", 0)


@pytest.fixture(autouse=True)
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A store that does not exist yet, in the environment."""
    url = f"sqlite:///{tmp_path}/offsets.db"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OFFSETKEEPER_STORE", url)
    return url


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Fake:
    """The cluster that commands open: no broker is needed to see what they make of one."""
    cluster = Fake()
    monkeypatch.setattr(options, "open_cluster", lambda _: nullcontext(cluster))
    return cluster


def run(*arguments: str) -> Result:
    """Run a command, and raise what it raised."""
    result = CliRunner().invoke(app, arguments)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def group(url: str, name: str = "shop") -> Ledger:
    """A group that has read the first ten offsets, held by a run."""
    ledger = Ledger(open_store(url), name, name="host:1")
    ledger.acquire("start")
    ledger.place({A: Position(0)})
    commit(ledger, 10)
    return ledger


def commit(ledger: Ledger, size: int) -> None:
    """Commit so many offsets more."""
    at = ledger.snapshot.positions[A].offset
    ledger.commit(ledger.batch([OffsetRange(*A, at, at + size)]))


def execute(url: str, statement: str) -> None:
    """Change the store from outside."""
    connection = sqlite3.connect(url.removeprefix("sqlite:///"))
    with connection:
        assert connection.execute(statement).rowcount >= 1
    connection.close()


def test_the_sum_of_a_topic_that_is_gone_is_not_known(url: str, fake: Fake) -> None:
    """Others of the group have a lag; this one is not read to its end."""
    ledger = group(url)
    ledger.place({TopicPartition("gone", number): Position(3) for number in (0, 1)})
    fake.held_[A] = Bounds(0, 10)
    lines = run("lag", "shop", "--brokers", "fake:9092").stdout.splitlines()
    assert [line.split("\t")[4:] for line in lines if line.startswith("gone\tall\t")] == [["-"] * 8]
    found = json.loads(run("lag", "shop", "--brokers", "fake:9092", "--json").stdout)
    assert found["records"] == 0
    assert [(each["topic"], each["records"], each["catch_up_s"]) for each in found["topics"]] == [
        ("a", 0, 0.0),
        ("gone", None, None),
    ]


def test_settings_of_the_file_are_applied_under_those_of_the_command_line() -> None:
    Path("offsetkeeper.toml").write_text('topics = ["a"]\n[kafka]\n"client.id" = "me"\n"linger.ms" = "1"\n', "utf-8")
    found = options.settings("memory://x", "kafka:9092", ["client.id=you"])
    assert (found.kafka, found.topics) == ({"client.id": "you", "linger.ms": "1"}, ("a",))


def test_numbers_and_booleans_of_the_file_reach_librdkafka_as_it_writes_them() -> None:
    Path("offsetkeeper.toml").write_text(
        'brokers = "127.0.0.1:1"\n[kafka]\n'
        '"socket.timeout.ms" = 5000\n"enable.ssl.certificate.verification" = false\n"log.connection.close" = true\n',
        "utf-8",
    )
    with options.open_cluster(options.settings()) as cluster:
        assert cluster.options == {
            "socket.timeout.ms": "5000",
            "enable.ssl.certificate.verification": "false",
            "log.connection.close": "true",
        }


@pytest.mark.parametrize(
    ("toml", "told"),
    [
        (
            'topics = "orders"',
            'offsetkeeper.toml: topics is of another type: write a list of texts, as topics = ["orders"]',
        ),
        ("topics = 5", "topics is of another type: write a list"),
        ("topics = ['a', 5]", "topics is of another type: write a list"),
        ("store = 5", 'offsetkeeper.toml: store is of another type: write a text, as store = "sqlite:///offsets.db"'),
        ("brokers = ['a:9092']", "brokers is of another type: write a text"),
        ("kafka = 'x'", "kafka is of another type: write librdkafka's settings below [kafka]"),
        (
            "[kafka]\nsecurity.protocol = 'SSL'",
            "offsetkeeper.toml, [kafka]: (a name that is not shown) is a table: write the name in quotes",
        ),
        (
            "[kafka]\n'linger.ms' = 0.5",
            "[kafka]: linger.ms is of another type: write the name in quotes, and a text, a",
        ),
        ("[kafka]\n'debug' = ['broker']", "is of another type: write the name in quotes, and a text, a"),
        ("[kafka]\n'client.id' = 2026-01-01", "[kafka]: client.id is of another type: write the name in quotes, and a"),
        (
            "'kafka.linger.ms' = '5'",
            "has an unknown setting. Known settings: alerts, brokers, kafka, store, topics",
        ),
        ("store = ", "offsetkeeper.toml is not TOML: see the error "),
    ],
)
def test_a_setting_of_another_type_is_told_with_its_file_and_what_is_wanted(toml: str, told: str) -> None:
    Path("offsetkeeper.toml").write_text(toml, "utf-8")
    with pytest.raises(SettingsError, match=re.escape(told)):
        run("groups")


LOOKING = [["show"], ["history"], ["verify"], ["doctor"], ["lag", "--brokers", "127.0.0.1:1"]]


@pytest.mark.parametrize("command", LOOKING, ids=lambda command: command[0])
def test_a_group_of_which_nothing_is_stored_is_told_and_never_healthy(command: list[str], url: str, fake: Fake) -> None:
    group(url)
    Path("offsetkeeper.toml").write_text('topics = ["b"]\n', "utf-8")
    fake.held_[TopicPartition("b", 0)] = Bounds(0, 5)
    with pytest.raises(Refused, match=r"shpo.*sqlite:///.*Check the name"):
        run(command[0], "shpo", *command[1:])


@pytest.mark.parametrize("limit", [["--max-age", "5m"], ["--max-lag", "0"], ["--fail-on", "stopped"]])
def test_a_store_without_groups_is_within_no_limit(limit: list[str], url: str, fake: Fake) -> None:
    """A check that is run by cron stayed green when the store was emptied, or another was named."""
    assert not fake.held_
    group(url)
    for table in ("offsetkeeper_groups", "kafka_offsets"):
        execute(url, f"DELETE FROM {table}")  # noqa: S608 - names of ours
    command = ["lag", "--brokers", "fake:9092"]
    assert run(*command).stdout.startswith("# 0 groups\n")
    with pytest.raises(Refused, match=r"offsets\.db has no groups, so there is nothing to hold against the limits"):
        run(*command, *limit)


@pytest.mark.parametrize("execute", [[], ["--execute"]])
def test_a_group_that_is_mistyped_is_not_taken_to_be_free_of_runs(execute: list[str], url: str) -> None:
    group(url)
    with pytest.raises(Refused, match=r"'shpo' is not in sqlite:///.*Check the name"):
        run("fence", "shpo", *execute)
    assert open_store(url).groups() == ["shop"]
    with pytest.raises(SettingsError, match="does not exist"):
        run("fence", "shop", "--store", "sqlite:///nosuch.db", *execute)
    assert not Path("nosuch.db").exists()


def test_an_adoption_that_makes_a_ledger_says_so(url: str) -> None:
    group(url)
    told = "the store has no group 'shpo' yet, so check the name: this adoption makes it"
    for more in ([], ["--execute"]):
        assert told in run("adopt", "shpo", "--sequence", "3", *more).stdout
    assert told not in run("adopt", "shop", "--sequence", "3").stdout
    assert told not in run("adopt", "till", "--sequence", "0").stdout  # it changes nothing


def test_positions_that_another_program_has_stored_are_something(url: str) -> None:
    group(url)
    execute(url, "DELETE FROM offsetkeeper_groups")
    assert "a\t0\t10" in run("show", "shop").stdout


def test_a_set_up_may_be_looked_at_before_its_first_start(url: str) -> None:
    group(url)
    assert run("doctor", "shpo", "--topic", "a").stdout.endswith("nothing found\n")


@pytest.mark.parametrize(
    "command", [["groups"], *([*each, "shop"] for each in LOOKING)], ids=lambda command: command[0]
)
def test_a_database_that_is_not_there_is_an_error_and_is_not_made(command: list[str], tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"offsets\.db: file .*offsets\.db does not exist\. Check the path"):
        run(*command)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("command", "option", "value"),
    [("history", "--limit", "9" * 30), ("lag", "--watch", "inf"), ("lag", "--watch", "nan")],
)
def test_a_number_that_is_too_large_is_an_error_of_use(command: str, option: str, value: str, url: str) -> None:
    group(url)
    assert run(command, "shop", option, value).exit_code == 2


def test_a_name_that_no_file_can_have_is_one_that_is_not_there() -> None:
    with pytest.raises(SettingsError, match="does not exist"):
        run("groups", "--store", f"sqlite:///{'a' * 300}.db")


def test_a_first_start_is_planned_and_said_to_be_one(url: str, tmp_path: Path, fake: Fake) -> None:
    fake.held_[A] = Bounds(3, 20)
    planned = run("plan", "shop", "--topic", "a", "--brokers", "fake:9092", "--json")
    assert [each["start"] for each in json.loads(planned.stdout)["partitions"]] == [3]
    assert planned.stderr == f"group 'shop' is not in {url}: this would be the first start\n"
    assert list(tmp_path.iterdir()) == []


def plan(*arguments: str) -> dict[str, Any]:
    """Return the partition that is planned."""
    answer = json.loads(run("plan", "shop", "--topic", "a", "--brokers", "fake:9092", "--json", *arguments).stdout)
    found: list[dict[str, Any]] = answer["partitions"]
    assert len(found) == 1
    return found[0]


@pytest.mark.parametrize(
    ("start", "expected"),
    [("earliest", 3), ("latest", 20), ("1970-01-01T00:00:07+00:00", 7), ("1970-01-01T00:00:08Z", 8)],
)
def test_a_plan_starts_where_the_pipeline_would(start: str, expected: int, fake: Fake) -> None:
    fake.held_[A] = Bounds(3, 20)
    assert plan("--start", start)["start"] == expected


def test_a_plan_takes_offsets_by_hand_and_policies_as_a_run_does(url: str, fake: Fake) -> None:
    group(url)
    fake.held_[A] = Bounds(3, 7)
    assert run("plan", "shop", "--brokers", "fake:9092").exit_code == 1
    assert plan("--policy", "beyond_end=end")["start"] == 7
    assert plan("--policy", "beyond_end=beginning", "--policy", "recreated=end")["start"] == 3
    assert plan("--offset", "a:0=5")["start"] == 5


@pytest.mark.parametrize(
    ("end", "arguments", "fate", "starts"),
    [
        (20, [], "finish", 12),
        (20, ["--guarantee", "exactly_once"], "finish", 12),
        (20, ["--guarantee", "at_most_once"], "count", 12),
        (20, ["--policy", "pending=drop"], "drop", 10),
        (11, [], "drop", 10),
        (11, ["--guarantee", "exactly_once", "--policy", "pending=drop"], "drop", 10),
    ],
)
def test_a_plan_tells_what_becomes_of_a_pending_batch(
    url: str, fake: Fake, end: int, arguments: list[str], fate: str, starts: int
) -> None:
    batch = begin(group(url), OffsetRange("a", 0, 10, 12))
    fake.held_[A] = Bounds(3, end)
    command = ["plan", "shop", "--brokers", "fake:9092", *arguments]
    found = json.loads(run(*command, "--json").stdout)
    assert (found["pending"]["id"], found["pending"]["fate"]) == (batch.id, fate)
    assert [each["start"] for each in found["partitions"]] == [starts]
    shown = run(*command)
    assert (shown.exit_code, shown.stdout.splitlines()[:2]) == (
        0,
        [f"batch {batch.id} is pending (begun, not committed):", "a 0 10 12"],
    )
    assert found["pending"]["why"] in shown.stdout


def test_a_batch_that_a_reset_has_dropped_is_named_with_its_ranges_by_show_and_plan(url: str, fake: Fake) -> None:
    """A plan said nothing of it: its records were unread, and the first batch began after them."""
    ledger, other = group(url), TopicPartition("a", 1)
    batch = begin(ledger, OffsetRange("a", 0, 10, 12), OffsetRange("a", 1, 5, 8), lands_in=("table",))
    ledger.rewind({other: Position(0)}, "from the start", force=True)
    fake.held_ |= {A: Bounds(3, 20), other: Bounds(0, 9)}
    command = ("plan", "shop", "--brokers", "fake:9092")
    told = (
        f"batch {batch.id} was dropped by a reset (unsettled):\na 0 10 12\na 1 5 8\noutput table may have it\n"
        "the next start asks its outputs whether they have it. "
    )
    counts = "If all have it, these ranges count as done, and are not read again: a 0 10 12. "
    shown = run(*command).stdout
    assert shown.startswith(told + counts)
    assert run("show", "shop").stdout.partition("\n")[2].startswith(told + counts)
    found = json.loads(run(*command, "--json").stdout)
    assert (found["unsettled"]["id"], found["unsettled"]["counts"]) == (batch.id, [["a", 0, 10, 12]])
    assert [each["start"] for each in found["partitions"]] == [10, 0]
    ledger.rewind({A: Position(9)}, "there too", force=True)
    assert run(*command).stdout.startswith(told + "Whatever they answer, it reads from the stored positions")


def test_a_plan_tells_that_a_pending_batch_forbids_the_start(url: str, fake: Fake) -> None:
    batch = begin(group(url), OffsetRange("a", 0, 10, 12))
    fake.held_[A] = Bounds(3, 11)
    refused = run("plan", "shop", "--brokers", "fake:9092", "--guarantee", "exactly_once")
    assert refused.exit_code == 1
    assert f"batch {batch.id} was begun, may be in its outputs, and cannot be finished exactly once" in refused.stdout
    assert "These ranges may come twice:\na 0 10 12" in refused.stdout.replace("  a 0", "a 0")


def test_a_plan_tells_that_another_program_began_the_pending_batch(url: str, fake: Fake) -> None:
    batch = begin(group(url), OffsetRange("a", 0, 10, 12), program=Program(("a",), {"": "Table shop.orders"}))
    fake.held_ |= {A: Bounds(3, 20), TopicPartition("b", 0): Bounds(0, 1)}
    told = "it was begun by a program that reads a and writes Table shop.orders"
    own, other = ("plan", "shop", "--brokers", "fake:9092"), ("--topic", "b")
    shown = run(*own)
    assert (shown.exit_code, told in shown.stdout) == (0, True)
    refused = run(*own, *other)
    assert refused.exit_code == 1
    assert "another program began it. That one reads a and writes Table shop.orders. This one reads b" in refused.stdout
    assert run(*own, *other, "--policy", "pending=finish").exit_code == 0
    shown = run("show", "shop")
    assert told in shown.stdout
    assert json.loads(run("show", "shop", "--json").stdout)["pending"]["program"] == {
        "topics": ["a"],
        "outputs": {"": "Table shop.orders"},
        "places": {},
    }
    assert batch.id in shown.stdout


def test_a_plan_leaves_a_pending_batch_to_its_query(url: str, fake: Fake) -> None:
    query = "6d7b0a6e-4f0c-4d6a-9a55-0f6b1f0e8d11"
    begin(group(url), OffsetRange("a", 0, 10, 12), query=QueryBatch(query, 0))
    fake.held_[A] = Bounds(3, 20)
    shown = run("plan", "shop", "--brokers", "fake:9092").stdout
    assert f"only query {query} can finish it, from its own checkpoint" in shown


def test_a_replay_tells_what_elections_have_cut_beside_what_retention_has_deleted(url: str, fake: Fake) -> None:
    ledger = group(url)
    version = ledger.snapshot.version
    ledger.place({A: Position(6)}, cuts={A: 6})
    fake.held_[A] = Bounds(2, 20)
    command = ("replay", "shop", "--version", f"{version}", "--brokers", "fake:9092")
    shown = run(*command)
    assert shown.exit_code == 1
    assert "a\t0\t2\t6\t4\t2\t4\n" in shown.stdout
    told = "elections have cut 4 of these offsets from the log, and other records may have them now"
    assert f"note: retention has deleted 2 of these offsets; {told}\n" in shown.stdout
    found = json.loads(run(*command, "--json").stdout)
    assert (found["records"], found["lost"], found["cut"], found["stretches"][0]["cut"]) == (4, 6, 4, 4)
    with pytest.raises(SettingsError, match=f"{told}: add --partial to read the rest"):
        run(*command, "--output", "batch.jsonl")
    assert not Path("batch.jsonl").exists()


def test_a_replay_from_a_time_on_tells_what_retention_may_have_deleted(url: str, fake: Fake) -> None:
    group(url)
    fake.held_[A] = Bounds(6, 20)
    command = ("replay", "shop", "--to-datetime", "1970-01-01T00:00:09Z", "--ordered", "--brokers", "fake:9092")
    early, late = ("--from-datetime", "1970-01-01T00:00:02Z"), ("--from-datetime", "1970-01-01T00:00:07Z")
    shown = run(*command, *early)
    assert shown.exit_code == 1
    told = "retention has deleted records, and some of them may have had these times: a 0"
    assert f"note: {told}\n" in shown.stdout
    found = json.loads(run(*command, *early, "--json").stdout)
    assert (found["records"], found["lost"], found["perhaps_deleted"]) == (3, 0, [{"topic": "a", "partition": 0}])
    assert run(*command, *early, "--partial").exit_code == 0
    with pytest.raises(SettingsError, match=f"{told}: add --partial to read the rest"):
        run(*command, *early, "--output", "batch.jsonl")
    assert not Path("batch.jsonl").exists()
    shown = run(*command, *late)  # Kafka holds records from before that time, so the deleted ones are older
    assert (shown.exit_code, "retention has" in shown.stdout) == (0, False)
    fake.held_[A] = Bounds(0, 20)
    assert run(*command, *early).exit_code == 0  # nothing was deleted


def test_a_replay_from_a_time_on_notes_partitions_that_retention_has_emptied(
    monkeypatch: pytest.MonkeyPatch, url: str, fake: Fake
) -> None:
    idle = TopicPartition("a", 1)
    group(url).place({idle: Position(4)})
    fake.held_[A], fake.held_[idle] = Bounds(0, 20), Bounds(4, 4)
    command = ("replay", "shop", "--from-datetime", "1970-01-01T00:00:02Z", "--brokers", "fake:9092")
    assert run(*command).exit_code == 1  # it is not known for how long records are kept
    monkeypatch.setattr(fake, "retentions", lambda _: Retentions({"a": 10**14}))
    shown = run(*command)
    assert shown.exit_code == 0
    told = "note: retention has deleted all records of these partitions, as they are older than --from-datetime: a 1\n"
    assert told in shown.stdout
    monkeypatch.setattr(replaying, "replay_records", lambda *_: [])
    for output in ("-", "batch.jsonl"):
        shown = run(*command, "--output", output)
        assert (shown.exit_code, told in shown.stderr, told in shown.stdout) == (0, True, False)


def begin(
    ledger: Ledger,
    *ranges: OffsetRange,
    program: Program | None = None,
    query: QueryBatch | None = None,
    lands_in: Sequence[str] = (),
) -> Batch:
    """Begin a batch, as a run that then dies."""
    queries = {} if query is None else {query.query: query.number}
    ledger.place({each.topic_partition: Position(each.start) for each in ranges}, queries=queries)
    ledger.begin(batch := ledger.batch(ranges, query), program=program, lands_in=lands_in)
    return batch


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (
            ["--start", "lastest"],
            "--start lastest: write it like 2026-01-31T12:00:00+00:00; or give earliest or latest",
        ),
        (["--start", "2026-01-31T12:00:00"], "has no time zone"),
        (["--policy", "beyond=end"], "--policy beyond: unknown policy; use one of below_beginning, beyond_end"),
        (["--policy", "beyond_end=stay"], "policy beyond_end='stay': use 'stop'"),
        (["--policy", "beyond_end"], "write name=value"),
        (["--offset", "a=5"], "--offset a=5: write topic:partition=offset"),
        (["--offset", "a:0=x"], "write topic:partition=offset"),
        (["--offset", "b:0=5"], "does not read this topic"),
        (["--offset", "a:0=99"], "outside the offsets that Kafka holds: 3 to 20"),
    ],
    ids=" ".join,
)
def test_what_a_run_could_not_be_given_is_refused(arguments: list[str], told: str, fake: Fake) -> None:
    """A start that is mistyped was taken for the beginning."""
    fake.held_[A] = Bounds(3, 20)
    with pytest.raises(SettingsError, match=re.escape(told)):
        plan(*arguments)


def test_a_group_that_cannot_be_read_hides_no_other(url: str) -> None:
    for name in ("broken", "shop"):
        group(url, name)
    execute(url, "UPDATE offsetkeeper_groups SET control = 'x' WHERE group_id = 'broken'")
    execute(
        url, "INSERT INTO kafka_offsets (group_id, topic, partition, \"offset\") VALUES (hex(zeroblob(125)), 'a', 0, 5)"
    )
    listed = run("groups")
    assert [line.split("\t")[:2] for line in listed.stdout.splitlines()[1:]] == [
        ["0" * 250, "0"],
        ["broken", "-"],
        ["shop", "3"],
    ]
    foreign, broken = listed.stderr.splitlines()
    assert "group 'broken'" in broken
    assert f"'{'0' * 250}' is not a group name" in foreign
    told = run("groups", "--json")
    assert (listed.exit_code, told.exit_code) == (1, 1)
    found = {each["group"]: each["error"] for each in json.loads(told.stdout)}
    assert found["shop"] is None
    assert "group 'broken'" in found["broken"]
    assert found["0" * 250].startswith(f"'{'0' * 250}' is not a group name")


def test_a_commit_between_two_requests_of_verify_is_no_overlap(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    live = group(url)
    read = Ledger.history

    def history(self: Ledger, limit: int = 100) -> Sequence[Entry]:
        if self is not live:
            commit(live, 10)
        return read(self, limit)

    monkeypatch.setattr(Ledger, "history", history)
    assert run("verify", "shop").stdout == "3 changes checked, 0 findings\n"


@pytest.mark.parametrize(
    ("deleted", "found"),
    [
        ("offsetkeeper_history", "missing 3 4: nothing in the history explains it"),
        ("offsetkeeper_groups", "missing 1 4: nothing in the history explains it"),
        ("kafka_offsets", "vanished a 0 10 10: nothing in the history explains it"),
    ],
)
def test_rows_that_were_deleted_by_hand_are_found(url: str, deleted: str, found: str) -> None:
    group(url)
    execute(url, f"DELETE FROM {deleted}")  # noqa: S608 - a name of ours
    told = run("verify", "shop")
    assert found in told.stdout
    assert told.exit_code == 1


def test_what_nothing_in_the_history_explains_is_exit_code_1(url: str) -> None:
    group(url)
    execute(url, 'UPDATE kafka_offsets SET "offset" = 7')
    found = run("verify", "shop")
    assert found.exit_code == 1
    assert "overlap a 0 7 10: nothing in the history explains it (version 3)" in found.stdout
    told = run("verify", "shop", "--json")
    assert (told.exit_code, [each["explained"] for each in json.loads(told.stdout)["findings"]]) == (1, [False])
