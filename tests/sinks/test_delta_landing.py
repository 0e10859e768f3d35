"""What could go wrong between the look at a Delta Lake table and the commit, and what is said of it then."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from fixtures.foul import FOUL, at_once
from fixtures.s3_gate import s3_gate
from offsetkeeper.core.mark import Landing, OutputMark, check_marks
from offsetkeeper.core.model import Guarantee, Landed, Snapshot
from offsetkeeper.errors import (
    BatchVoid,
    MarkBehind,
    MarkMoved,
    OutcomeUnknown,
    Refused,
    RowMismatch,
    SinkError,
    StoreUnavailable,
)
from offsetkeeper.operate.holds import held_in
from offsetkeeper.sinks import DeltaTable, Lander, MarkKey
from offsetkeeper.sinks.delta import landing, task
from offsetkeeper.sinks.limits import Limits
from offsetkeeper.sinks.once import Once
from offsetkeeper.stores.memory import MemoryStore
from offsetkeeper.testing.conformance.landers import batch_of
from offsetkeeper.testing.proxy import Cut, TcpProxy
from offsetkeeper.testing.s3 import KEY, SECRET, S3Server

GROUP = MarkKey("billing", "")
SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])


@pytest.fixture
def path(tmp_path: Path) -> str:
    """The path of an empty table, with signs that a URI would need escapes for."""
    path = str(tmp_path / "a table, 100%")
    deltalake.DeltaTable.create(path, schema=SCHEMA)
    return path


def prepared(path: str, **settings: Any) -> Lander:
    return DeltaTable(path, **settings).prepare(MemoryStore("memory://"), Guarantee.EXACTLY_ONCE)


def upserting(path: str, **settings: Any) -> Lander:
    return prepared(path, mode="upsert", key=["id"], **settings)


def staged(path: str, name: str, *ids: int, options: Any = None) -> landing.Staged:
    """Return rows as a job of Spark stages them."""
    plan = task.FilePlan(SCHEMA, (), (), f"part-{name}", "")
    rows = pa.record_batch({"id": pa.array(ids, pa.int64()), "name": [name] * len(ids)})
    [reply] = task.write_files(task.Folder(path, options or {}), plan, iter([rows]))
    shape = landing.Shape.of(deltalake.DeltaTable(path, storage_options=options))
    return landing.Staged(shape, [task.File(**row) for row in reply.to_pylist()], SCHEMA.names, "")


def rows(path: str, options: Any = None) -> list[tuple[Any, ...]]:
    found = deltalake.DeltaTable(path, storage_options=options).to_pyarrow_table().to_pylist()
    return sorted(tuple(row.values()) for row in found)


def mark(sequence: int, *, void: bool = False) -> OutputMark:
    return OutputMark.of(batch_of(sequence), void=void)


Change = Callable[[Lander, Any, str], str | None]


def append(way: Lander, seen: Any, path: str) -> str | None:
    return way.land(GROUP, seen, mark(1), staged(path, "appended", 1))


def void(way: Lander, seen: Any, _: str) -> str | None:
    return way.land(GROUP, seen, mark(1, void=True), None)


def merge(_: Lander, seen: Any, path: str) -> str | None:
    return upserting(path).land(GROUP, seen, mark(1), staged(path, "merged", 1, 2))


FAR = datetime(6537, 1, 1, 0, 0, 0, 2001, tzinfo=UTC)


@pytest.mark.parametrize(
    ("kind", "value", "condition"),
    [
        (pa.decimal128(38, 0), Decimal(2**63 + 1), "v >= arrow_cast('9223372036854775809', 'Decimal128(38, 0)')"),
        (pa.float64(), float("nan"), "v > 5"),
        (pa.timestamp("us", "UTC"), FAR, "v >= to_timestamp_micros(144120643200002001)"),
    ],
    ids=["a large decimal", "NaN", "a far time"],
)
def test_a_reader_with_a_filter_finds_the_row_of_an_upsert(
    tmp_path: Path, kind: Any, value: Any, condition: str
) -> None:
    """The bounds of these in the log are not exact: a reader skipped the file."""
    schema = pa.schema([("id", pa.int64()), ("name", pa.string()), ("v", kind)])
    table = deltalake.DeltaTable.create(tmp_path / "table", schema=schema)
    path = str(tmp_path / "table")
    values = pa.array([pa.scalar(1).cast(kind).as_py(), value], kind)
    batch = pa.record_batch([pa.array([1, 2]), ["z" * 5_000, "a"], values], schema)
    plan = task.FilePlan(schema, (), (), "part-mine", "")
    [reply] = task.write_files(task.Folder(path, {}), plan, iter([batch]))
    files = [task.File(**row) for row in reply.to_pylist()]
    way = upserting(path)
    way.land(GROUP, way.seen(GROUP), mark(1), landing.Staged(landing.Shape.of(table), files, schema.names, ""))
    table = deltalake.DeltaTable(path)
    found = deltalake.QueryBuilder().register("t", table).execute(f"select id from t where {condition}").read_all()  # noqa: S608 - the test's own
    assert pa.table(found).to_pydict() == {"id": [2]}
    [stats] = [each.as_py() for each in pa.table(table.get_add_actions())["max"]]
    assert (stats["id"], stats["name"][:1], len(stats["name"])) == (2, "z", 64)
    [file] = table.file_uris()
    assert pq.read_metadata(file).row_group(0).column(0).compression == "SNAPPY"


@pytest.mark.parametrize("change", [append, merge])
def test_all_that_a_commit_adds_is_on_the_disk(path: str, on_disk: set[str], change: Change) -> None:
    """Also the files into which deltalake itself merges rows: it does not wait for them."""
    change(prepared(path), prepared(path).seen(GROUP), path)
    table = deltalake.DeltaTable(path)
    assert table.version() == 1
    assert {*map(unquote, table.file_uris()), f"{path}/_delta_log/{1:020}.json"} <= on_disk


def test_the_changes_that_an_upsert_feeds_to_others_are_on_the_disk(path: str, on_disk: set[str]) -> None:
    """A table with a change data feed has them in files of their own."""
    deltalake.DeltaTable(path).alter.set_table_properties({"delta.enableChangeDataFeed": "true"})
    deltalake.write_deltalake(path, pa.table({"id": [1], "name": ["old"]}, SCHEMA), mode="append")
    merge(upserting(path), prepared(path).seen(GROUP), path)
    assert rows(path) == [(1, "merged"), (2, "merged")]
    feed = pa.table(deltalake.DeltaTable(path).load_cdf(starting_version=3).read_all()).to_pylist()
    assert sorted((each["_change_type"], each["name"]) for each in feed) == [
        *(("insert", "merged"), ("update_postimage", "merged"), ("update_preimage", "old"))
    ]
    files = {*map(str, Path(path, "_change_data").rglob("*.parquet"))}
    assert files
    assert files <= on_disk


def test_the_folders_of_partitions_that_an_upsert_makes_are_on_the_disk(tmp_path: Path, on_disk: set[str]) -> None:
    """Their names too, down from the table's own folder."""
    path, settings = str(tmp_path / "table"), {"delta.enableChangeDataFeed": "true"}
    deltalake.DeltaTable.create(path, schema=SCHEMA, partition_by=["name"], configuration=settings)
    files, seen = staged(path, "merged", 1), upserting(path).seen(GROUP)
    before = {*Path(path).rglob("*")}
    on_disk.clear()
    upserting(path).land(GROUP, seen, mark(1), files)
    new = {*Path(path).rglob("*")} - before
    assert {each.relative_to(path).parts[0] for each in new} == {"_change_data", "_delta_log", "name=merged"}
    assert {str(each) for each in new} <= on_disk
    assert {str(each.parent) for each in new} <= on_disk


