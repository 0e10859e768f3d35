"""A store that has lost a position: nothing that takes positions elsewhere leaves it out in silence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import Result

from cli import test_looking
from cli.test_looking import A, execute, run
from fixtures.fake_cluster import Fake
from offsetkeeper import Ledger, OffsetRange, Position, TopicPartition, open_store
from offsetkeeper.checkpoint import LocalFiles, read_checkpoint
from offsetkeeper.core.bounds import Bounds
from offsetkeeper.errors import Refused

url, fake = test_looking.url, test_looking.fake
B = TopicPartition("b", 0)
LOST = r"the store has lost positions of group 'shop': b 0\. .*, or name the others with --topic"


@pytest.fixture(autouse=True)
def ledger(url: str, fake: Fake) -> Ledger:
    """A group that has read two topics, and nobody holds; the position of one is deleted by hand."""
    ledger = Ledger(open_store(url), "shop")
    ledger.acquire()
    ledger.place({A: Position(0), B: Position(0)})
    ledger.commit(ledger.batch([OffsetRange(*A, 0, 10), OffsetRange(*B, 0, 20)]))
    ledger.release()
    execute(url, "DELETE FROM kafka_offsets WHERE topic = 'b'")
    fake.held_ = {A: Bounds(0, 10), B: Bounds(0, 20)}
    return ledger


def seed(*more: str) -> Result:
    return run("checkpoint", "seed", "new", "--group", "shop", "--execute", *more)


def test_positions_do_not_go_elsewhere_without_those_that_the_store_has_lost() -> None:
    """The new query, or the other group, would read the topic from its beginning, or from its end."""
    for command in (["--to-current"], ["--to-earliest", "--brokers", "fake:9092"]):
        with pytest.raises(Refused, match=LOST):
            run("reset", "shop", "--all-topics", "--export", *command)
    with pytest.raises(Refused, match=LOST):
        seed()
    assert not Path("new").exists()
    assert run("reset", "shop", "--topic", "a", "--to-current", "--export").stdout == "a,0,10\n"
    seed("--topic", "a")
    assert read_checkpoint(LocalFiles(Path("new"))).next().positions == {A: 10}


def test_a_seed_tells_that_the_ids_of_topics_are_left_out(ledger: Ledger) -> None:
    """A topic that was made again since has fewer records than the offset says: the query begins in the middle."""
    ledger.acquire()
    ledger.place({A: Position(10, topic_id="an id")})
    ledger.release()
    note = "note: a seed has no ids of topics: if a topic was deleted and made again since the group's last run"
    assert note in seed("--topic", "a").stdout


def test_an_export_of_all_topics_is_of_all_whatever_topics_the_settings_name() -> None:
    Path("offsetkeeper.toml").write_text('topics = ["a"]\n', "utf-8")
    with pytest.raises(Refused, match=LOST):
        run("reset", "shop", "--all-topics", "--to-earliest", "--export", "--brokers", "fake:9092")


def test_a_position_that_is_given_anew_is_exported() -> None:
    command = ("reset", "shop", "--topic", "a", "--topic", "b", "--to-earliest", "--export", "--brokers", "fake:9092")
    assert run(*command).stdout.split() == ["a,0,0", "b,0,0"]


def test_by_force_a_seed_takes_what_is_left_and_a_comparison_does_not_call_that_equal() -> None:
    seed("--force")
    found = run("checkpoint", "diff", "new", "--group", "shop")
    assert (found.exit_code, found.stdout) == (1, "")
    assert "the store has lost the positions of b 0, so they are not compared" in found.stderr
    found = run("checkpoint", "diff", "new", "--group", "shop", "--json")
    assert (found.exit_code, json.loads(found.stdout)) == (1, [])


def test_a_replay_of_all_that_the_group_reads_asks_where_to_end_or_reads_it() -> None:
    with pytest.raises(Refused, match="b 0 has no stored position to end at: give the end"):
        run("replay", "shop", "--from-offset", "0", "--brokers", "fake:9092")
    command = ("replay", "shop", "--from-datetime", "1970-01-01T00:00:05Z", "--to-datetime", "1970-01-01T00:00:09Z")
    found = json.loads(run(*command, "--brokers", "fake:9092", "--json").stdout)["stretches"]
    assert [(each["topic"], each["start"], each["end"]) for each in found] == [("a", 5, 10), ("b", 5, 20)]


@pytest.mark.parametrize("lost", ["b", "a"])
def test_a_plan_without_topics_tells_that_the_start_is_refused(lost: str, url: str) -> None:
    if lost == "a":
        execute(url, "DELETE FROM kafka_offsets WHERE topic = 'a'")
    found = run("plan", "shop", "--brokers", "fake:9092", "--json")
    assert found.exit_code == 1
    verdicts = {each["topic"]: each["verdict"] for each in json.loads(found.stdout)["partitions"]}
    assert verdicts == {"a": "resume" if lost == "b" else "position missing", "b": "position missing"}
