"""What could go wrong between the look at an Iceberg table and the commit, and what is said of it then."""

from __future__ import annotations

import os
import pickle
import platform
import subprocess
import sys
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.expressions import AlwaysTrue, EqualTo, GreaterThanOrEqual, Reference
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    MonthTransform,
    Transform,
    TruncateTransform,
    YearTransform,
)
from pyiceberg.types import (
    BinaryType,
    DateType,
    IntegerType,
    LongType,
    NestedField,
    StringType,
    TimestampType,
    TimestamptzType,
)
from pyspark.sql import SparkSession

from offsetkeeper.core.mark import Landing, OutputMark, check_marks
from offsetkeeper.core.model import Guarantee, Landed, Snapshot
from offsetkeeper.engines.outputs import RunOutputs
from offsetkeeper.errors import (
    BatchVoid,
    MarkBehind,
    MarkError,
    MarkMoved,
    MissingExtra,
    OutcomeUnknown,
    Refused,
    RowMismatch,
    SinkError,
    SinkMismatch,
)
from offsetkeeper.sinks import IcebergTable, Lander, MarkKey
from offsetkeeper.sinks.iceberg import commit, landing, task
from offsetkeeper.sinks.iceberg.bounds import data_files
from offsetkeeper.sinks.iceberg.catalog import RELEASE, of_files
from offsetkeeper.sinks.iceberg.history import held
from offsetkeeper.sinks.limits import Limits
from offsetkeeper.sinks.once import Once
from offsetkeeper.sinks.outputs import Prepared
from offsetkeeper.stores.memory import MemoryStore
from offsetkeeper.testing.conformance.landers import batch_of, records
from offsetkeeper.testing.s3 import KEY, SECRET, S3Server
from sinks import iceberg_kills
from sinks.icebergs import CATALOG, Lake, by_duckdb

GROUP = MarkKey("billing", "")
ROWS = pa.schema([("id", pa.int64()), ("name", pa.string())])
SCHEMA = Schema(NestedField(1, "id", LongType()), NestedField(2, "name", StringType()))


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """A catalog with an empty table `orders`, in a folder with signs that a URI would need escapes for."""
    folder = tmp_path / "a lake, 100"
    folder.mkdir()
    lake = Lake.made(folder)
    lake.create("orders", SCHEMA)
    return lake


def work(lake: Lake, *batches: pa.RecordBatch, limits: tuple[Limits, ...] = (), schema: pa.Schema = ROWS) -> list[Any]:
    """Do the work of one task."""
    table = lake.table("orders")
    plan = task.FilePlan(table.metadata.model_dump_json(), schema, limits)
    place = task.Place("orders", table.location(), {}, RELEASE)
    return [each for reply in task.write_files(place, plan, iter(batches)) for each in reply["file"].to_pylist()]


def staged(lake: Lake, name: str, *ids: int) -> landing.Staged:
    """Return rows as a job of Spark stages them."""
    files = work(lake, pa.record_batch({"id": pa.array(ids, pa.int64()), "name": [name] * len(ids)}))
    shape = landing.Shape.of(lake.table("orders"))
    return landing.Staged(shape, [pickle.loads(each) for each in files], "orders 0 1 2")  # noqa: S301 - ours


def mark(sequence: int, *, void: bool = False) -> OutputMark:
    return OutputMark.of(batch_of(sequence), void=void)


def theirs(lake: Lake, *ids: int | None) -> None:
    """Append rows as another program does."""
    with lake.catalog() as catalog:
        catalog.load_table("shop.orders").append(pa.table({"id": ids, "name": ["theirs"] * len(ids)}, ROWS))


Change = Callable[[Lander, Any, Lake], str | None]


def append(way: Lander, seen: Any, lake: Lake) -> str | None:
    return way.land(GROUP, seen, mark(1), staged(lake, "appended", 1))


def void(way: Lander, seen: Any, _: Lake) -> str | None:
    return way.land(GROUP, seen, mark(1, void=True), None)


def upsert(_: Lander, seen: Any, lake: Lake) -> str | None:
    """Replace row 7, and add another one."""
    way = lake.lander("orders", mode="upsert", key=["id"])
    return way.land(GROUP, seen, mark(1), staged(lake, "upserted", 2, 7))


CHANGES = pytest.mark.parametrize("change", [append, void, upsert])


@CHANGES
def test_all_that_a_commit_adds_is_on_the_disk_in_iceberg(lake: Lake, on_disk: set[str], change: Change) -> None:
    """Also the manifests and the metadata, which pyiceberg writes: it does not wait for them."""
    before = {*Path(lake.folder).rglob("*")}
    change(lake.lander("orders"), lake.lander("orders").seen(GROUP), lake)
    made = {each for each in Path(lake.folder, "warehouse").rglob("*") if each.is_file() and each not in before}
    assert len(made) == (2 if change is void else 4)
    assert {*map(str, made)} <= on_disk


def test_a_batch_that_may_not_be_on_the_disk_counts_only_when_it_is_in_iceberg(
    lake: Lake, failing_disk: Callable[[str], None], on_disk: set[str]
) -> None:
    files = staged(lake, "mine", 1)
    way = replace(lake.lander("orders"), stage=lambda *_: files)
    failing_disk(r"metadata\.json$")
    for _ in range(2):
        with pytest.raises((OutcomeUnknown, SinkError), match=r"metadata\.json exists, but may not be durable"):
            Once(way, "").write(None, batch_of(1))  # type: ignore[arg-type]
    assert lake.rows("orders") == [(1, "mine")]
    later = Once(lake.lander("orders"), "")  # of another run
    with pytest.raises(SinkError, match="may not be durable"):
        later.kept(batch_of(1), Landed())
    failing_disk("")
    assert later.kept(batch_of(1), Landed()).mark == mark(1)
    assert lake.table("orders").metadata_location.removeprefix("file://") in on_disk
    assert not Once(way, "").write(None, batch_of(1)).used  # type: ignore[arg-type]
    assert lake.rows("orders") == [(1, "mine")]


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_rows_on_another_disk_than_the_driver_sees_are_not_committed_to_iceberg(
    spark: SparkSession, mount: tuple[Path, Path], mode: str
) -> None:
    """The folders that are missing there are made by pyiceberg."""
    lake = Lake.made(mount[0] / "lake")
    lake.create("orders", SCHEMA)
    way = lake.lander("orders", mode=mode, key=["id"] if mode == "upsert" else ())
    frame = spark.createDataFrame([(1, "a"), (2, "b")], "id bigint, name string")
    with pytest.raises(
        SinkError, match=rf"a task on {platform.node()} has written .*one folder for the driver and all"
    ):
        Once(way, "").write(frame, batch_of(1))
    assert list(mount[1].rglob("*.parquet"))
    assert (lake.rows("orders"), way.seen(GROUP).mark) == ([], None)


