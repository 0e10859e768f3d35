"""A function returns a frame, and no sink writes it: the first mistake of a new user commits nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from pyspark.sql import DataFrame

from engines.lab import Lab
from offsetkeeper import Batch, Policies
from offsetkeeper.errors import SettingsError
from offsetkeeper.sinks import Idempotent, Outputs, Transaction


def parse(frame: DataFrame, *_: Any) -> DataFrame:
    return frame.selectExpr("cast(value as string) as value")


def by_name(frame: DataFrame, *_: Any) -> dict[str, DataFrame]:
    return {"orders": parse(frame)}


def unsaved(frame: DataFrame, *_: Any) -> Any:
    return frame.write.format("noop").mode("overwrite")  # and no save()


def unsaved_table(frame: DataFrame, *_: Any) -> Any:
    return frame.writeTo("somewhere")


def nested(frame: DataFrame, *_: Any) -> Any:
    return {"orders": [parse(frame)]}


@pytest.mark.parametrize("function", [parse, by_name, unsaved, unsaved_table, nested])
@pytest.mark.parametrize("sink", [lambda function: function, Idempotent, Transaction])
def test_a_frame_that_nobody_writes_is_refused_before_its_offsets_are_committed(
    lab: Lab, topic: Callable[..., str], function: Any, sink: Callable[[Any], Any]
) -> None:
    name = topic(2)
    lab.produce_all(name, [(number, f"{number}-{each}") for number in range(2) for each in range(3)])
    with pytest.raises(SettingsError, match=r"nothing writes it.*Give the output as sink=.*return None"):
        lab.pipeline(name).run(lab.spark, sink=sink(function), until="caught_up")
    assert "commit" not in lab.events()
    assert len(lab.read(name)) == 6


async def later(frame: DataFrame, *_: Any) -> None:
    frame.write.format("noop").mode("overwrite").save()


def each(frame: DataFrame, *_: Any) -> Iterator[DataFrame]:
    yield parse(frame)


async def each_later(frame: DataFrame, *_: Any) -> AsyncIterator[DataFrame]:
    yield parse(frame)


@pytest.mark.parametrize("function", [later, each, each_later])
@pytest.mark.parametrize("sink", [lambda function: function, Idempotent, Transaction])
def test_a_function_that_a_call_does_not_run_is_refused(
    lab: Lab, topic: Callable[..., str], function: Any, sink: Callable[[Any], Any]
) -> None:
    """Its offsets were committed, and nothing was written."""
    name = topic()
    lab.produce(name, "a")
    with pytest.raises(SettingsError, match="is async or yields, so a call does not run it"):
        lab.pipeline(name).run(lab.spark, sink=sink(function), until="caught_up")

    def hidden(frame: DataFrame, *more: Any) -> Any:
        return function(frame, *more)

    with pytest.raises(SettingsError, match=r"returned an? (coroutine|generator|async_generator), and nothing runs it"):
        lab.pipeline(name).run(lab.spark, sink=sink(hidden), until="caught_up")
    assert "commit" not in lab.events()
    assert lab.read(name) == ["a"]


def test_the_same_of_one_of_several_outputs(lab: Lab, topic: Callable[..., str]) -> None:
    name = topic()
    lab.produce(name, "a")
    with pytest.raises(SettingsError, match="nothing writes it"):
        lab.pipeline(name).run(lab.spark, sink=Outputs(one=lab.keep, two=parse), until="caught_up")
    assert "commit" not in lab.events()


def test_the_same_of_dead_letters(lab: Lab, topic: Callable[..., str]) -> None:
    def fails(_: DataFrame, batch: Batch) -> None:
        if any(r.start == 0 and r.size for r in batch.ranges):
            raise ValueError("the first record is wrong")

    name = topic()
    lab.produce(name, "a", "b")
    pipeline = lab.pipeline(name, policies=Policies(poison="quarantine"), dead_letters=parse, attempts=1)
    with pytest.raises(SettingsError, match="nothing writes it"):
        pipeline.run(lab.spark, fails, until="caught_up")
    assert "commit" not in lab.events()


def test_other_values_that_a_function_returns_are_its_own_affair(lab: Lab, topic: Callable[..., str]) -> None:
    """Such as the rows that a lambda has collected, or their number."""
    name = topic()
    lab.produce(name, "a")
    assert lab.pipeline(name).run(lab.spark, lambda frame, _: frame.collect(), until="caught_up").offsets == 1
    lab.produce(name, "b")
    assert lab.pipeline(name).run(lab.spark, lambda frame, _: {"rows": frame.count()}, until="caught_up").offsets == 1