@pytest.mark.parametrize("fails", [False, True])
def test_a_commit_that_landed_before_an_error_came_is_on_the_disk_too(
    path: str, on_disk: set[str], monkeypatch: pytest.MonkeyPatch, *, fails: bool
) -> None:
    commit = deltalake.DeltaTable.create_write_transaction

    def late(self: deltalake.DeltaTable, *values: Any, **more: Any) -> None:
        commit(self, *values, **more)
        if fails:
            monkeypatch.setattr(os, "fsync", full)
        raise deltalake.exceptions.DeltaError("the answer is lost")

    def full(_: int) -> None:
        raise OSError(5, "no such disk any more")

    monkeypatch.setattr(deltalake.DeltaTable, "create_write_transaction", late)
    if fails:
        with pytest.raises(OutcomeUnknown):
            append(prepared(path), prepared(path).seen(GROUP), path)
    else:
        append(prepared(path), prepared(path).seen(GROUP), path)
        assert f"{path}/_delta_log/{1:020}.json" in on_disk


@pytest.mark.parametrize("others", [False, True])
@pytest.mark.parametrize("open_sink", [prepared, upserting])
def test_a_batch_that_may_not_be_on_the_disk_counts_only_when_it_is(
    path: str,
    open_sink: Callable[..., Lander],
    failing_disk: Callable[[str], None],
    on_disk: set[str],
    *,
    others: bool,
) -> None:
    """The mark was looked at after the error, and the batch then counted as landed, without a word."""
    files = staged(path, "mine", 1)
    way = replace(open_sink(path), stage=lambda *_: files)
    entry = f"{path}/_delta_log/{1:020}.json"
    failing_disk(f"{1:020}.json")
    for _ in range(2):
        with pytest.raises((OutcomeUnknown, SinkError), match=rf"{1:020}.json exists, but may not be durable"):
            Once(way, "").write(None, batch_of(1))  # type: ignore[arg-type]
    assert rows(path) == [(1, "mine")]
    if others:
        deltalake.DeltaTable(path).optimize.compact()
        theirs = pa.table({"id": [8], "name": ["theirs"]}, SCHEMA)
        deltalake.write_deltalake(path, theirs, mode="append")
    later = Once(prepared(path), "")  # of another run
    with pytest.raises(SinkError, match="may not be durable"):
        later.kept(batch_of(1), Landed())
    assert entry not in on_disk
    failing_disk("")
    assert later.kept(batch_of(1), Landed()).mark == mark(1)
    assert entry in on_disk
    assert not Once(way, "").write(None, batch_of(1)).used  # type: ignore[arg-type]
    assert rows(path) == [(1, "mine"), *[(8, "theirs")] * others]


@pytest.mark.parametrize("open_sink", [prepared, upserting])
def test_rows_on_another_disk_than_the_driver_sees_are_not_committed(
    spark: SparkSession, mount: tuple[Path, Path], open_sink: Callable[..., Lander]
) -> None:
    """As where a mount is missing on a machine: the files were committed, and no reader could read the table."""
    path = str(mount[0] / "lake")
    deltalake.DeltaTable.create(path, schema=SCHEMA)
    (mount[1] / "lake").mkdir()
    frame = spark.createDataFrame([(1, "a"), (2, "b")], "id bigint, name string")
    way = open_sink(path)
    with pytest.raises(
        SinkError, match=rf"a task on {platform.node()} has written .*one folder for the driver and all"
    ):
        Once(way, "").write(frame, batch_of(1))
    assert list((mount[1] / "lake").glob("*.parquet"))
    assert (rows(path), way.seen(GROUP).mark) == ([], None)


@pytest.mark.parametrize("second", [append, void, merge])
@pytest.mark.parametrize("first", [append, void, merge])
def test_of_two_looks_at_one_version_the_second_lands_nothing(path: str, first: Change, second: Change) -> None:
    """Nor does either of them when it is used again: deltalake does not move on to a newer version by itself."""
    way = prepared(path)
    one, other = way.seen(GROUP), way.seen(GROUP)
    first(way, one, path)
    there = rows(path)
    for stale in (other, one):
        with pytest.raises(MarkMoved):
            second(way, stale, path)
    assert rows(path) == there
    assert deltalake.DeltaTable(path).version() == 1


