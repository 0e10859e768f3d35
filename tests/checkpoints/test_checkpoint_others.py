"""Checkpoints that other releases of Spark have written: read, planned on, changed and changed back; and run on.

`make sparks` runs also what needs those releases: the change is followed by a query of the newest of the same line.
Of 4.3 there is one of each format and shape that it writes: with named sources and sinks, of real-time mode, of several
sources.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from checkpoints.others import GROUPS, KINDS, OTHER, TOPIC, WRITTEN, broker_of_both, line_of, run
from checkpoints.queries import Batches, copy, do, query_id, records
from checkpoints.written import content
from offsetkeeper import open_store
from offsetkeeper.checkpoint import (
    Edit,
    LocalFiles,
    Step,
    differences,
    inspect,
    offsets_after,
    plan_convert,
    plan_move,
    plan_seed,
    plan_truncate,
    plan_undo,
    read_checkpoint,
    verify,
)
from offsetkeeper.core.offsets import TopicPartition
from offsetkeeper.errors import NotAllowed, Refused
from offsetkeeper.testing.kafka import KafkaServer
from sparks import releases

A, B = TopicPartition(TOPIC, 0), TopicPartition(TOPIC, 1)
C, D = TopicPartition(OTHER, 0), TopicPartition(OTHER, 1)
V1, IDS = {"offset log": "v1", "commit log": "v1"}, {"offset log": "v1", "commit log": "v2"}
HDFS = {"state": "v1", "state store": "HDFSBackedStateStoreProvider"}
ROCKS = {"state": "v2", "state store": "RocksDBStateStoreProvider"}
FORMATS = {
    "plain": V1,
    "counting": V1 | HDFS,
    "rocks": IDS | ROCKS,
    "ids_unused": IDS,
    "offsets_v2": V1 | {"offset log": "v2"},
    "named": V1 | {"offset log": "v2"},
    "sink": V1 | {"commit log": "v3"},
    "sink_rocks": V1 | {"commit log": "v3"} | ROCKS,
    "realtime": IDS,
    "realtime_rocks": IDS | ROCKS,
    "windowed": V1 | HDFS,
    "distinct": V1 | HDFS,
    "changelog": V1 | ROCKS | {"state": "v1"},
    "join": V1 | HDFS,
    "union": V1,
    "thrice": V1,
}
SOURCES = {"named": ("orders", "payments"), "join": ("0", "1"), "union": ("0", "1"), "thrice": ("0", "1", "2")}
CASES = [(version, kind) for version, kinds in KINDS.items() for kind in kinds]
ASKED = [group for group in GROUPS if line_of(group[0]) in releases.asked()]
with_spark = pytest.mark.skipif(not ASKED, reason="make sparks installs the releases and runs it")
each_case = pytest.mark.parametrize(("version", "kind"), CASES)
each_asked = pytest.mark.parametrize(("version", "kinds"), ASKED or GROUPS)


@pytest.fixture
def files(version: str, kind: str, tmp_path: Path) -> LocalFiles:
    return copy(WRITTEN / version / kind, tmp_path / "checkpoint")


@pytest.fixture(scope="module")
def broker() -> Iterator[KafkaServer]:
    """One that has what the queries have read, under the topics' own names."""
    with broker_of_both() as server:
        yield server


def rows_of(kind: str) -> list[tuple[str, TopicPartition, int, int, int, None]]:
    """Return how a query of this kind stands: in each of its sources, and in each partition."""
    names = SOURCES.get(kind, ("0",))
    others = {"orders": False, "payments": True, "0": False, "1": kind in {"join", "union"}, "2": False}
    start = {"realtime": 0, "realtime_rocks": 0, "windowed": 6}.get(kind, 4)  # the last batch of windows has no records
    rows = [(name, tp, start, 6, 6, None) for name in names if not others[name] for tp in (A, B)]
    return rows + [(name, tp, 3, 3, 3, None) for name in names if others[name] for tp in (C, D)]


def ends_of(kind: str) -> dict[TopicPartition, int]:
    """Return where the query has read up to."""
    return {tp: end for _, tp, _, end, _, _ in rows_of(kind)}


