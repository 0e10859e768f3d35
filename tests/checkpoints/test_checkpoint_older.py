"""Checkpoints that older releases of Spark have written: read, planned on, changed and changed back; and run on.

`make sparks` runs also what needs those releases: the change is followed by a query of the newest of the same line.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from checkpoints.older import KINDS, TOPIC, VERSIONS, WRITTEN, line_of, run
from checkpoints.queries import copy, do, produce, query_id, records
from checkpoints.written import content
from offsetkeeper import open_store
from offsetkeeper.checkpoint import (
    Edit,
    LocalFiles,
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
from offsetkeeper.errors import NotAllowed
from offsetkeeper.testing.kafka import KafkaServer
from sparks import releases

A, B = TopicPartition(TOPIC, 0), TopicPartition(TOPIC, 1)
FORMATS = {
    "plain": {"offset log": "v1", "commit log": "v1"},
    "counting": {
        "offset log": "v1",
        "commit log": "v1",
        "state": "v1",
        "state store": "HDFSBackedStateStoreProvider",
    },
    "rocks": {"offset log": "v1", "commit log": "v2", "state": "v2", "state store": "RocksDBStateStoreProvider"},
}
ASKED = [version for version in VERSIONS if line_of(version) in releases.asked()]
with_spark = pytest.mark.skipif(not ASKED, reason="make sparks installs the releases and runs it")
each_version = pytest.mark.parametrize("version", VERSIONS)
each_asked = pytest.mark.parametrize("version", ASKED or VERSIONS)
each_kind = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture
def files(version: str, kind: str, tmp_path: Path) -> LocalFiles:
    return copy(WRITTEN / version / kind, tmp_path / "checkpoint")


@pytest.fixture(scope="module")
def broker() -> Iterator[KafkaServer]:
    """One that has what the queries have read, under the topic's own name."""
    with KafkaServer() as server:
        server.create_topic(TOPIC, 2)
        produce(server, TOPIC, 6)
        yield server


@each_version
@each_kind
def test_it_is_read(files: LocalFiles, kind: str) -> None:
    assert verify(files) == []
    found = inspect(read_checkpoint(files))
    uuid.UUID(found.query_id)
    assert (found.planned, found.committed, found.next.batch, found.next.kind) == (2, 2, 3, "new")
    assert [tuple(row) for row in found.rows] == [("0", A, 4, 6, 6, None), ("0", B, 4, 6, 6, None)]
    assert found.formats == FORMATS[kind]
    assert found.state_versions == ({} if kind == "plain" else {0: [1, 2, 3]})
    assert found.planned_at_ms > 1_700_000_000_000


@each_version
@each_kind
def test_it_is_compared_and_exported(files: LocalFiles, kind: str) -> None:
    found = read_checkpoint(files)
    assert offsets_after(found, 0) == {A: 2, B: 2}
    assert [(each.topic_partition, each.ahead) for each in differences(found.next().positions, {A: 6, B: 5})] == [
        (B, 1)
    ]
    stored = open_store(f"checkpoint://{files.path}").load("any")
    assert {tp: at.offset for tp, at in stored.positions.items()} == {A: 6, B: 6}
    assert stored.queries == ({} if kind == "plain" else {found.query_id(): 3})


@each_version
@each_kind
def test_plans_are_made_of_it_and_change_nothing(files: LocalFiles, kind: str) -> None:
    before, found = content(files), read_checkpoint(files)
    if kind == "plain":
        edit = plan_move(found, {A: 1})
        assert [(step.topic_partition, step.old, step.new) for step in edit.steps] == [(A, 6, 1)]
        assert sorted(edit.writes) == ["commits/3", "offsets/3"]
    else:
        with pytest.raises(NotAllowed, match="the query keeps state"):
            plan_move(found, {A: 1})
    with pytest.raises(NotAllowed, match="a query has begun here"):
        plan_seed(found, {"0": {A: 1}})
    edit = plan_truncate(found, 0, query_id="keep")
    assert {"offsets/1", "offsets/2", "commits/1", "commits/2"} <= set(edit.deletes)
    assert edit.new is not None
    assert (edit.new.batch, edit.new.positions) == (1, {A: 2, B: 2})
    assert {name.split("/")[0] for name in edit.deletes} == {"offsets", "commits", *(["state"] * (kind != "plain"))}
    assert content(files) == before
    assert files.backups() == []


def _change(files: LocalFiles, kind: str) -> Edit:
    found = read_checkpoint(files)
    return plan_move(found, {A: 1, B: 5}) if kind == "plain" else plan_truncate(found, 0, query_id="new")


@each_version
@each_kind
def test_it_is_changed_and_changed_back(files: LocalFiles, kind: str) -> None:
    before = content(files)
    do(files, _change(files, kind))
    assert content(files) != before
    assert verify(files) == []
    do(files, plan_undo(files))
    assert content(files) == before


@with_spark
@each_asked
@each_kind
def test_its_spark_goes_on_where_the_change_says(
    files: LocalFiles, kind: str, version: str, broker: KafkaServer
) -> None:
    """And, once that is undone, has nothing to do."""
    before = query_id(files)
    do(files, _change(files, kind))
    changed = copy(files.path, files.path.with_name("changed"))
    found = run(version, kind, changed.path, broker.bootstrap)
    if kind == "plain":
        assert min(found) == 4
        assert sorted(row for rows in found.values() for row in rows) == records((0, 1, 6), (1, 5, 6))
        assert query_id(changed) == before
    else:
        assert found == {1: [(0, 4), (1, 4)], 2: [(0, 6), (1, 6)]}
        assert query_id(changed) != before
    assert verify(changed) == []
    do(files, plan_undo(files))
    assert run(version, kind, files.path, broker.bootstrap) == {}


@with_spark
@each_asked
def test_its_spark_begins_where_a_seed_says(version: str, tmp_path: Path, broker: KafkaServer) -> None:
    files = LocalFiles(tmp_path / "seeded")
    do(files, plan_seed(read_checkpoint(files, may_be_new=True), {"0": {A: 4, B: 5}}))
    assert run(version, "plain", files.path, broker.bootstrap) == {0: records((0, 4, 6), (1, 5, 6))}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("kind", ["plain"])
def test_the_newer_format_of_the_offset_log_is_planned(files: LocalFiles) -> None:
    """Only Spark 4.2 reads it: who upgrades may convert after that."""
    edit = plan_convert(read_checkpoint(files), 2, ["orders"])
    assert sorted(edit.writes) == ["offsets/0", "offsets/1", "offsets/2", "sources/orders/0"]