@pytest.mark.parametrize("change", [append, void, merge])
def test_others_who_write_the_table_meanwhile_hold_nothing_up(path: str, change: Change) -> None:
    """Another program, another group, and one that compacts the files."""
    way = prepared(path)
    seen = way.seen(GROUP)
    deltalake.write_deltalake(path, pa.table({"id": [1, 8], "name": ["theirs"] * 2}, SCHEMA), mode="append")
    other = MarkKey("other", "")
    way.land(other, way.seen(other), mark(5), staged(path, "other", 9))
    deltalake.DeltaTable(path).optimize.compact()
    change(way, seen, path)
    mine = {
        "append": [(1, "appended"), (1, "theirs")],
        "void": [(1, "theirs")],
        "merge": [(1, "merged"), (2, "merged")],
    }
    assert rows(path) == [*mine[change.__name__], (8, "theirs"), (9, "other")]
    assert way.seen(GROUP).mark == mark(1, void=change is void)
    assert way.seen(other).mark == mark(5)


def test_a_table_that_changes_with_each_try_is_given_up(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    way, real = prepared(path), landing.DeltaTarget._commit

    def commit(self: landing.DeltaTarget, table: Any, *arguments: Any) -> None:
        deltalake.write_deltalake(path, pa.table({"id": [8], "name": ["theirs"]}, SCHEMA), mode="append")
        real(self, table, *arguments)

    monkeypatch.setattr(landing.DeltaTarget, "_commit", commit)
    monkeypatch.setattr(landing, "_TRIES", 3)
    with pytest.raises(SinkError, match="other writers keep changing"):
        append(way, way.seen(GROUP), path)
    assert rows(path) == [(8, "theirs")] * 3


@pytest.mark.parametrize("change", [append, void, merge])
@pytest.mark.parametrize("open_sink", [prepared, upserting])
def test_the_mark_outlives_checkpoints_and_the_cleanup_of_old_commits(
    path: str, change: Change, open_sink: Callable[..., Lander]
) -> None:
    """Nothing is left of what the commit told but what a checkpoint keeps."""
    way = prepared(path)
    change(way, way.seen(GROUP), path)
    deltalake.DeltaTable(path).alter.set_table_properties({"delta.logRetentionDuration": "interval 0 seconds"})
    for _ in range(2):
        deltalake.write_deltalake(path, pa.table({"id": [8], "name": ["theirs"]}, SCHEMA), mode="append")
        deltalake.DeltaTable(path).create_checkpoint()
        for each in Path(path, "_delta_log").iterdir():
            os.utime(each, (1, 1))
        deltalake.DeltaTable(path).cleanup_metadata()
    assert [each.name for each in Path(path, "_delta_log").glob("*.json")] == [f"{4:020}.json"]
    assert open_sink(path).seen(GROUP).mark == mark(1, void=change is void)


def test_an_answer_that_is_lost_is_looked_up(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as a checkpoint that fails after the commit."""
    real = deltalake.DeltaTable.create_write_transaction

    def lost(self: Any, *arguments: Any, **settings: Any) -> None:
        real(self, *arguments, **settings)
        raise OSError("No space left on device")

    monkeypatch.setattr(deltalake.DeltaTable, "create_write_transaction", lost)
    way = prepared(path)
    assert append(way, way.seen(GROUP), path) == "1"
    assert rows(path) == [(1, "appended")]


@pytest.mark.parametrize("found", [True, False])
def test_a_version_is_known_though_the_answer_to_its_commit_was_an_error(
    path: str, monkeypatch: pytest.MonkeyPatch, *, found: bool
) -> None:
    """It was forgotten, and a restore to before it was not noticed. Others commit before it and after it."""
    real, history = deltalake.DeltaTable.create_write_transaction, deltalake.DeltaTable.history

    def others() -> None:
        deltalake.DeltaTable(path).optimize.compact()
        other = MarkKey("billing", "other")
        way.land(other, way.seen(other), mark(1), None)

    def lost(self: Any, *arguments: Any, **settings: Any) -> None:
        real(self, *arguments, **settings)
        monkeypatch.setattr(deltalake.DeltaTable, "create_write_transaction", real)
        others()
        if not found:
            monkeypatch.setattr(deltalake.DeltaTable, "history", away)
        raise OSError("No space left on device")

    def away(*_: Any, **__: Any) -> None:
        raise deltalake.exceptions.DeltaError("away")

    files = staged(path, "mine", 1)
    way = replace(prepared(path), stage=lambda *_: files)
    theirs = pa.table({"id": [8], "name": ["theirs"]}, SCHEMA)
    for _ in range(2):
        deltalake.write_deltalake(path, theirs, mode="append")
    monkeypatch.setattr(deltalake.DeltaTable, "create_write_transaction", lost)
    done = Once(way, "").write(None, batch_of(1))  # type: ignore[arg-type]
    monkeypatch.setattr(deltalake.DeltaTable, "history", history)
    assert done.target == ("3" if found else "")
    deltalake.DeltaTable(path).restore(2)
    assert rows(path) == [(8, "theirs")] * 2
    assert bool(way.lost(Landed(1, done.target), way.seen(GROUP))) == found


def test_a_commit_that_fails_on_a_path_wrote_nothing(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError("No space left on device")

    way = prepared(path)
    with monkeypatch.context() as patch:
        patch.setattr(deltalake.DeltaTable, "create_write_transaction", full)
        with pytest.raises(SinkError, match=r"No space left on device; nothing was written"):
            append(way, way.seen(GROUP), path)
    assert not rows(path)
    append(way, way.seen(GROUP), path)


@pytest.mark.timeout(60)  # a FIFO would be waited for without an end
@pytest.mark.parametrize("what", ["a FIFO", "a link to a device", "50 GB", "a socket"])
def test_what_lies_in_place_of_the_file_that_is_read_first_is_refused(path: str, what: str) -> None:
    """The library opens it without a look: it waited for a FIFO, and the process died of a file of 50 GB."""
    way, before = prepared(path), Path(path, "_delta_log", "_last_checkpoint")
    FOUL[what](before)
    with at_once():
        for act in (lambda: prepared(path), lambda: way.seen(GROUP)):
            with pytest.raises(Refused, match=r"_last_checkpoint was not opened: it .*take it away"):
                act()
    before.unlink()
    assert rows(path) == []


@pytest.mark.timeout(60)
@pytest.mark.parametrize("what", [what for what in FOUL if what != "a folder"])
@pytest.mark.parametrize("place", ["", "_delta_log"])
def test_what_lies_in_place_of_a_folder_of_the_table_is_refused_at_once(path: str, place: str, what: str) -> None:
    """It was an error that a run tries again."""
    shutil.rmtree(Path(path, place))
    FOUL[what](Path(path, place))
    with at_once(), pytest.raises(Refused, match=r"Not a directory|Too many .* links|is a link.*take it away"):
        prepared(path)


def test_a_commit_of_which_nothing_can_be_found_out_is_unknown(path: str) -> None:
    """The table is away, and comes back."""
    way = prepared(path)
    seen, files = way.seen(GROUP), staged(path, "mine", 1)
    Path(path).rename(path + " away")
    with pytest.raises(OutcomeUnknown):
        way.land(GROUP, seen, mark(1), files)
    with pytest.raises(Refused, match=r"no Delta table: create it first"):
        way.seen(GROUP)
    Path(path + " away").rename(path)
    way.land(GROUP, seen, mark(1), files)
    assert rows(path) == [(1, "mine")]


def test_a_table_that_is_altered_while_rows_are_staged_gets_none_of_them(path: str) -> None:
    way, files = prepared(path), staged(path, "mine", 1)
    seen = way.seen(GROUP)
    deltalake.DeltaTable(path).alter.add_columns(deltalake.Field("more", deltalake.schema.PrimitiveType("string")))
    for look in (seen, way.seen(GROUP)):
        with pytest.raises(SinkError, match="was altered while rows were staged"):
            way.land(GROUP, look, mark(1), files)
    way.land(GROUP, seen, mark(1, void=True), None)


def test_a_table_that_is_made_again_has_no_mark_and_gets_no_rows_of_the_one_before(path: str) -> None:
    way = prepared(path)
    append(way, way.seen(GROUP), path)
    files = staged(path, "mine", 2)
    shutil.rmtree(path)
    deltalake.DeltaTable.create(path, schema=SCHEMA)
    again = way.seen(GROUP)
    with pytest.raises(SinkError, match="was altered"):
        way.land(GROUP, again, mark(2), files)
    with pytest.raises(MarkBehind):
        check_marks(Snapshot("billing", sequence=1, landed={"": Landed(1)}), {"": again.mark})


@pytest.mark.parametrize("others", [0, 2])
def test_a_table_that_was_restored_is_refused_though_it_keeps_the_mark(path: str, others: int) -> None:
    way = prepared(path)
    known = [way.land(GROUP, way.seen(GROUP), mark(n), staged(path, f"mine{n}", n)) for n in (1, 2)]
    landed = Landed(2, str(known[1]))
    assert way.lost(landed, way.seen(GROUP)) == ""
    for n in range(others):
        deltalake.write_deltalake(path, pa.table({"id": [10 + n], "name": ["foreign"]}, SCHEMA), mode="append")
    assert way.lost(landed, way.seen(GROUP)) == ""
    if others:
        deltalake.DeltaTable(path).restore(int(landed.target))
    assert way.lost(landed, way.seen(GROUP)) == ""
    deltalake.DeltaTable(path).restore(int(landed.target) - 1)
    restored = deltalake.DeltaTable(path).version()
    assert rows(path) == [(1, "mine1")]
    assert way.seen(GROUP).mark == mark(2)
    with pytest.raises(MarkBehind, match=rf"version {restored} restored the table to before version 2"):
        Once(way, "").make_void(batch_of(3), landed)
    assert way.lost(Landed(2), way.seen(GROUP)) == ""  # an operator has adopted that


def _deletes(path: str) -> None:
    theirs = pa.table({"id": [1], "name": ["theirs"]}, SCHEMA)
    merger = deltalake.DeltaTable(path).merge(theirs, "t.id = s.id", source_alias="s", target_alias="t")
    merger.when_matched_delete().execute()


def _completes(path: str) -> None:
    """A streaming query of Spark with output mode complete."""
    deltalake.DeltaTable(path).delete()
    [file] = Path(path, "_delta_log").glob("*2.json")
    told = {"operation": "STREAMING UPDATE", "operationParameters": {"outputMode": "Complete", "epochId": "7"}}
    actions = [json.loads(line) for line in file.read_text().splitlines()]
    actions = [each | {"commitInfo": each["commitInfo"] | told} if "commitInfo" in each else each for each in actions]
    file.write_text("\n".join(map(json.dumps, actions)))


@pytest.mark.parametrize(
    ("act", "told"), [(_deletes, "version 2 (MERGE)"), (_completes, "version 2 (STREAMING UPDATE)"), (None, "")]
)
def test_what_may_have_taken_rows_of_a_batch_is_told(path: str, act: Callable[[str], None] | None, told: str) -> None:
    """Not what came before the first batch that is told: release 0.2 told none of its own."""
    way = upserting(path)
    if act is None:
        deltalake.write_deltalake(path, pa.table({"id": [8], "name": ["theirs"]}, SCHEMA), mode="append")
        deltalake.write_deltalake(path, pa.table({"id": [8], "name": ["theirs"]}, SCHEMA), mode="overwrite")
    write(way, path, 1, Landed(), 1)
    if act is None:
        write(way, path, 2, Landed(1), 1)
    else:
        act(path)
        assert rows(path) == []
    found = held_in(path)
    assert (len(found.batches), found.changed) == (2 if act is None else 1, told)


@pytest.mark.parametrize("by_time", [False, True])
def test_a_restore_that_was_undone_is_no_hindrance(path: str, *, by_time: bool) -> None:
    """The advice is to undo it; a start after that was still refused. What undoes the undoing is a restore again."""
    way = prepared(path)
    target = [way.land(GROUP, way.seen(GROUP), mark(n), staged(path, f"mine{n}", n)) for n in (1, 2)][-1]
    landed, whole = Landed(2, target or ""), [(1, "mine1"), (2, "mine2")]
    for version in (0, 1):
        os.utime(Path(path, "_delta_log", f"{version:020}.json"), (version + 1, version + 1))
    told = f"version 3 restored the table to {'a time: it is unknown' if by_time else 'before version 2'}"

    deltalake.DeltaTable(path).restore(datetime.fromtimestamp(3, UTC) if by_time else 1)
    assert rows(path) == whole[:1]
    with pytest.raises(MarkBehind, match=rf"{told}.*undo the restore"):
        Once(way, "").kept(batch_of(3), landed)
    deltalake.DeltaTable(path).restore(2)
    assert rows(path) == whole
    assert Once(way, "").kept(batch_of(3), landed).mark == mark(2)
    deltalake.DeltaTable(path).restore(3)
    assert rows(path) == whole[:1]
    with pytest.raises(MarkBehind, match=told):
        Once(way, "").kept(batch_of(3), landed)
    deltalake.DeltaTable(path).restore(4)
    files = staged(path, "mine3", 3)
    Once(replace(way, stage=lambda *_: files), "").write(None, batch_of(3), landed)  # type: ignore[arg-type]
    assert rows(path) == [*whole, (3, "mine3")]


def write(way: Lander, path: str, number: int, landed: Landed, *ids: int) -> Landed:
    """Write a batch, and return what the ledger knows when it has committed it."""
    files = staged(path, f"mine{number}", *ids) if ids else landing.Staged(staged(path, "", 0).shape, [], [], "")
    done = Once(replace(way, stage=lambda *_: files), "").write(None, batch_of(number), landed)  # type: ignore[arg-type]
    return Landed(number, done.target)


@pytest.mark.parametrize("ids", [[3], []], ids=["rows", "no rows"])
@pytest.mark.parametrize("others", [0, 2])
@pytest.mark.parametrize("first", [True, False], ids=["first batch", "later batch"])
def test_a_restore_that_takes_back_a_batch_that_the_ledger_has_not_committed_is_noticed(
    path: str, ids: list[int], others: int, *, first: bool
) -> None:
    """It counted as landed by its mark, which outlives the rows: they were lost. Others commit before and after it."""

    def theirs() -> None:
        for _ in range(others):
            deltalake.write_deltalake(path, pa.table({"id": [8], "name": ["theirs"]}, SCHEMA), mode="append")

    way = prepared(path)
    landed = Landed(0, way.seen(GROUP).target) if first else write(way, path, 1, Landed(), 1)
    theirs()
    before = deltalake.DeltaTable(path).version()
    write(way, path, 3, landed, *ids)
    theirs()
    there = deltalake.DeltaTable(path).version()
    assert way.lost(landed, way.seen(GROUP)) == ""
    deltalake.DeltaTable(path).restore(before)
    restored = deltalake.DeltaTable(path).version()
    theirs()
    told = rf"version {restored} restored the table to before version {before + 1}, which has batch 3"
    for act in (
        lambda: write(way, path, 3, landed, *ids),
        lambda: Once(way, "").kept(batch_of(3), landed),
        lambda: Once(way, "").make_void(batch_of(3), landed),
    ):
        with pytest.raises(MarkBehind, match=rf"{told}.*--sequence 3"):
            act()
    once, seen = Once(way, ""), way.seen(GROUP)
    with pytest.raises(MarkBehind, match=told):  # a start
        check_marks(Snapshot("billing", landed={"": landed}), {"": seen.mark}, (), {"": once.lost(landed, seen)}, 3)
    deltalake.DeltaTable(path).restore(there)
    assert not once.write(None, batch_of(3), landed).used  # type: ignore[arg-type]
    assert [row for row in rows(path) if row[0] != 8] == [*[(1, "mine1")] * (not first), *[(3, "mine3")] * len(ids)]


def cleaned(path: str) -> None:
    """Let another program commit, and delete what it may of the log; its own commit is left."""
    deltalake.write_deltalake(path, pa.table({"id": [8], "name": ["theirs"]}, SCHEMA), mode="append")
    deltalake.DeltaTable(path).create_checkpoint()
    for each in Path(path, "_delta_log").iterdir():
        os.utime(each, (1, 1))
    deltalake.DeltaTable(path).cleanup_metadata()
    version = deltalake.DeltaTable(path).version()
    assert [each.name for each in Path(path, "_delta_log").glob("*.json")] == [f"{version:020}.json"]


@pytest.mark.parametrize("restored", [True, False])
@pytest.mark.parametrize(("first", "number"), [(True, 1), (True, 3), (False, 3)])
def test_a_batch_under_way_whose_entry_of_the_log_is_deleted_is_not_believed(
    path: str, number: int, *, restored: bool, first: bool
) -> None:
    """It counted as landed by its mark, also where a RESTORE before the cleanup had taken its rows back."""
    way = prepared(path)
    landed = Landed(0, way.seen(GROUP).target) if first else write(way, path, 1, Landed(), 1)
    write(way, path, number, landed, 3)
    if restored:
        deltalake.DeltaTable(path).restore(int(landed.target))
    cleaned(path)
    begins = deltalake.DeltaTable(path).version()
    told = rf"its log begins with version {begins}, without batch {number}: it is unknown whether a RESTORE took"
    for act in (
        lambda: write(way, path, number, landed, 3),
        lambda: Once(way, "").kept(batch_of(number), landed),
        lambda: Once(way, "").make_void(batch_of(number), landed),
    ):
        with pytest.raises(MarkBehind, match=rf"{told}.*--sequence {number}"):
            act()
    theirs = [(8, "theirs")]
    assert rows(path) == sorted([*[(1, "mine1")] * (not first), *[(3, f"mine{number}")] * (not restored), *theirs])
    adopted = Landed(number)
    assert Once(way, "").make_void(batch_of(number), adopted).landing is Landing.VOID


def test_what_a_log_still_shows_is_believed_though_older_entries_are_deleted(path: str) -> None:
    """A log of thirty days is the rule. Outputs that the ledger does not know may have older marks."""
    way = prepared(path)
    write(way, path, 2, Landed(), 2)
    cleaned(path)
    seen = way.seen(GROUP)
    assert way.lost(Landed(), seen) == ""
    assert Once(way, "").make_void(batch_of(2)).landing is Landing.LANDED
    landed = Landed(0, seen.target)
    write(way, path, 3, landed, 3)
    assert Once(way, "").kept(batch_of(3), landed).mark == mark(3)
    assert Once(way, "").make_void(batch_of(3), landed).landing is Landing.LANDED
    assert Once(way, "").make_void(batch_of(3), Landed(3)).landing is Landing.LANDED
    assert rows(path) == [(2, "mine2"), (3, "mine3"), (8, "theirs")]


def test_a_log_that_does_not_reach_back_to_the_last_batch_is_told_once(
    path: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A RESTORE whose entry is deleted cannot be seen; most tables had none, so nothing is refused."""
    told = "its log begins with version 4, and the ledger knows the last batch in version 2: a RESTORE between"
    way = prepared(path)
    landed = write(way, path, 2, write(way, path, 1, Landed(), 1), 2)
    deltalake.write_deltalake(path, pa.table({"id": [8], "name": ["theirs"]}, SCHEMA), mode="append")
    assert way.lost(landed, way.seen(GROUP)) == ""
    assert not caplog.records
    cleaned(path)
    assert way.lost(landed, way.seen(GROUP)) == ""
    landed = write(way, path, 3, landed, 3)
    assert way.lost(landed, way.seen(GROUP)) == ""
    assert [told in each.getMessage() for each in caplog.records] == [True]


def merges(path: str) -> Any:
    """Return a merge of others with the row 1 of a table, without a clause yet."""
    theirs = pa.table({"id": [1], "name": ["theirs"]}, SCHEMA)
    return deltalake.DeltaTable(path).merge(theirs, "t.id = s.id", source_alias="s", target_alias="t")


def completes(path: str) -> None:
    """Change a table as a query of Spark with the output mode Complete does: no commit says overwrite."""
    deltalake.write_deltalake(path, pa.table({"id": [8], "name": ["theirs"]}, SCHEMA), mode="overwrite")
    file = Path(path, "_delta_log", f"{deltalake.DeltaTable(path).version():020}.json")
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    [about] = [each["commitInfo"] for each in lines if "commitInfo" in each]
    about["operation"] = "STREAMING UPDATE"
    about["operationParameters"] = {"outputMode": "Complete", "queryId": "a6d0", "epochId": "3"}
    file.write_text("\n".join(map(json.dumps, lines)) + "\n")


@pytest.mark.parametrize(
    ("change", "told", "left"),
    [
        (lambda path: merges(path).when_matched_delete().execute(), "MERGE", {2}),
        (lambda path: merges(path).when_not_matched_by_source_delete().execute(), "MERGE", {1}),
        (completes, "STREAMING UPDATE", {8}),
        (lambda path: deltalake.DeltaTable(path).delete("id = 1"), "DELETE", {2}),
        (lambda path: merges(path).when_matched_update({"name": "s.name"}).execute(), "", {1, 2}),
    ],
)
def test_what_others_have_taken_of_batches_is_told(
    path: str, change: Callable[[str], Any], told: str, left: set[int]
) -> None:
    """`holds` said nothing of a merge that deletes, nor of a query that writes the whole table anew."""
    write(prepared(path), path, 1, Landed(), 1, 2)
    change(path)
    assert {row[0] for row in rows(path)} == left
    assert held_in(path).changed == (told and f"version 2 ({told})")


def dated(path: str, version: int, at: float) -> None:
    """Give the file of a version another time, by which a RESTORE goes, in seconds since 1970."""
    os.utime(Path(path, "_delta_log", f"{version:020}.json"), (at, at))


def committed(path: str, version: int, at: float) -> None:
    """Give the commit of a version another time, as the clock of its writer says it; its file keeps its own."""
    file = Path(path, "_delta_log", f"{version:020}.json")
    file.write_text(re.sub(r'"timestamp":\d+', f'"timestamp":{int(at * 1000)}', file.read_text()))


_AGO_S = (-9000, -8000, -7000, -6000)  # when versions were committed


@pytest.mark.parametrize("target", ["1", ""])
@pytest.mark.parametrize(
    ("files", "to", "kept"),
    [(_AGO_S, -7500, [1]), (_AGO_S, -6500, [1, 2]), ((-9, -8, -7, -6), -6500, [])],
    ids=["taken back", "kept", "copied"],
)
def test_it_is_unknown_whether_a_restore_to_a_time_kept_a_batch(
    path: str, target: str, files: tuple[int, ...], to: int, kept: list[int]
) -> None:
    """It goes by the times of the files, which a copy of the table changes. Rows that it took back were lost."""
    way, now = prepared(path), time.time()
    landed = write(way, path, 1, Landed(), 1)
    write(way, path, 2, landed, 2)
    deltalake.write_deltalake(path, pa.table({"id": [8], "name": ["theirs"]}, SCHEMA), mode="append")
    for version, (at, seen) in enumerate(zip(_AGO_S, files, strict=True)):
        committed(path, version, now + at)
        dated(path, version, now + seen)
    deltalake.DeltaTable(path).restore(datetime.fromtimestamp(now + to, UTC))
    there = [(number, f"mine{number}") for number in kept]
    assert rows(path) == there
    once = Once(way, "")
    with pytest.raises(MarkBehind, match=r"version 4 restored the table to a time: it is unknown whether it kept"):
        once.make_void(batch_of(2), landed._replace(target=target))
    assert once.make_void(batch_of(2), Landed(2)).landing is Landing.VOID
    write(way, path, 3, Landed(2), 3)
    assert rows(path) == [*there, (3, "mine3")]


def test_a_batch_that_a_restore_has_taken_back_can_be_dropped_once_that_is_adopted(path: str) -> None:
    """Its rows are not there, so its records come again; and whoever still has it cannot land it."""
    way = prepared(path)
    landed = write(way, path, 1, Landed(), 1)
    write(way, path, 2, landed, 2)
    deltalake.DeltaTable(path).restore(int(landed.target))
    adopted = Landed(2)
    assert Once(way, "").make_void(batch_of(2), adopted).landing is Landing.VOID
    with pytest.raises(BatchVoid):
        write(way, path, 2, adopted, 2)
    write(way, path, 3, adopted, 2)
    assert rows(path) == [(1, "mine1"), (2, "mine3")]
    assert Once(way, "").make_void(batch_of(3), Landed(3)).landing is Landing.LANDED


@pytest.mark.parametrize("change", [append, void, merge])
def test_nothing_lands_in_a_table_that_is_restored_between_the_look_and_the_commit(
    path: str, monkeypatch: pytest.MonkeyPatch, change: Change
) -> None:
    """The batch landed upon it, and what the restore had taken back was lost without a word."""
    way, other, real = prepared(path), MarkKey("other", ""), landing.DeltaTarget._commit
    known = way.land(other, way.seen(other), mark(1), staged(path, "other", 7))

    def commit(self: landing.DeltaTarget, table: Any, *arguments: Any) -> None:
        monkeypatch.setattr(landing.DeltaTarget, "_commit", real)
        deltalake.DeltaTable(path).restore(0)
        deltalake.write_deltalake(path, pa.table({"id": [8], "name": ["theirs"]}, SCHEMA), mode="append")
        real(self, table, *arguments)

    monkeypatch.setattr(landing.DeltaTarget, "_commit", commit)
    with pytest.raises(SinkError, match=r"was restored by version 2 while rows were landing; nothing was written"):
        change(way, way.seen(GROUP), path)
    assert rows(path) == [(8, "theirs")]
    assert way.seen(GROUP).mark is None
    with pytest.raises(MarkBehind):
        Once(way, "").make_void(replace(batch_of(2), group="other"), Landed(1, known or ""))


def test_an_older_copy_in_the_place_of_a_table_is_behind(path: str, tmp_path: Path) -> None:
    """A clone has the marks of its table; of later batches it has neither mark nor rows."""
    way, copy = prepared(path), tmp_path / "clone"
    known = way.land(GROUP, way.seen(GROUP), mark(1), staged(path, "mine", 1))
    shutil.copytree(path, copy)
    assert way.lost(Landed(1, known or ""), prepared(str(copy)).seen(GROUP)) == ""
    landed = Landed(2, way.land(GROUP, way.seen(GROUP), mark(2), staged(path, "mine", 2)) or "")
    shutil.rmtree(path)
    copy.rename(path)
    with pytest.raises(MarkBehind, match="restored from a backup, lost rows"):
        Once(way, "").make_void(batch_of(3), landed)
    assert rows(path) == [(1, "mine")]


def test_a_file_of_an_attempt_that_was_not_told_of_is_never_read_and_is_vacuumed(path: str) -> None:
    """As of a task that ran twice, or a run that died before it landed."""
    way = prepared(path)
    staged(path, "lost", 1)
    append(way, way.seen(GROUP), path)
    assert rows(path) == [(1, "appended")]
    deltalake.DeltaTable(path).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False, full=True)
    [left] = Path(path).glob("*.parquet")
    assert left.name.startswith("part-appended-")
    assert rows(path) == [(1, "appended")]


def test_the_files_that_were_merged_are_deleted(path: str) -> None:
    upserting(path).land(GROUP, prepared(path).seen(GROUP), mark(1), staged(path, "mine", 1))
    assert rows(path) == [(1, "mine")]
    assert not list(Path(path).glob("part-mine*"))


def test_a_file_has_the_rows_that_the_log_says(path: str) -> None:
    """In one row group, however many batches Spark makes of them."""
    plan = task.FilePlan(SCHEMA, (), (), "part-many", "")
    many = [pa.record_batch({"id": pa.array([n], pa.int64()), "name": ["x"]}) for n in range(1000)]
    [reply] = task.write_files(task.Folder(path, {}), plan, iter(many))
    [file] = [task.File(**row) for row in reply.to_pylist()]
    found = pq.ParquetFile(Path(path, file.path))
    assert (file.rows, found.metadata.num_rows, found.metadata.num_row_groups) == (1000, 1000, 1)
    assert file.size == Path(path, file.path).stat().st_size


def test_a_row_group_ends_where_enough_bytes_wait(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = pa.RecordBatch.from_pylist([{"id": 1, "name": "tea"}] * 10, SCHEMA)
    monkeypatch.setattr(task, "_ROW_GROUP_BYTES", 3 * rows.nbytes)
    plan = task.FilePlan(SCHEMA, (), (), "part-groups", "")
    [reply] = task.write_files(task.Folder(path, {}), plan, iter([rows] * 8))
    found = pq.ParquetFile(f"{path}/{reply['path'][0]}").metadata
    assert [found.row_group(number).num_rows for number in range(found.num_row_groups)] == [30, 30, 20]


def test_a_task_that_fails_leaves_no_file(path: str) -> None:
    plan = task.FilePlan(SCHEMA, (), (Limits("id"), Limits("name", "string", nullable=False)), "part-failed", "")
    good = pa.record_batch({"id": pa.array([1], pa.int64()), "name": ["x"]})
    bad = pa.record_batch({"id": pa.array([1], pa.int64()), "name": pa.array([None], pa.string())})
    with pytest.raises(RowMismatch, match=r"column name .* must have a value"):
        list(task.write_files(task.Folder(path, {}), plan, iter([good, bad])))
    assert not list(Path(path).glob("*.parquet"))


ACTIONS = ("GetObject", "PutObject", "ListBucket")


def _away(*_: object) -> bool:
    raise StoreUnavailable("not now")


class TestS3:
    """A bucket, whose server makes a commit by a put that is refused where the name is taken."""

    @pytest.fixture
    def options(self, s3_server: S3Server) -> dict[str, str]:
        """Deltalake's settings."""
        keys = {"aws_access_key_id": KEY, "aws_secret_access_key": SECRET, "region": "us-east-1"}
        return {**keys, "endpoint_url": f"http://127.0.0.1:{s3_server.port}", "allow_http": "true", "timeout": "20s"}

    @pytest.fixture
    def uri(self, s3_server: S3Server, options: dict[str, str]) -> str:
        """The URI of an empty table."""
        uri = f"s3://{s3_server.create_bucket()}/shop/orders"
        deltalake.DeltaTable.create(uri, schema=SCHEMA, storage_options=options)
        return uri

    @pytest.mark.parametrize("open_sink", [prepared, upserting])
    def test_a_batch_lands_once_from_executors_too(
        self, spark: SparkSession, uri: str, options: dict[str, str], open_sink: Callable[..., Lander]
    ) -> None:
        """And a look that is older lands nothing."""
        way = open_sink(uri, storage_options=options)
        stale, batch = way.seen(GROUP), batch_of(1)
        frame = spark.createDataFrame([(1, "a"), (2, "b")], "id bigint, name string")
        for _ in range(2):
            Once(way, "").write(frame, batch)
        with pytest.raises(MarkMoved):
            way.land(GROUP, stale, mark(2), staged(uri, "stale", 7, options=options))
        assert rows(uri, options) == [(1, "a"), (2, "b")]

    @pytest.mark.parametrize("cut", [Cut.REQUEST, Cut.REPLY])
    @pytest.mark.parametrize("retries", ["0", "3"])
    def test_a_put_that_is_cut_off_lands_at_most_once(
        self, s3_server: S3Server, uri: str, options: dict[str, str], cut: Cut, retries: str
    ) -> None:
        """Where the object store's client tries again by itself, it may find its own commit there."""
        way = prepared(uri, storage_options=options)
        files = staged(uri, "mine", 1, options=options)
        with TcpProxy("127.0.0.1", s3_server.port) as proxy:
            through = {**options, "endpoint_url": f"http://{proxy.address}", "max_retries": retries}
            cut_off = prepared(uri, storage_options=through)
            seen = cut_off.seen(GROUP)
            with proxy.cut(cut, b"PUT"):
                try:
                    cut_off.land(GROUP, seen, mark(1), files)
                except (MarkMoved, OutcomeUnknown) as error:
                    told: Exception | None = error
                else:
                    told = None
        landed = way.seen(GROUP).mark == mark(1)
        assert rows(uri, options) == ([(1, "mine")] if landed else [])
        assert landed or isinstance(told, OutcomeUnknown)

    @pytest.mark.parametrize("scheme", ["s3", "s3a"])
    def test_a_server_that_ignores_the_condition_is_refused_at_the_start(self, scheme: str) -> None:
        """Of two commits of one version the first would be lost, with its rows."""
        keys = {"aws_access_key_id": KEY, "aws_secret_access_key": SECRET, "region": "us-east-1", "allow_http": "true"}
        with S3Server(settings={"s3proxy.authorization": "none"}) as server:
            bucket = server.create_bucket()
            uri, allowed = f"{scheme}://{bucket}/shop/my orders", [(f"s3:{what}", f"{bucket}*") for what in ACTIONS]
            direct = keys | {"endpoint_url": f"http://127.0.0.1:{server.port}"}
            deltalake.DeltaTable.create(uri, schema=SCHEMA, storage_options=direct)
            prepared(uri, storage_options=direct)
            with s3_gate(server.port, allowed, ["if-none-match"]) as port:
                through = keys | {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}"}
                with pytest.raises(Refused, match=r"ignores If-None-Match.*one would be lost"):
                    prepared(uri, storage_options=through)
                prepared(uri, storage_options=through | {"AWS_S3_LOCKING_PROVIDER": "dynamodb"})
            prepared(uri, storage_options=direct)
            found = [each["Key"] for each in server.client().list_objects_v2(Bucket=bucket)["Contents"]]
        below = "shop/my orders/"
        assert found == [f"{below}_delta_log/{0:020}.json", f"{below}_offsetkeeper/create-if-absent"]

    def test_a_server_that_cannot_be_tried_is_told(
        self, uri: str, options: dict[str, str], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """For deltalake may have other credentials, and does without boto3."""
        prepared(uri, storage_options=options)
        assert "could not be tried" not in caplog.text
        monkeypatch.setitem(sys.modules, "boto3", None)
        monkeypatch.delitem(sys.modules, "offsetkeeper.clients.s3")
        prepared(uri, storage_options=options)
        assert "could not be tried" in caplog.text
        assert "boto3 is missing: pip install 'offsetkeeper[s3]'" in caplog.text
        caplog.clear()
        monkeypatch.undo()
        monkeypatch.setattr("offsetkeeper.clients.s3.Connection.overwrites", _away)
        prepared(uri, storage_options=options)
        assert "a commit whose name is taken: not now" in caplog.text

    def test_no_secret_is_shown(self, uri: str, options: dict[str, str]) -> None:
        """Of a server that refuses the key, and one that is not there."""
        wrong = {**options, "aws_access_key_id": "someone-else"}
        nowhere = {**options, "endpoint_url": "http://127.0.0.1:1", "max_retries": "0"}
        for settings in (wrong, nowhere):
            sink = DeltaTable(uri, storage_options=settings)
            with pytest.raises(SinkError) as raised:
                sink.prepare(MemoryStore("memory://"), Guarantee.EXACTLY_ONCE)
            shown = f"{sink!r} {sink.prepare} {''.join(traceback.format_exception(raised.value))}"
            assert SECRET not in shown
            assert "someone-else" not in shown
