"""Offsets that a program gives at each of its starts, and a program that has no first run any more."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from engines.lab import Lab
from offsetkeeper import Policies, TopicPartition
from offsetkeeper.cli.main import app
from offsetkeeper.errors import SettingsError, StartRefused


@pytest.fixture
def name(lab: Lab, topic: Callable[..., str]) -> str:
    """A topic with three records in each of two partitions."""
    found = topic(2)
    lab.produce_all(found, [(number, f"{number}-{each}") for number in range(2) for each in range(3)])
    return found


def every(count: int = 3) -> list[str]:
    return [f"{number}-{each}" for number in range(2) for each in range(count)]


@pytest.mark.parametrize("numbers", [(0, 1), (0,)])
def test_a_supervisor_that_repeats_a_start_repeats_no_record(lab: Lab, name: str, numbers: tuple[int, ...]) -> None:
    """Each start read the same records again: 45 rows of 15."""
    given = dict.fromkeys((TopicPartition(name, number) for number in numbers), 0)
    lab.read(name, offsets=given)
    before = lab.snapshot()
    for _ in range(2):
        with pytest.raises(StartRefused, match=f"(?s){name} 0: given again.*start without them") as refused:
            lab.read(name, offsets=given)
        assert "give offsets" not in str(refused.value)
    assert sorted(lab.values) == every()
    assert lab.snapshot() == before, "a refused start fences nobody"
    assert f"{name} 0: given again" in str(lab.pipeline(name).plan(offsets=given))
    lab.produce(name, "0-3")
    assert lab.read(name) == ["0-3"]


def test_a_start_that_died_before_its_first_batch_is_repeated(lab: Lab, name: str) -> None:
    def fails(*_: Any) -> None:
        raise ArithmeticError

    given = {TopicPartition(name, 0): 0, TopicPartition(name, 1): 2}
    for _ in range(2):
        with pytest.raises(ArithmeticError):
            lab.pipeline(name, attempts=1).run(lab.spark, fails, until="caught_up", offsets=given)
    lab.read(name)
    assert sorted(lab.values) == ["0-0", "0-1", "0-2", "1-2"]


def test_offsets_where_reading_stood_anyway_count_as_given(lab: Lab, name: str) -> None:
    """Nothing moves at the first of these starts: the next one would repeat what it has read."""
    lab.read(name)
    given = {TopicPartition(name, 0): 3}
    lab.produce(name, "0-3")
    assert lab.read(name, offsets=given) == ["0-3"]
    with pytest.raises(StartRefused, match="given again"):
        lab.read(name, offsets=given)


def test_other_offsets_or_a_reset_are_a_new_word(lab: Lab, name: str) -> None:
    zero = TopicPartition(name, 0)
    lab.read(name, offsets={zero: 0})
    assert lab.read(name, offsets={zero: 1}) == ["0-1", "0-2"]
    with pytest.raises(StartRefused, match="given again"):
        lab.read(name, offsets={zero: 1})
    words = ["reset", "group", "--topic", f"{name}:0", "--to-offset", "1", "--execute"]
    done = CliRunner().invoke(app, [*words, "--store", lab.store, "--brokers", lab.kafka.bootstrap])
    assert done.exit_code == 0, done.output
    assert lab.read(name, offsets={zero: 1}) == ["0-1", "0-2"]


def test_a_rollback_to_an_earlier_release_with_its_offsets_repeats_no_record(lab: Lab, name: str) -> None:
    """Each release has a repair of its own in its code: the second one was the only one that was remembered."""
    zero, one = TopicPartition(name, 0), TopicPartition(name, 1)
    lab.read(name, offsets={zero: 0})
    assert lab.read(name, offsets={one: 2}) == ["1-2"]
    before = lab.snapshot()
    for given in ({zero: 0}, {one: 2}, {zero: 0}):
        with pytest.raises(StartRefused, match="given again"):
            lab.read(name, offsets=given)
        assert "given again" in str(lab.pipeline(name).plan(offsets=given))
    assert lab.snapshot() == before, "a refused start fences nobody"
    lab.produce(name, "0-3")
    assert lab.read(name) == ["0-3"]
    assert sorted(lab.values) == sorted([*every(), "1-2", "0-3"])


@pytest.mark.untraced("its store is moved away and back, which looks like a store that gives an old answer")
def test_a_program_without_a_first_run_is_refused_where_its_store_is_away(lab: Lab, name: str, tmp_path: Path) -> None:
    """Its mount was away: a new, empty database began at the latest offset, or at the earliest one again."""
    mounted = tmp_path / "mounted"
    mounted.mkdir()
    lab.store = f"sqlite:///{mounted}/offsets.db"
    lab.read(name)
    lab.produce(name, "0-3")
    away = mounted.rename(tmp_path / "away")
    mounted.mkdir()
    for start in ("earliest", "latest"):
        with pytest.raises(StartRefused, match=f"(?s){name} 0: first run.*first_run=stop.*is mounted"):
            lab.read(name, start=start, policies=Policies(first_run="stop"))
    mounted.rmdir()  # a refused start has left nothing in it
    away.rename(mounted)
    assert lab.read(name, policies=Policies(first_run="stop")) == ["0-3"]
    assert sorted(lab.values) == [*every()[:3], "0-3", *every()[3:]]


def test_a_first_run_that_is_meant_is_given_or_allowed(lab: Lab, name: str, topic: Callable[..., str]) -> None:
    never = Policies(first_run="stop")
    given = {TopicPartition(name, number): 1 for number in range(2)}
    assert lab.read(name, policies=never, offsets=given) == ["0-1", "0-2", "1-1", "1-2"]
    other = topic(1)
    lab.produce(other, "x")
    with pytest.raises(
        StartRefused,
        match=re.escape("give policies=Policies(first_run=…), where first_run is 'start'"),
    ):
        lab.read(name, other, policies=never)
    assert lab.read(name, other) == ["x"]


def test_the_policy_is_checked() -> None:
    with pytest.raises(SettingsError, match="first_run='never'"):
        Policies(first_run="never")  # type: ignore[arg-type]