@pytest.mark.parametrize("second", [append, void, upsert])
@pytest.mark.parametrize("first", [append, void, upsert])
def test_of_two_looks_at_one_snapshot_the_second_lands_nothing(lake: Lake, first: Change, second: Change) -> None:
    """Nor does either of them when it is used again: pyiceberg's own transaction would land the rows again."""
    way = lake.lander("orders")
    one, other = way.seen(GROUP), way.seen(GROUP)
    first(way, one, lake)
    there = lake.rows("orders")
    for stale in (other, one):
        with pytest.raises(MarkMoved):
            second(way, stale, lake)
    assert lake.rows("orders") == there
    assert len(lake.table("orders").metadata.snapshots) == 1


def _append(lake: Lake) -> None:
    theirs(lake, 8)


def _delete(lake: Lake) -> None:
    with lake.catalog() as catalog:
        catalog.load_table("shop.orders").delete("id = 7")


def _overwrite(lake: Lake) -> None:
    with lake.catalog() as catalog:
        catalog.load_table("shop.orders").overwrite(pa.table({"id": [8], "name": ["theirs"]}, ROWS))


def _compact(lake: Lake) -> None:
    with lake.catalog() as catalog:
        table = catalog.load_table("shop.orders")
        table.overwrite(table.scan().to_arrow())


def _property(lake: Lake) -> None:
    with lake.catalog() as catalog, catalog.load_table("shop.orders").transaction() as change:
        change.set_properties({"owner": "others"})


def _tag(lake: Lake) -> None:
    with lake.catalog() as catalog:
        table = catalog.load_table("shop.orders")
        current = table.current_snapshot()
        assert current is not None
        table.manage_snapshots().create_tag(current.snapshot_id, "audited").commit()


def _another_group(lake: Lake) -> None:
    way, other = lake.lander("orders"), MarkKey("other", "")
    way.land(other, way.seen(other), mark(5), staged(lake, "other", 9))


OTHERS: dict[Callable[[Lake], None], list[tuple[int, str]]] = {
    _append: [(7, "theirs"), (8, "theirs")],
    _delete: [],
    _overwrite: [(8, "theirs")],
    _compact: [(7, "theirs")],
    _property: [(7, "theirs")],
    _tag: [(7, "theirs")],
    _another_group: [(7, "theirs"), (9, "other")],
}


@CHANGES
@pytest.mark.parametrize("others", OTHERS)
def test_others_who_change_the_table_meanwhile_hold_nothing_up(
    lake: Lake, others: Callable[[Lake], None], change: Change
) -> None:
    theirs(lake, 7)
    way = lake.lander("orders")
    seen = way.seen(GROUP)
    others(lake)
    target = change(way, seen, lake)
    ours: dict[Change, list[tuple[int, str]]] = {
        append: [(1, "appended")],
        void: [],
        upsert: [(2, "upserted"), (7, "upserted")],
    }
    left = [row for row in OTHERS[others] if change is not upsert or row[0] != 7]
    assert lake.rows("orders") == sorted([*ours[change], *left])
    after = lake.lander("orders").seen(GROUP)
    assert after.mark == mark(1, void=change is void)
    assert way.lost(Landed(1, target or ""), after) == ""