def stateful(kind: str) -> bool:
    return "state" in FORMATS[kind]


@each_case
def test_it_is_read(files: LocalFiles, kind: str) -> None:
    assert verify(files) == []
    found = inspect(read_checkpoint(files))
    uuid.UUID(found.query_id)
    assert found.planned is not None
    assert (found.committed, found.next.batch, found.next.kind) == (found.planned, found.planned + 1, "new")
    assert [tuple(row) for row in found.rows] == rows_of(kind)
    assert found.formats == FORMATS[kind]
    assert found.state_versions == ({0: [*range(1, found.planned + 2)]} if stateful(kind) else {})
    assert found.planned_at_ms > 1_700_000_000_000


@each_case
def test_it_is_compared_and_exported(files: LocalFiles, kind: str) -> None:
    found = read_checkpoint(files)
    if not kind.startswith("realtime"):
        assert offsets_after(found, 0) == dict.fromkeys(ends_of(kind), 2)
    stood = {tp: at for tp, at in found.next().positions.items() if tp.topic == TOPIC}
    assert [(each.topic_partition, each.ahead) for each in differences(stood, {A: 6, B: 5})] == [(B, 1)]
    stored = open_store(f"checkpoint://{files.path}").load("any")
    assert {tp: at.offset for tp, at in stored.positions.items()} == ends_of(kind)
    assert stored.queries == ({found.query_id(): found.next().batch} if stateful(kind) else {})


@each_case
def test_plans_are_made_of_it_and_change_nothing(files: LocalFiles, kind: str) -> None:
    before, found = content(files), read_checkpoint(files)
    following = found.next().batch
    if stateful(kind):
        with pytest.raises(NotAllowed, match="the query keeps state"):
            plan_move(found, {A: 1})
    else:
        edit = plan_move(found, {A: 1})
        sources = [row[0] for row in rows_of(kind) if row[1] == A]
        assert [_of(step) for step in edit.steps] == [(name, A, 6, 1) for name in sources]
        assert sorted(edit.writes) == [f"commits/{following}", f"offsets/{following}"]
    with pytest.raises(NotAllowed, match="a query has begun here"):
        plan_seed(found, {"0": {A: 1}})
    edit = plan_truncate(found, 0, query_id="keep")
    assert set(edit.deletes) >= {f"{name}/{n}" for name in ("offsets", "commits") for n in range(1, following)}
    assert {name.split("/")[0] for name in edit.deletes} == {"offsets", "commits", *(["state"] * stateful(kind))}
    assert edit.new is not None
    assert (edit.new.batch, edit.new.positions) == (1, offsets_after(found, 0))
    assert content(files) == before
    assert files.backups() == []


def _of(step: Step) -> tuple[str, TopicPartition, int | None, int | None]:
    return step.source, step.topic_partition, step.old, step.new


def _change(files: LocalFiles, kind: str) -> Edit:
    found = read_checkpoint(files)
    return plan_truncate(found, 0, query_id="new") if stateful(kind) else plan_move(found, {A: 1, B: 5})


@each_case
def test_it_is_changed_and_changed_back(files: LocalFiles, kind: str) -> None:
    before = content(files)
    do(files, _change(files, kind))
    assert content(files) != before
    assert verify(files) == []
    do(files, plan_undo(files))
    assert content(files) == before


COUNTED = [[(0, 4), (1, 4)], [(0, 6), (1, 6)]]
AFTER_THE_FIRST = {  # the rows of each batch that follows the first one
    "counting": COUNTED,
    "rocks": COUNTED,
    "changelog": COUNTED,
    "sink_rocks": COUNTED,
    "windowed": [[(0, 2), (1, 2)]] * 2,  # two windows are closed; the third one stays open
    "distinct": [records((0, 2, 4), (1, 2, 4)), records((0, 4, 6), (1, 4, 6))],
    "realtime_rocks": [records((0, 0, 6), (1, 0, 6))],
    "join": [[(0, 2), (1, 2)]],
}


