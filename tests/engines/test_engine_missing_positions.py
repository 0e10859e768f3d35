"""Another program, such as a clean-up, deletes positions of the ledger. None of them is taken for a first run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import redis
from typer.testing import CliRunner

from engines.databases import do
from engines.lab import Lab
from offsetkeeper import TopicPartition
from offsetkeeper.cli.main import app
from offsetkeeper.errors import StartRefused

Lose = Callable[..., None]
"""Deletes the positions of a topic, or of one of its partitions."""


@pytest.fixture(params=["sqlite", "postgresql", "mysql", "redis"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """URL of a store whose positions are rows of their own."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'offsets.db'}"
    if request.param == "mysql":
        server = request.getfixturevalue("mariadb_server")
        return str(server.url(server.create_database()))
    return str(request.getfixturevalue("database" if request.param == "postgresql" else "redis_url"))


@pytest.fixture
def lose(url: str) -> Lose:
    def in_redis(topic: str, partition: int | None = None) -> None:
        address, _, template = url.partition("?key=")
        key = template.format(topic=topic, group="group")
        with redis.Redis.from_url(address) as client:
            assert client.hdel(key, str(partition)) if partition is not None else client.delete(key)

    def in_tables(topic: str, partition: int | None = None) -> None:
        one = "" if partition is None else f" and kafka_offsets.partition = {partition}"
        do(url, f"delete from kafka_offsets where topic = '{topic}'{one}")  # noqa: S608 - names of ours

    return in_redis if url.startswith("redis") else in_tables


@pytest.fixture
def name(lab: Lab, topic: Callable[..., str], url: str) -> str:
    """A topic of three partitions, of which the group has read two records each; one more each has come."""
    found = topic(3)
    lab.store = url
    lab.produce_all(found, [(number, f"{number}-{each}") for number in range(3) for each in range(2)])
    lab.read(found)
    lab.produce_all(found, [(number, f"{number}-2") for number in range(3)])
    return found


def every(count: int) -> list[str]:
    return [f"{number}-{each}" for number in range(3) for each in range(count)]


@pytest.mark.parametrize("start", ["earliest", "latest"])
@pytest.mark.parametrize("partition", [1, None])
def test_a_run_is_refused_until_the_position_is_given(
    lab: Lab, name: str, lose: Lose, partition: int | None, start: str
) -> None:
    """From the earliest offset the records would come twice, from the latest one they would be lost."""
    lose(name, partition)
    for _ in range(2):
        with pytest.raises(StartRefused, match=f"(?s){name} 1: position missing, .*lost positions"):
            lab.read(name, start=start)
    numbers = range(3) if partition is None else [partition]
    lab.read(name, start=start, offsets={TopicPartition(name, number): 2 for number in numbers})
    assert sorted(lab.values) == every(3)
    assert not lab.snapshot().missing


def test_an_operator_sees_it_and_sets_the_position(lab: Lab, name: str, url: str, lose: Lose) -> None:
    def command(*words: str) -> str:
        done = CliRunner().invoke(app, [*words, "--store", url, "--brokers", lab.kafka.bootstrap])
        return done.output

    lose(name, 1)
    assert f"the store has lost the positions of {name} 1: the next start is refused" in command("show", "group")
    assert f"{name} 1: position missing" in command("plan", "group", "--topic", name)
    moved = command("reset", "group", "--topic", f"{name}:1", "--to-offset", "2", "--execute")
    assert "Done" in moved, moved
    lab.read(name)
    assert sorted(lab.values) == every(3)


def test_a_position_that_is_put_back_is_taken(lab: Lab, name: str, url: str, lose: Lose) -> None:
    lose(name, 1)
    assert lab.snapshot().missing == {TopicPartition(name, 1)}
    if url.startswith("redis"):
        address, _, template = url.partition("?key=")
        with redis.Redis.from_url(address) as client:
            client.hset(template.format(topic=name, group="group"), "1", "2")
    else:
        columns = "topic, group_id, 1, 2, timestamp, topic_id"
        do(url, f"insert into kafka_offsets select {columns} from kafka_offsets where kafka_offsets.partition = 0")  # noqa: S608 - ours
    lab.read(name)
    assert sorted(lab.values) == every(3)