def test_a_table_that_changes_with_each_try_is_given_up_in_iceberg(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """And nothing is left of the tries."""
    send = commit.Commit.send

    def late(self: commit.Commit) -> str:
        theirs(lake, 8)
        return send(self)

    way = lake.lander("orders")
    seen, files = way.seen(GROUP), staged(lake, "appended", 1)
    monkeypatch.setattr(commit.Commit, "send", late)
    monkeypatch.setattr(landing, "_TRIES", 3)
    with pytest.raises(SinkError, match="other writers keep changing"):
        way.land(GROUP, seen, mark(1), files)
    assert lake.rows("orders") == [(8, "theirs")] * 3
    assert len([*lake.folder.rglob("snap-*.avro")]) == 3


@pytest.mark.parametrize("landed", [True, False])
def test_an_answer_that_is_lost_is_looked_up_in_iceberg(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, *, landed: bool
) -> None:
    """As of a database that was restarted: the commit is there, or it may come later."""
    real = SqlCatalog.commit_table

    def lost(self: Any, *arguments: Any) -> None:
        if landed:
            real(self, *arguments)
        raise OSError("the connection is lost")

    way = lake.lander("orders")
    with monkeypatch.context() as patch:
        patch.setattr(SqlCatalog, "commit_table", lost)
        if landed:
            append(way, way.seen(GROUP), lake)
        else:
            with pytest.raises(OutcomeUnknown, match="the connection is lost"):
                append(way, way.seen(GROUP), lake)
    assert lake.rows("orders") == ([(1, "appended")] if landed else [])
    Once(way, "").make_void(batch_of(2))


@CHANGES
def test_a_commit_that_has_landed_and_whose_second_sending_is_refused_stays_readable(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, change: Change
) -> None:
    """A proxy sends it twice and passes on the second answer, and a cache shows the table as it was.

    The files of the snapshot were deleted: it was the current one, and nobody could read the table any more.
    """
    theirs(lake, 7)
    stale, commit_table, load_table = lake.table("orders"), SqlCatalog.commit_table, SqlCatalog.load_table
    cached = [False]

    def twice(self: Any, *arguments: Any) -> None:
        commit_table(self, *arguments)
        cached[0] = True
        raise CommitFailedException("branch main has changed")

    def shown(self: Any, *arguments: Any) -> Any:
        return stale if cached[0] else load_table(self, *arguments)

    way = lake.lander("orders")
    with monkeypatch.context() as patch:
        patch.setattr(SqlCatalog, "commit_table", twice)
        patch.setattr(SqlCatalog, "load_table", shown)
        with pytest.raises(OutcomeUnknown, match=r"branch main has changed; .* as it was before"):
            change(way, way.seen(GROUP), lake)
    ours: dict[Change, list[tuple[int, str]]] = {
        append: [(1, "appended"), (7, "theirs")],
        void: [(7, "theirs")],
        upsert: [(2, "upserted"), (7, "upserted")],
    }
    assert lake.rows("orders") == ours[change]
    assert way.seen(GROUP).mark == mark(1, void=change is void)


def test_a_commit_that_comes_late_does_not_land_a_batch_that_was_dropped(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is for the snapshot that was seen, and a rollback to that one does not help it: its number is used."""
    theirs(lake, 7)
    way, send = lake.lander("orders"), commit.Commit.send

    def late(self: commit.Commit) -> str:
        monkeypatch.setattr(commit.Commit, "send", send)
        newer, before = lake.lander("orders"), lake.table("orders").current_snapshot()
        assert before is not None
        newer.land(GROUP, newer.seen(GROUP), mark(1, void=True), None)
        with lake.catalog() as catalog:
            catalog.load_table("shop.orders").manage_snapshots().set_current_snapshot(before.snapshot_id).commit()
        return send(self)

    seen, files = way.seen(GROUP), staged(lake, "late", 1)
    monkeypatch.setattr(commit.Commit, "send", late)
    with pytest.raises(MarkMoved):
        way.land(GROUP, seen, mark(1), files)
    assert lake.rows("orders") == [(7, "theirs")]


def test_a_commit_of_which_nothing_can_be_found_out_is_unknown_in_iceberg(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The catalog is away, and comes back."""
    way = lake.lander("orders")
    seen, files = way.seen(GROUP), staged(lake, "mine", 1)
    catalog, away = lake.folder / "catalog.db", lake.folder / "away.db"
    send = commit.Commit.send

    def gone(self: commit.Commit) -> str:
        catalog.rename(away)
        return send(self)

    with monkeypatch.context() as patch:
        patch.setattr(commit.Commit, "send", gone)
        with pytest.raises(OutcomeUnknown, match="the read after it failed too"):
            way.land(GROUP, seen, mark(1), files)
    away.rename(catalog)
    way.land(GROUP, way.seen(GROUP), mark(1), files)
    assert lake.rows("orders") == [(1, "mine")]


@pytest.mark.parametrize("altered", ["column", "made again"])
def test_a_table_that_is_altered_while_rows_are_staged_gets_none_of_them_in_iceberg(lake: Lake, altered: str) -> None:
    way, files = lake.lander("orders"), staged(lake, "mine", 1)
    seen = way.seen(GROUP)
    with lake.catalog() as catalog:
        if altered == "column":
            with catalog.load_table("shop.orders").update_schema() as change:
                change.delete_column("name")
        else:
            catalog.drop_table("shop.orders")
    if altered == "made again":
        lake.create("orders", SCHEMA)
    for look in (seen, way.seen(GROUP)):
        with pytest.raises(SinkError, match="was altered or made again while rows were staged"):
            way.land(GROUP, look, mark(1), files)
    assert lake.rows("orders") == []


def test_a_table_that_is_made_again_is_behind(lake: Lake) -> None:
    """By the mark, and by the identity of the table if somebody has given it the mark too."""
    way = lake.lander("orders")
    landed = Landed(1, append(way, way.seen(GROUP), lake) or "")
    with lake.catalog() as catalog:
        catalog.drop_table("shop.orders")
    with pytest.raises(Refused, match="does not exist: create it first"):
        way.seen(GROUP)
    lake.create("orders", SCHEMA)
    again = way.seen(GROUP)
    with pytest.raises(MarkBehind):
        check_marks(Snapshot("billing", sequence=1, landed={"": landed}), {"": again.mark})
    void(way, again, lake)
    assert "it was dropped and made again" in way.lost(landed, way.seen(GROUP))


def test_a_mark_that_is_deleted_is_behind_and_a_wrong_one_is_told(lake: Lake) -> None:
    way = lake.lander("orders")
    landed = Landed(1, append(way, way.seen(GROUP), lake) or "")
    with lake.catalog() as catalog, catalog.load_table("shop.orders").transaction() as change:
        change.remove_properties(GROUP.path)
    with pytest.raises(MarkBehind, match="its mark was deleted"):
        Once(way, "").make_void(batch_of(2), landed)
    with lake.catalog() as catalog, catalog.load_table("shop.orders").transaction() as change:
        change.set_properties({GROUP.path: "done"})
    with pytest.raises(MarkError, match="is not a mark of offsetkeeper"):
        way.seen(GROUP)


@pytest.mark.parametrize("others", [0, 2])
def test_a_table_that_was_rolled_back_is_refused_though_it_keeps_the_mark(lake: Lake, others: int) -> None:
    way = lake.lander("orders")
    known = [way.land(GROUP, way.seen(GROUP), mark(n), staged(lake, f"mine{n}", n)) for n in (1, 2)]
    landed = Landed(2, str(known[1]))
    assert way.lost(landed, way.seen(GROUP)) == ""
    theirs(lake, 10)
    assert way.lost(landed, way.seen(GROUP)) == ""
    for target, why in ((known[1], ""), (known[0], "was rolled back")):
        with lake.catalog() as catalog:
            to = int(str(target).split()[1])
            catalog.load_table("shop.orders").manage_snapshots().set_current_snapshot(to).commit()
        for _ in range(others):
            theirs(lake, 11)
        assert why in way.lost(landed, way.seen(GROUP))
    assert lake.rows("orders") == [(1, "mine1"), *[(11, "theirs")] * others]
    assert [each.batch for each in held("shop.orders", CATALOG, lake.properties).batches] == [batch_of(1).id]
    assert way.seen(GROUP).mark == mark(2)
    with pytest.raises(MarkBehind, match="was rolled back"):
        Once(way, "").make_void(batch_of(3), landed)
    assert way.lost(Landed(2), way.seen(GROUP)) == ""  # an operator has adopted that


def write(way: Lander, lake: Lake, number: int, landed: Landed, *ids: int) -> Landed:
    """Write a batch, and return what the ledger knows when it has committed it."""
    files = (
        staged(lake, f"mine{number}", *ids) if ids else landing.Staged(landing.Shape.of(lake.table("orders")), [], "")
    )
    done = Once(replace(way, stage=lambda *_: files), "").write(None, batch_of(number), landed)  # type: ignore[arg-type]
    return Landed(number, done.target)


def roll_back(lake: Lake, snapshot: int) -> None:
    with lake.catalog() as catalog:
        catalog.load_table("shop.orders").manage_snapshots().set_current_snapshot(snapshot).commit()


def current(lake: Lake) -> int:
    snapshot = lake.table("orders").current_snapshot()
    assert snapshot is not None
    return snapshot.snapshot_id


@pytest.mark.parametrize("ids", [[3], []], ids=["rows", "no rows"])
@pytest.mark.parametrize("others", [0, 2])
@pytest.mark.parametrize("first", [True, False], ids=["first batch", "later batch"])
def test_a_rollback_that_takes_back_a_batch_that_the_ledger_has_not_committed_is_noticed(
    lake: Lake, ids: list[int], others: int, *, first: bool
) -> None:
    """It counted as landed by its mark, which outlives the rows: they were lost. Others commit before and after it."""
    way = lake.lander("orders")
    theirs(lake, 7)
    landed = Landed(0, way.seen(GROUP).target) if first else write(way, lake, 1, Landed(), 1)
    theirs(lake, *[8] * others)
    before = current(lake)
    write(way, lake, 3, landed, *ids)
    theirs(lake, 8)
    there = current(lake)
    assert way.lost(landed, way.seen(GROUP)) == ""
    roll_back(lake, before)
    for _ in range(others):
        theirs(lake, 8)
    for act in (
        lambda: write(way, lake, 3, landed, *ids),
        lambda: Once(way, "").kept(batch_of(3), landed),
        lambda: Once(way, "").make_void(batch_of(3), landed),
    ):
        with pytest.raises(MarkBehind, match=r"does not come from the one with batch 3, .*--sequence 3"):
            act()
    once, seen = Once(way, ""), way.seen(GROUP)
    with pytest.raises(MarkBehind, match="was rolled back"):  # a start
        check_marks(Snapshot("billing", landed={"": landed}), {"": seen.mark}, (), {"": once.lost(landed, seen)}, 3)
    roll_back(lake, there)
    assert not once.write(None, batch_of(3), landed).used  # type: ignore[arg-type]
    mine = [row for row in lake.rows("orders") if row[1] != "theirs"]
    assert mine == [*[(1, "mine1")] * (not first), *[(3, "mine3")] * len(ids)]


@pytest.mark.parametrize("compacted", [False, True])
@pytest.mark.parametrize("back", [True, False])
def test_of_a_batch_whose_snapshot_has_expired_the_history_since_the_ledger_tells_whether_it_is_there(
    lake: Lake, *, back: bool, compacted: bool
) -> None:
    """If all since then is there, and none has the batch, a rollback has taken it back. Otherwise its mark counts."""
    way = lake.lander("orders")
    landed = write(way, lake, 1, Landed(), 1)
    known = current(lake)
    write(way, lake, 2, landed, 2)
    mine = current(lake)
    if back:
        roll_back(lake, known)
    if compacted:
        _compact(lake)
    elif not back:
        theirs(lake, 8)
    old = [mine] if back else [known, mine]
    with lake.catalog() as catalog:
        catalog.load_table("shop.orders").maintenance.expire_snapshots().by_ids(old).commit()
    assert {*old}.isdisjoint(each.snapshot_id for each in lake.table("orders").snapshots())
    assert way.seen(GROUP).mark == mark(2)
    assert bool(way.lost(landed, way.seen(GROUP))) == back
    assert bool(way.lost(Landed(1), way.seen(GROUP))) == back
    adopted = Once(way, "").make_void(batch_of(2), Landed(2))  # then the ledger knows no snapshot
    assert adopted.landing is (Landing.VOID if back else Landing.LANDED)


def test_of_a_first_batch_whose_snapshot_has_expired_its_mark_tells_that_it_is_there(lake: Lake) -> None:
    """After `adopt` nothing else tells of it: docs/lakes.md says to look. A batch of another output says nothing."""
    way, other = lake.lander("orders"), MarkKey("billing", "other")
    way.land(other, way.seen(other), mark(1), staged(lake, "other", 7))
    write(way, lake, 2, Landed(), 2)
    mine = current(lake)
    theirs(lake, 8)
    with lake.catalog() as catalog:
        catalog.load_table("shop.orders").maintenance.expire_snapshots().by_ids([mine]).commit()
    assert Once(way, "").make_void(batch_of(2), Landed(2)).landing is Landing.LANDED
    assert lake.rows("orders")[0] == (2, "mine2")


def test_a_batch_that_another_program_takes_over_is_there_though_its_snapshot_has_expired(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ledger noted the snapshot of now for the batch before, and so called the table rolled back."""
    way = lake.lander("orders")
    landed = write(way, lake, 1, Landed(), 1)
    old = [current(lake)]
    write(way, lake, 2, landed, 2)
    old.append(current(lake))
    theirs(lake, 8)
    with lake.catalog() as catalog:
        catalog.load_table("shop.orders").maintenance.expire_snapshots().by_ids(old).commit()
    once = Once(way, "")
    monkeypatch.setattr(RunOutputs, "ways", Prepared({"": once}, {}))
    monkeypatch.setattr(RunOutputs, "_seen", lambda *_: {"": once.seen("billing")})
    outputs: RunOutputs = object.__new__(RunOutputs)
    assert outputs.landed_before(batch_of(3)) == {"": Landed(2, way.seen(GROUP).target)}
    noted = outputs.landed_before(batch_of(2))[""]
    assert once.make_void(batch_of(2), noted).landing is Landing.LANDED
    assert lake.rows("orders") == [(1, "mine1"), (2, "mine2"), (8, "theirs")]


def test_a_batch_that_a_rollback_has_taken_back_can_be_dropped_once_that_is_adopted(lake: Lake) -> None:
    """Its rows are not there, so its records come again; and whoever still has it cannot land it."""
    way = lake.lander("orders")
    landed = write(way, lake, 1, Landed(), 1)
    known = current(lake)
    write(way, lake, 2, landed, 2)
    roll_back(lake, known)
    adopted = Landed(2)
    assert Once(way, "").make_void(batch_of(2), adopted).landing is Landing.VOID
    with pytest.raises(BatchVoid):
        write(way, lake, 2, adopted, 2)
    write(way, lake, 3, adopted, 2)
    assert lake.rows("orders") == [(1, "mine1"), (2, "mine3")]
    assert Once(way, "").make_void(batch_of(3), Landed(3)).landing is Landing.LANDED


@CHANGES
def test_nothing_lands_in_a_table_that_is_rolled_back_between_the_look_and_the_commit(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, change: Change
) -> None:
    """The batch landed upon it, and what the rollback had taken back was lost without a word."""
    theirs(lake, 7)
    before, way, other = current(lake), lake.lander("orders"), MarkKey("other", "")
    known = way.land(other, way.seen(other), mark(1), staged(lake, "other", 9))
    send = commit.Commit.send

    def late(self: commit.Commit) -> str:
        monkeypatch.setattr(commit.Commit, "send", send)
        roll_back(lake, before)
        theirs(lake, 8)
        return send(self)

    monkeypatch.setattr(commit.Commit, "send", late)
    with pytest.raises(SinkError, match="was rolled back while rows were landing; nothing was written"):
        change(way, way.seen(GROUP), lake)
    assert lake.rows("orders") == [(7, "theirs"), (8, "theirs")]
    assert way.seen(GROUP).mark is None
    assert len([*lake.folder.rglob("snap-*.avro")]) == len(lake.table("orders").snapshots())  # nothing is left of it
    with pytest.raises(MarkBehind):
        Once(way, "").make_void(replace(batch_of(2), group="other"), Landed(1, known or ""))


def test_an_older_copy_in_the_place_of_an_iceberg_table_is_behind(lake: Lake) -> None:
    """A registered copy has the identity of its table, and the marks of that time."""
    way = lake.lander("orders")
    known = way.land(GROUP, way.seen(GROUP), mark(1), staged(lake, "mine", 1))
    older = lake.table("orders").metadata_location
    landed = Landed(2, way.land(GROUP, way.seen(GROUP), mark(2), staged(lake, "mine", 2)) or "")
    with lake.catalog() as catalog:
        catalog.drop_table("shop.orders")
        catalog.register_table("shop.orders", older)
    assert way.lost(Landed(1, known or ""), way.seen(GROUP)) == ""
    with pytest.raises(MarkBehind, match="restored from a backup, lost rows"):
        Once(way, "").make_void(batch_of(3), landed)
    assert lake.rows("orders") == [(1, "mine")]


def test_branches_and_tags_of_others_hold_nothing_up(lake: Lake) -> None:
    """Batches go into the main branch; a branch that is made the main one has what it has."""
    way = lake.lander("orders")
    landed = Landed(1, way.land(GROUP, way.seen(GROUP), mark(1), staged(lake, "mine", 1)) or "")
    seen, files = way.seen(GROUP), staged(lake, "mine", 2)
    with lake.catalog() as catalog:
        table = catalog.load_table("shop.orders")
        current = table.current_snapshot()
        assert current is not None
        table.manage_snapshots().create_branch(current.snapshot_id, "audit").create_tag(
            current.snapshot_id, "v1"
        ).commit()
        rows = pa.table({"id": pa.array([9], pa.int64()), "name": ["theirs"]})
        catalog.load_table("shop.orders").append(rows, branch="audit")
    landed = Landed(2, way.land(GROUP, seen, mark(2), files) or "")
    assert way.lost(landed, way.seen(GROUP)) == ""
    assert lake.rows("orders") == [(1, "mine"), (2, "mine")]
    with lake.catalog() as catalog:
        table = catalog.load_table("shop.orders")
        table.manage_snapshots().set_current_snapshot(ref_name="audit").commit()
    assert lake.rows("orders") == [(1, "mine"), (9, "theirs")]
    assert "was rolled back" in way.lost(landed, way.seen(GROUP))


@pytest.mark.parametrize("change", [append, void])
def test_the_mark_outlives_the_snapshots_of_its_batch(lake: Lake, change: Change) -> None:
    """Others compact the table and expire what was before."""
    way = lake.lander("orders")
    landed = Landed(1, change(way, way.seen(GROUP), lake) or "")
    for number in (8, 9):
        theirs(lake, number)
        _compact(lake)
    with lake.catalog() as catalog:
        table = catalog.load_table("shop.orders")
        current = table.current_snapshot()
        old = [each.snapshot_id for each in table.snapshots() if each != current]
        table.maintenance.expire_snapshots().by_ids(old).commit()
    [_] = lake.table("orders").snapshots()
    after = way.seen(GROUP)
    assert after.mark == mark(1, void=change is void)
    assert way.lost(landed, after) == ""
    assert lake.rows("orders") == [*([(1, "appended")] if change is append else []), (8, "theirs"), (9, "theirs")]
    assert "have expired, or it was replaced" in held("shop.orders", CATALOG, lake.properties).lacks


def test_a_snapshot_says_of_which_offsets_it_is(lake: Lake) -> None:
    """For people, and programs without our code."""
    way, audit = lake.lander("orders"), MarkKey("billing", "audit")
    append(way, way.seen(GROUP), lake)
    way.land(audit, way.seen(audit), mark(1, void=True), None)
    told = [
        {name: each.summary[name] for name in ("offsetkeeper.group", "offsetkeeper.batch", *more)}
        for each, more in zip(
            lake.table("orders").snapshots(),
            [["offsetkeeper.offsets"], ["offsetkeeper.output", "offsetkeeper.dropped"]],
            strict=True,
        )
        if each.summary is not None
    ]
    batch = {"offsetkeeper.group": "billing", "offsetkeeper.batch": batch_of(1).id}
    assert told == [
        batch | {"offsetkeeper.offsets": "orders 0 1 2"},
        batch | {"offsetkeeper.output": "audit", "offsetkeeper.dropped": "true"},
    ]


def test_an_upsert_writes_only_files_with_its_keys_anew(lake: Lake) -> None:
    """In one snapshot; a key that is there twice is replaced, and a row without a key is kept."""
    for ids in ((7, 8), (7, 9), (100, 101), (None, 10)):
        theirs(lake, *ids)
    before = {file.file_path for each in [lake.table("orders")] for file in files_of(each)}
    way = lake.lander("orders")
    upsert(way, way.seen(GROUP), lake)
    kept = [(8, "theirs"), (9, "theirs"), (10, "theirs"), (100, "theirs"), (101, "theirs")]
    assert lake.rows("orders") == [(None, "theirs"), (2, "upserted"), (7, "upserted"), *kept]
    table = lake.table("orders")
    assert len({file.file_path for file in files_of(table)} & before) == 2
    assert len(table.snapshots()) == 5


def test_an_upsert_that_has_failed_leaves_no_file_of_the_driver(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs(lake, 7, 8)
    send = commit.Commit.send

    def late(self: commit.Commit) -> str:
        theirs(lake, 9)
        return send(self)

    way = lake.lander("orders")
    seen = way.seen(GROUP)
    monkeypatch.setattr(commit.Commit, "send", late)
    monkeypatch.setattr(landing, "_TRIES", 2)
    with pytest.raises(SinkError, match="other writers keep changing"):
        upsert(way, seen, lake)
    assert len([*lake.folder.rglob("*.parquet")]) == 4  # three of theirs, and the one that was staged


def test_an_upsert_takes_no_row_of_others_that_pyiceberg_did_not_write_anew(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside a file that it has written right; neither stays."""
    theirs(lake, 7, 8)
    theirs(lake, 7, 9, 10)
    monkeypatch.setattr(
        "offsetkeeper.sinks.iceberg.upsert.data_files", lambda metadata, rows, io: data_files(metadata, rows[:1], io)
    )
    way = lake.lander("orders")
    seen = way.seen(GROUP)
    with pytest.raises(SinkMismatch, match=r"of 2 rows beside keys of the batch, in .*parquet, pyiceberg wrote 1 anew"):
        upsert(way, seen, lake)
    assert lake.rows("orders") == [(number, "theirs") for number in (7, 7, 8, 9, 10)]
    assert len([*lake.folder.rglob("*.parquet")]) == 3  # two of theirs, and the one that was staged


LONG = "z" * 5_000  # Parquet keeps no bounds of a row group with such a text
KEYS = ["a", "b", "z", LONG]  # the first two are in a row group, and the last two in another one
ITEMS = pa.schema([("k", pa.string()), ("photo", pa.binary())])
RENAMED = pa.schema([("key", pa.string()), ("photo", pa.binary()), ("k", pa.string())])


@pytest.fixture
def grouped(tmp_path: Path) -> Lake:
    """A lake whose table `orders` has Parquet files with several row groups."""
    lake = Lake.made(tmp_path / "lake")
    limit = {"write.parquet.row-group-limit": "2"}
    lake.create(
        "orders", Schema(NestedField(1, "k", StringType()), NestedField(2, "photo", BinaryType())), properties=limit
    )
    return lake


def items(*keys: str) -> pa.RecordBatch:
    """Return rows with these keys; each has as many bytes."""
    return pa.record_batch([keys, [key.encode() for key in keys]], ITEMS)


def staged_items(lake: Lake, *keys: str) -> landing.Staged:
    """Return rows as a job of Spark stages them."""
    files = work(lake, items(*keys), schema=ITEMS)
    shape = landing.Shape.of(lake.table("orders"))
    return landing.Staged(shape, [pickle.loads(each) for each in files], "orders 0 1 2")  # noqa: S301 - ours


def found_by(lake: Lake, row_filter: Any, column: str = "k") -> list[Any]:
    """Return the keys of the rows that a reader finds."""
    return sorted(lake.table("orders").scan(row_filter).to_arrow()[column].to_pylist())


def test_a_reader_finds_the_rows_of_a_row_group_with_a_long_text(grouped: Lake) -> None:
    """By `pyiceberg` the bounds of the file were those of the other groups; a reader skipped it."""
    way = grouped.lander("orders")
    way.land(GROUP, way.seen(GROUP), mark(1), staged_items(grouped, *KEYS))
    [file] = files_of(grouped.table("orders"))
    assert len(file.split_offsets) == 2
    least: Any = GreaterThanOrEqual  # see `equal_to`
    for column, value in (("k", "z"), ("photo", b"z")):
        assert found_by(grouped, least(Reference(column), value)) == ["z", LONG]
    assert found_by(grouped, "k = 'z'") == ["z"]
    assert found_by(grouped, "k < 'b'") == ["a"]
    assert by_duckdb(grouped, "select k from {rows} where k >= 'z' order by k") == [("z",), (LONG,)]


def test_bounds_that_are_right_are_kept(grouped: Lake) -> None:
    """By them readers and upserts leave files out; a row group of nulls has none, and needs none."""
    nulls = pa.record_batch([[None, None], [b"", b""]], ITEMS)
    [data] = work(grouped, items("a", "b"), nulls, items("y", "z"), schema=ITEMS)
    file = pickle.loads(data)  # noqa: S301 - ours
    assert (file.lower_bounds[1], file.upper_bounds[1]) == (b"a", b"z")
    assert (len(file.split_offsets), file.record_count) == (3, 6)


def test_an_upsert_replaces_a_key_beside_a_long_one(grouped: Lake) -> None:
    """Also in a file that an upsert has written anew."""
    for sequence, keys in enumerate((KEYS, ["z"], ["b"], ["z", LONG]), 1):
        way = grouped.lander("orders", mode="upsert", key=["k"])
        way.land(GROUP, way.seen(GROUP), mark(sequence), staged_items(grouped, *keys))
        assert found_by(grouped, AlwaysTrue()) == KEYS
        assert found_by(grouped, "k = 'z'") == ["z"]


def appended(lake: Lake, rows: pa.Table) -> str:
    lake.table("orders").append(rows)
    return "k"


def appended_and_renamed(lake: Lake, rows: pa.Table) -> str:
    lake.table("orders").append(rows)
    with lake.table("orders").update_schema() as change:
        change.rename_column("k", "key")
    with lake.table("orders").update_schema() as change:
        change.add_column("k", StringType())
    return "key"


def added_as_a_file(lake: Lake, rows: pa.Table) -> str:
    path = lake.folder / "theirs.parquet"
    pq.write_table(rows, path, row_group_size=2)
    lake.table("orders").add_files([str(path)])
    return "k"


@pytest.mark.parametrize("others", [appended, appended_and_renamed, added_as_a_file])
def test_an_upsert_finds_a_key_beyond_the_bounds_of_a_file_of_others(
    grouped: Lake, others: Callable[[Lake, pa.Table], str]
) -> None:
    """By `pyiceberg`, whose files keep wrong bounds."""
    key = others(grouped, pa.Table.from_batches([items(*KEYS)]))
    [theirs] = files_of(grouped.table("orders"))
    assert theirs.upper_bounds[1] == b"b"
    schema = ITEMS if key == "k" else RENAMED
    rows = pa.record_batch([["z"], *([[None]] * (len(schema) - 1))], schema)
    files = work(grouped, rows, schema=schema)
    shape = landing.Shape.of(grouped.table("orders"))
    way = grouped.lander("orders", mode="upsert", key=[key])
    new = landing.Staged(shape, [pickle.loads(each) for each in files], "")  # noqa: S301 - ours
    way.land(GROUP, way.seen(GROUP), mark(1), new)
    assert found_by(grouped, AlwaysTrue(), key) == KEYS
    [row] = grouped.table("orders").scan(f"{key} = 'z'").to_arrow().to_pylist()
    assert row["photo"] is None


def test_an_upsert_by_texts_opens_only_files_of_several_row_groups_beyond_its_keys(
    grouped: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = grouped.table("orders")
    for keys in (["a", "b"], ["c"], ["d", "e", "f"], ["x", "y", "z"]):
        table.append(pa.Table.from_batches([items(*keys)]))
    rows, opened = staged_items(grouped, "y"), Mock(wraps=pq.read_metadata)
    monkeypatch.setattr(pq, "read_metadata", opened)
    way = grouped.lander("orders", mode="upsert", key=["k"])
    way.land(GROUP, way.seen(GROUP), mark(1), rows)
    assert opened.call_count == 1
    assert found_by(grouped, AlwaysTrue()) == [*"abcdefxyz"]


DAY_US = 86_400_000_000
# Around the ends of days, hours, months and years, before and after 1970.
TIMES = [
    day * DAY_US + us
    for day in (-719_162, -366, -3, -1, 0, 19_000)
    for us in (0, 1, DAY_US - 1_000_001, DAY_US - 1_000_000, DAY_US - 999_999, DAY_US - 1_000, DAY_US - 1)
]
TIMESTAMPS: list[tuple[Any, list[Any]]] = [
    (TimestampType(), [datetime(1970, 1, 1) + timedelta(microseconds=us) for us in TIMES]),  # noqa: DTZ001 - a wall clock
    (TimestamptzType(), [datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=us) for us in TIMES]),
]
DATES: tuple[Any, list[Any]] = (DateType(), [date(1, 1, 1), date(1969, 12, 31), date(1970, 1, 1), date(2024, 2, 29)])
WHOLE: list[tuple[Any, list[Any]]] = [
    (kind, [-(2**bits), -(2**bits) + 2, -(2**bits) + 7, -8, -7, -1, 0, 6, 7, 2**bits - 1])
    for kind, bits in ((IntegerType(), 31), (LongType(), 63))
]
TEXT: tuple[Any, list[Any]] = (StringType(), ["", "a", "abcd", "\u00e9e\u0301\u00e9", "\U0001f600" * 4])
BYTES: tuple[Any, list[Any]] = (BinaryType(), [b"", b"abcd", b"\xff\xfe\xfd\xfc"])
OF_DATES: list[Transform[Any, Any]] = [DayTransform(), MonthTransform(), YearTransform()]
TRANSFORMED: list[tuple[Transform[Any, Any], tuple[Any, list[Any]]]] = [
    *((how, of) for how in (*OF_DATES, HourTransform()) for of in TIMESTAMPS),
    *((how, DATES) for how in OF_DATES),
    *((TruncateTransform(7), of) for of in (*WHOLE, TEXT)),
    *((BucketTransform(3), of) for of in (*TIMESTAMPS, DATES, *WHOLE, TEXT, BYTES)),
]


@pytest.mark.parametrize(("how", "of"), TRANSFORMED, ids=[f"{how} of {of[0]}" for how, of in TRANSFORMED])
def test_a_value_is_found_by_its_partition_or_refused(
    tmp_path: Path, how: Transform[Any, Any], of: tuple[Any, list[Any]]
) -> None:
    """pyiceberg-core 0.10 works out a few wrong; readers who skip partitions would never see those rows."""
    lake = Lake.made(tmp_path / "lake")
    kind, values = of
    table = lake.create("orders", Schema(NestedField(1, "v", kind)), PartitionSpec(PartitionField(1, 1000, how, "p")))
    schema = pa.schema([("v", table.schema().as_arrow().field("v").type)])
    files, refused = [], []
    for value in values:
        try:
            files += work(lake, pa.record_batch([pa.array([value], schema.field("v").type)], schema), schema=schema)
        except RowMismatch as error:
            refused.append((value, "column v has" in str(error) and "wrong partition" in str(error)))
    rows = landing.Staged(landing.Shape.of(table), [pickle.loads(each) for each in files], "")  # noqa: S301 - ours
    way = lake.lander("orders")
    way.land(GROUP, way.seen(GROUP), mark(1), rows)
    now = lake.table("orders")
    equal_to: Any = EqualTo  # its types say that arguments need names, which it does not take
    assert refused == [(value, True) for value in values if _is_put_wrong(value, how, kind)]
    assert now.scan().to_arrow().num_rows == len(values) - len(refused)
    for value in values:
        shown = value.isoformat() if isinstance(value, date) else value
        found = now.scan(equal_to(Reference("v"), shown)).to_arrow()
        assert found.num_rows == (not _is_put_wrong(value, how, kind)), value


def _is_put_wrong(value: Any, how: Transform[Any, Any], kind: Any) -> bool:
    """Whether pyiceberg-core puts a value into a wrong partition; no value that it puts right is refused."""
    if isinstance(how, DayTransform) and isinstance(value, datetime):
        last_second = (value.hour, value.minute, value.second) == (23, 59, 59)
        return value.date() < date(1969, 12, 31) and last_second and value.microsecond not in {0, 999_999}
    whole = isinstance(how, TruncateTransform) and isinstance(value, int)
    return whole and value - value % 7 < -(2 ** (31 if isinstance(kind, IntegerType) else 63))


def test_a_key_whose_row_could_not_be_found_again_is_there_once(tmp_path: Path) -> None:
    """Its partition wraps around the least number: a second upsert would leave the row of the first one."""
    lake = Lake.made(tmp_path / "lake")
    lake.create("orders", SCHEMA, PartitionSpec(PartitionField(1, 1000, TruncateTransform(7), "p")))
    for sequence, number in enumerate((-(2**63), -(2**63) + 7, -(2**63), -(2**63) + 7), 1):
        way = lake.lander("orders", mode="upsert", key=["id"])
        with suppress(RowMismatch):
            way.land(GROUP, way.seen(GROUP), mark(sequence), staged(lake, f"batch {sequence}", number))
    assert lake.rows("orders") == [(-(2**63) + 7, "batch 4")]


def test_an_upsert_moves_no_row_of_others_into_a_wrong_partition(tmp_path: Path) -> None:
    """A row beside one of its keys is written anew with the file."""
    lake = Lake.made(tmp_path / "lake")
    times = Schema(NestedField(1, "id", LongType()), NestedField(2, "at", TimestamptzType()))
    table = lake.create("orders", times)
    first, late = datetime(1965, 12, 31, 12, tzinfo=UTC), datetime(1965, 12, 31, 23, 59, 59, 500_000, tzinfo=UTC)
    schema = pa.schema([("id", pa.int64()), ("at", pa.timestamp("us", "UTC"))])
    table.append(pa.table([[7, 8], [first, late]], schema))
    with lake.table("orders").update_spec() as change:
        change.add_field("at", DayTransform(), "day")
    rows = work(lake, pa.record_batch([[7], [first]], schema), schema=schema)
    new = landing.Staged(landing.Shape.of(lake.table("orders")), [pickle.loads(each) for each in rows], "")  # noqa: S301 - ours
    way = lake.lander("orders", mode="upsert", key=["id"])
    with pytest.raises(SinkMismatch, match="must be written anew, but column at has 1965-12-31 23:59:59"):
        way.land(GROUP, way.seen(GROUP), mark(1), new)
    found = lake.table("orders").scan("at < '1966-01-01T00:00:00+00:00'").to_arrow()
    assert sorted(found["id"].to_pylist()) == [7, 8]


def files_of(table: Any) -> list[Any]:
    """Return the files of the current snapshot."""
    return [each.file for each in table.scan().plan_files()]


def test_a_task_that_fails_leaves_no_file_in_iceberg(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if it has written some."""
    monkeypatch.setattr(task, "_FILE_BYTES", 1)
    good = pa.record_batch({"id": pa.array([1], pa.int64()), "name": ["x"]})
    bad = pa.record_batch({"id": pa.array([1], pa.int64()), "name": pa.array([None], pa.string())})
    with pytest.raises(RowMismatch, match=r"column name .* must have a value"):
        work(lake, good, bad, limits=(Limits("id"), Limits("name", "string", nullable=False)))
    assert not list(lake.folder.rglob("*.parquet"))
    assert len(work(lake, good, good)) == 2


def test_an_executor_with_another_release_is_told(lake: Lake) -> None:
    place = task.Place("orders", lake.table("orders").location(), {}, "0.11.0")
    with pytest.raises(MissingExtra, match=r"executors have pyiceberg .*pyiceberg==0.11.0 there"):
        place.files()


@pytest.mark.parametrize("merges", ["true", "false"])
def test_a_table_that_merges_manifests_does_so_here_too(lake: Lake, merges: str) -> None:
    lake.create(
        "merged",
        SCHEMA,
        properties={"commit.manifest-merge.enabled": merges, "commit.manifest.min-count-to-merge": "2"},
    )
    way = lake.lander("merged")
    table = lake.table("merged")
    for number in (1, 2, 3, 4):
        rows = staged(lake, "mine", number)._replace(shape=landing.Shape.of(table))
        way.land(GROUP, way.seen(GROUP), mark(number), rows)
    table = lake.table("merged")
    current = table.current_snapshot()
    assert current is not None
    assert len(current.manifests(table.io)) == (4 if merges == "false" else 1)
    assert lake.rows("merged") == [(number, "mine") for number in (1, 2, 3, 4)]


def test_old_metadata_is_deleted_where_the_table_says_so(lake: Lake) -> None:
    settings = {"write.metadata.delete-after-commit.enabled": "true", "write.metadata.previous-versions-max": "2"}
    lake.create("short", SCHEMA, properties=settings)
    way = lake.lander("short")
    for number in range(1, 6):
        way.land(GROUP, way.seen(GROUP), mark(number, void=True), None)
    assert len([*lake.folder.rglob("short/metadata/*.json")]) == 3


@pytest.mark.parametrize("kills", [30, pytest.param(1_000, marks=pytest.mark.soak)])
def test_drivers_that_are_killed_while_they_land_leave_each_batch_once(tmp_path: Path, kills: int) -> None:
    """Without Spark, so that many fit into a second."""
    lake = Lake.made(tmp_path / "lake")
    settings = {"write.metadata.delete-after-commit.enabled": "true", "commit.manifest-merge.enabled": "true"}
    lake.create("orders", iceberg_kills.SCHEMA, properties=settings)
    environment = os.environ | {"PYTHONPATH": ":".join(each for each in sys.path if each)}
    command = [sys.executable, iceberg_kills.__file__, str(lake.folder), str(kills)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=3_000, check=True)
    last = int(done.stdout)
    assert last > kills // 50
    assert Counter(lake.rows("orders")) == Counter(row for n in range(1, last + 1) for row in records(batch_of(n)))
    told = held("shop.orders", CATALOG, lake.properties).batches
    assert [(each.batch, each.ranges) for each in told] == [(b.id, b.ranges) for b in map(batch_of, range(1, last + 1))]


class TestS3:
    """A bucket for the files, with the catalog in SQLite."""

    @pytest.fixture
    def shop(self, tmp_path: Path, s3_server: S3Server) -> Lake:
        """A catalog with an empty table `orders`."""
        files = {
            "warehouse": f"s3://{s3_server.create_bucket()}/lake",
            "s3.endpoint": f"http://127.0.0.1:{s3_server.port}",
            "s3.access-key-id": KEY,
            "s3.secret-access-key": SECRET,
            "s3.region": "us-east-1",
        }
        shop = Lake(tmp_path, Lake.made(tmp_path).properties | files)
        shop.create("orders", SCHEMA)
        return shop

    @pytest.mark.parametrize("mode", ["append", "upsert"])
    def test_a_batch_lands_in_a_bucket_once_from_executors_too(
        self, spark: SparkSession, shop: Lake, mode: str
    ) -> None:
        """And a look that is older lands nothing."""
        way = shop.lander("orders", mode=mode, key=["id"] if mode == "upsert" else ())
        stale, batch = way.seen(GROUP), batch_of(1)
        frame = spark.createDataFrame([(1, "a"), (2, "b")], "id bigint, name string")
        for _ in range(2):
            Once(way, "").write(frame, batch)
        late = way.stage(frame, batch)
        with pytest.raises(MarkMoved):
            way.land(GROUP, stale, mark(2), late)
        Once(way, "").write(frame.where("id = 2"), batch_of(2))
        assert shop.rows("orders") == ([(1, "a"), (2, "b")] if mode == "upsert" else [(1, "a"), (2, "b"), (2, "b")])

    def test_no_secret_of_the_bucket_is_shown(self, spark: SparkSession, shop: Lake) -> None:
        """Of a server that refuses the key: to the driver, or to the tasks."""
        wrong = IcebergTable(
            "shop.orders", catalog="lake", properties=shop.properties | {"s3.access-key-id": "someone-else"}
        )
        with pytest.raises((SinkError, Refused)) as raised:
            wrong.prepare(MemoryStore("memory://"), Guarantee.EXACTLY_ONCE)
        shown = f"{wrong!r} {wrong.place} {''.join(traceback.format_exception(raised.value))}"
        assert SECRET not in shown
        assert "someone-else" not in shown
        frame = spark.createDataFrame([(1, "a")], "id bigint, name string")
        way = shop.lander("orders")
        properties = way.seen(GROUP).handle.io.properties
        place = task.Place("orders", shop.table("orders").location(), of_files(properties), RELEASE)
        assert SECRET not in repr(place)
        assert "uri" not in place.properties
        Once(way, "").write(frame, batch_of(1))
