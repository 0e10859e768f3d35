"""A streaming query with state counts its batches in the ledger: what the commands make of these numbers."""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

import pytest

from cli.test_commands import Desk, desk
from offsetkeeper import Ledger, OffsetRange, open_store
from offsetkeeper.core.batch import QueryBatch
from offsetkeeper.kafka import KafkaCluster
from offsetkeeper.operate.lag import group_lag
from offsetkeeper.operate.reset import apply_reset, plan_rewind
from offsetkeeper.operate.reset_plan import load_plan

__all__ = ["desk"]
QUERY = str(UUID(int=7))


@pytest.fixture
def queried(desk: Desk) -> Desk:
    """The desk after a query's first two batches, of which the second had no records."""
    ledger = Ledger(open_store(desk.store), "shop", name="host:2")
    ledger.acquire("start")
    ledger.place({}, "new query", queries={QUERY: 0})
    ledger.commit(ledger.batch([OffsetRange(desk.topic, 0, 4, 6)], QueryBatch(QUERY, 0)))
    ledger.commit(ledger.batch([], QueryBatch(QUERY, 1)))
    ledger.release("end")
    return desk


def stored(desk: Desk) -> dict[str, int]:
    """Return what is stored, by topic and partition, and by query."""
    found = open_store(desk.store).load("shop")
    return {str(tp): at.offset for tp, at in found.positions.items()} | dict(found.queries)


def test_it_is_shown_as_what_it_is(queried: Desk) -> None:
    [group] = queried.json("groups")
    assert (group["topics"], group["partitions"]) == ([queried.topic], 2)
    shown = queried.json("show", "shop")
    assert shown["queries"] == {QUERY: 2}
    assert {each["topic"] for each in shown["positions"]} == {queried.topic}
    assert f"streaming query {QUERY}: its batches before 2 are done" in queried.run("show", "shop").stdout


def test_it_has_no_lag_and_is_nothing_to_start_from(queried: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: set[str] = set()
    with KafkaCluster(queried.brokers) as cluster:
        describe = cluster.describe

        def note(topics: Iterable[str]) -> object:
            asked.update(topics)
            return describe(asked)

        monkeypatch.setattr(cluster, "describe", note)
        lags = group_lag(open_store(queried.store).load("shop"), cluster)
    assert ({each.topic_partition.topic for each in lags}, asked) == ({queried.topic}, {queried.topic})
    assert queried.json("lag", "shop")["records"] == 4
    planned = queried.json("plan", "shop")
    assert {(each["topic"], each["verdict"]) for each in planned["partitions"]} == {(queried.topic, "resume")}
    assert queried.json("verify", "shop")["findings"] == []


def test_a_reset_of_all_topics_leaves_it_and_a_rewind_and_its_undo_take_it_along(queried: Desk) -> None:
    before = stored(queried)
    queried.run("reset", "shop", "--all-topics", "--to-earliest", "--execute")
    assert stored(queried) == {f"{queried.topic} 0": 0, f"{queried.topic} 1": 0, QUERY: 2}
    queried.run("undo", "shop", "--execute")
    assert stored(queried) == before
    newest = next(each["version"] for each in queried.json("history", "shop") if each["event"] == "commit")
    told = queried.run("rewind", "shop", "--version", str(newest - 1), "--execute").stdout
    assert f"the next batch of streaming query {QUERY} was 2, and is 1 then" in " ".join(told.split())
    assert stored(queried) == before | {QUERY: 1}
    queried.run("undo", "shop", "--execute")
    assert stored(queried) == before


def test_a_rewind_of_one_topic_leaves_it(queried: Desk) -> None:
    """The state of the query belongs to all that it has read."""
    began = next(each["version"] for each in queried.json("history", "shop") if each["event"] == "place")
    queried.run("rewind", "shop", "--version", str(began), "--topic", queried.topic, "--execute")
    assert stored(queried)[QUERY] == 2


def test_a_rewind_to_before_the_query_sets_it_to_its_beginning(queried: Desk) -> None:
    began = next(each["version"] for each in queried.json("history", "shop") if each["event"] == "place")
    queried.run("rewind", "shop", "--version", str(began - 1), "--execute")
    assert stored(queried)[QUERY] == 0


def test_a_saved_plan_has_it(queried: Desk) -> None:
    newest = next(each["version"] for each in queried.json("history", "shop") if each["event"] == "commit")
    ledger = Ledger(open_store(queried.store), "shop", name="host:3")
    with KafkaCluster(queried.brokers) as cluster:
        made = load_plan(plan_rewind(ledger, cluster, newest - 1).dump(), "a file")
        apply_reset(ledger, cluster, made, "back")
    assert stored(queried)[QUERY] == 1


def test_it_goes_along_into_another_store(queried: Desk) -> None:
    queried.run("copy", "shop", "--to", "sqlite:///copy.db", "--execute")
    found, copied = (open_store(url).load("shop") for url in (queried.store, "sqlite:///copy.db"))
    assert (copied.positions, copied.queries) == (found.positions, {QUERY: 2})


def test_the_outputs_that_have_the_batch_under_way_are_shown(queried: Desk) -> None:
    ledger = Ledger(open_store(queried.store), "shop", name="host:3")
    ledger.acquire()
    batch = ledger.batch([OffsetRange(queried.topic, 0, 6, 8)])
    ledger.begin(batch)
    ledger.note_written(batch, "audit")
    assert queried.json("show", "shop")["pending"]["written"] == ["audit"]
    assert "output audit has it" in queried.run("show", "shop").stdout