@with_spark
@each_asked
def test_its_spark_goes_on_where_the_change_says(
    version: str, kinds: tuple[str, ...], tmp_path: Path, broker: KafkaServer
) -> None:
    """And, once that is undone, has nothing to do."""
    changed = {kind: copy(WRITTEN / version / kind, tmp_path / kind) for kind in kinds}
    undone = {kind: copy(WRITTEN / version / kind, tmp_path / "undone" / kind) for kind in kinds}
    for kind in kinds:
        do(changed[kind], _change(changed[kind], kind))
        do(undone[kind], _change(undone[kind], kind))
        do(undone[kind], plan_undo(undone[kind]))
    queries = [(kind, files.path) for of in (changed, undone) for kind, files in of.items()]
    found = run(version, broker.bootstrap, *queries)
    assert [verify(files) for files in changed.values()] == [[] for _ in kinds]
    for kind, batches in zip(kinds, found, strict=False):
        _check_went_on(LocalFiles(WRITTEN / version / kind), changed[kind], kind, batches)
    assert found[len(kinds) :] == [{} for _ in kinds]


def _check_went_on(before: LocalFiles, changed: LocalFiles, kind: str, batches: Batches) -> None:
    """Check what a query did after the change: what follows the first batch, or the records that it was moved to."""
    if stateful(kind):
        assert [batches[number] for number in sorted(batches)] == AFTER_THE_FIRST[kind], kind
        assert min(batches) >= 1
        assert query_id(changed) != query_id(before)
        return
    times = len([row for row in rows_of(kind) if row[1] == A])
    read = sorted(row for rows in batches.values() for row in rows)
    assert read == sorted(records((0, 1, 6), (1, 5, 6)) * times), kind
    assert min(batches) > read_checkpoint(before).next().batch, "the move has used a number"
    assert query_id(changed) == query_id(before)


@with_spark
@pytest.mark.parametrize("version", sorted({version for version, _ in ASKED}) or [*KINDS])
def test_its_spark_begins_where_a_seed_says(version: str, tmp_path: Path, broker: KafkaServer) -> None:
    files = LocalFiles(tmp_path / "seeded")
    do(files, plan_seed(read_checkpoint(files, may_be_new=True), {"0": {A: 4, B: 5}}))
    assert run(version, broker.bootstrap, ("plain", files.path)) == [{0: records((0, 4, 6), (1, 5, 6))}]


@pytest.mark.parametrize("version", KINDS)
@pytest.mark.parametrize("kind", ["plain"])
def test_the_newer_format_of_the_offset_log_is_planned(files: LocalFiles) -> None:
    """Only Spark 4.2 reads it: who upgrades may convert after that."""
    edit = plan_convert(read_checkpoint(files), 2, ["orders"])
    assert sorted(edit.writes) == ["offsets/0", "offsets/1", "offsets/2", "sources/orders/0"]


def test_the_newest_of_the_numbered_checkpoints_of_a_pipelines_flow_is_named(tmp_path: Path) -> None:
    """`spark-pipelines run` of 4.3.0 wrote one, of a table that reads the topic; each full refresh adds a number."""
    flow = copy(WRITTEN / "4.3.0" / "pipeline", tmp_path / "flow").path
    newest = copy(flow / "0", flow / "10")
    for number in ("2", "9"):
        (flow / number).mkdir()
    for look in (verify, read_checkpoint, lambda _: open_store(f"checkpoint://{flow}").load("any")):
        with pytest.raises(Refused, match=f"folders with numbers.* reads only the newest: {flow}/10$"):
            look(LocalFiles(flow))
    assert verify(newest) == []
    assert [tuple(row) for row in inspect(read_checkpoint(newest)).rows] == [("0", tp, 0, 6, 6, None) for tp in (A, B)]
    do(newest, plan_move(read_checkpoint(newest), {A: 1}))
    assert read_checkpoint(newest).next().positions == {A: 1, B: 6}
    (flow / "notes").touch()
    with pytest.raises(Refused, match="give the folder of checkpointLocation"):
        read_checkpoint(LocalFiles(flow))
