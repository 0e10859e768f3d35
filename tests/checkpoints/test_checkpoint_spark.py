"""What Spark itself does with a checkpoint that was changed: which records a real query processes, in which batch."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from checkpoints.queries import LIMIT_S, NO_CONFS, ROCKSDB, Queries, copy, do, query_id, records
from offsetkeeper import open_store
from offsetkeeper.checkpoint import (
    LocalFiles,
    apply,
    inspect,
    offsets_after,
    plan_complete,
    plan_convert,
    plan_move,
    plan_seed,
    plan_truncate,
    plan_undo,
    read_checkpoint,
    verify,
)
from offsetkeeper.checkpoint.log_format import BARRIER
from offsetkeeper.core.offsets import TopicPartition
from offsetkeeper.errors import Fenced
from offsetkeeper.operate.copy import copy as copy_group
from offsetkeeper.testing.kafka import KafkaServer
from offsetkeeper.testing.server import wait_until

EVOLUTION = {"spark.sql.streaming.queryEvolution.enableSourceEvolution": "true"}
CONFS = {"counting": NO_CONFS, "rocks": ROCKSDB}
Spoil = Callable[[LocalFiles], None]


def _behind(files: LocalFiles) -> None:
    """Batch 2 has not been planned."""
    _delete(files, offsets=[2], commits=[2])


def _delete(files: LocalFiles, *, offsets: Sequence[int] = (), commits: Sequence[int] = ()) -> None:
    for name in (*(f"offsets/{n}" for n in offsets), *(f"commits/{n}" for n in commits)):
        files.delete(name)


def _newer(files: LocalFiles) -> None:
    files.write("commits/5", files.read("commits/2") or b"")
    _delete(files, offsets=[2], commits=[1, 2])


STARTS: dict[str, Spoil] = {
    "all is committed": _delete,
    "the newest is not committed": lambda files: _delete(files, commits=[2]),
    "nothing is committed": lambda files: _delete(files, commits=[0, 1, 2]),
    "the newest was not planned": lambda files: _delete(files, offsets=[2], commits=[2]),
    "only the first was planned": lambda files: _delete(files, offsets=[1, 2], commits=[0, 1, 2]),
    "a commit is newer than all offsets": _newer,
    "none was planned": lambda files: _delete(files, offsets=[0, 1, 2], commits=[0, 1, 2]),
}


@pytest.mark.parametrize("start", STARTS)
def test_what_is_said_to_run_next_runs_next(start: str, queries: Queries, files: LocalFiles) -> None:
    STARTS[start](files)
    following = read_checkpoint(files).next()
    found = queries.run(files.path)
    starts = [following.positions[tp] for tp in sorted(following.positions)]
    if starts == [6, 6]:
        assert found == {}
    else:
        assert min(found) == following.batch
        assert found[min(found)] == records(*((p, start, start + 2) for p, start in enumerate(starts)))


@pytest.mark.parametrize("state", [False, True], ids=["without state", "with state"])
def test_a_seeded_query_begins_where_the_group_of_a_store_stands(
    state: bool,  # noqa: FBT001 - pytest passes it by name
    queries: Queries,
    plain: Path,
    tmp_path: Path,
) -> None:
    """By way of a store: out of one checkpoint, into another one."""
    behind = copy(plain, tmp_path / "behind")
    _behind(behind)
    with_store = open_store(f"sqlite:///{tmp_path}/offsets.db")
    stored = copy_group("g", open_store(f"checkpoint://{behind.path}"), with_store).positions
    offsets = {tp: at.offset for tp, at in stored.items()}
    assert offsets == queries.at(4, 4)
    files = LocalFiles(tmp_path / "seeded")
    do(files, plan_seed(read_checkpoint(files, may_be_new=True), {"0": offsets}))
    assert verify(files) == []
    found = queries.run(files.path, counting=state, starting="latest")
    assert found == {0: [(0, 2), (1, 2)] if state else records((0, 4, 6), (1, 4, 6))}


def test_a_source_with_a_name_is_seeded_by_it(queries: Queries, tmp_path: Path) -> None:
    files = LocalFiles(tmp_path / "seeded")
    do(files, plan_seed(read_checkpoint(files, may_be_new=True), {"orders": queries.at(5, 4)}))
    found = queries.run(files.path, name="orders", confs=EVOLUTION, starting="latest")
    assert found == {0: records((0, 5, 6), (1, 4, 6))}


def test_a_partition_that_was_not_seeded_begins_at_its_beginning(queries: Queries, tmp_path: Path) -> None:
    files = LocalFiles(tmp_path / "seeded")
    edit = plan_seed(read_checkpoint(files, may_be_new=True), {"0": {TopicPartition(queries.topic, 0): 5}})
    assert "start at their beginning" in edit.notes[0]
    do(files, edit)
    found = queries.run(files.path, starting="latest")
    assert sorted(row for rows in found.values() for row in rows) == records((0, 5, 6), (1, 0, 6))


def test_a_query_is_rewound_and_made_to_skip_without_using_a_batch_twice(queries: Queries, files: LocalFiles) -> None:
    _behind(files)
    before = query_id(files)
    edit = plan_move(read_checkpoint(files), queries.at(1, 5))
    assert [(step.topic_partition.partition, step.old, step.new) for step in edit.steps] == [(0, 4, 1), (1, 4, 5)]
    do(files, edit)
    assert verify(files) == []
    found = queries.run(files.path)
    assert min(found) == 3
    assert sorted(row for rows in found.values() for row in rows) == records((0, 1, 6), (1, 5, 6))
    assert query_id(files) == before


def test_partitions_that_are_not_named_go_on_where_they_are(queries: Queries, files: LocalFiles) -> None:
    _behind(files)
    do(files, plan_move(read_checkpoint(files), {TopicPartition(queries.topic, 1): 5}))
    assert queries.run(files.path) == {3: records((0, 4, 6), (1, 5, 6))}


def test_a_batch_that_always_fails_is_skipped(queries: Queries, files: LocalFiles) -> None:
    """It was planned and not committed; its records are passed over, or only some of them."""
    _behind(files)
    assert queries.run(files.path, fail=True) == {}
    assert read_checkpoint(files).next().kind == "again"
    edit = plan_move(read_checkpoint(files), queries.at(6, 5))
    assert "batch 2 was begun and never committed" in edit.notes[0]
    do(files, edit)
    assert verify(files) == []
    assert queries.run(files.path) == {3: records((1, 5, 6))}


@pytest.mark.parametrize("query", ["new", "keep"])
def test_a_truncated_query_runs_later_batches_again(query: str, queries: Queries, files: LocalFiles) -> None:
    before = query_id(files)
    do(files, plan_truncate(read_checkpoint(files), 0, query_id="new" if query == "new" else "keep"))
    assert verify(files) == []
    assert queries.run(files.path) == {1: records((0, 2, 4), (1, 2, 4)), 2: records((0, 4, 6), (1, 4, 6))}
    assert (query_id(files) == before) == (query == "keep")
    uuid.UUID(query_id(files))


@pytest.mark.parametrize("provider", ["counting", "rocks"])
def test_a_truncated_query_has_the_state_of_then(
    provider: str, queries: Queries, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    files = copy(request.getfixturevalue(provider), tmp_path / "checkpoint")
    assert verify(files) == []
    do(files, plan_truncate(read_checkpoint(files), 0, query_id="new"))
    assert verify(files) == []
    assert queries.run(files.path, counting=True, confs=CONFS[provider]) == {1: [(0, 4), (1, 4)], 2: [(0, 6), (1, 6)]}


@pytest.mark.parametrize("provider", ["counting", "rocks"])
def test_a_truncation_is_undone_with_the_state(
    provider: str, queries: Queries, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """And the undo is undone."""
    files = copy(request.getfixturevalue(provider), tmp_path / "checkpoint")
    before = files.stamps("")
    do(files, plan_truncate(read_checkpoint(files), 0, query_id="new"))
    do(files, plan_undo(files))
    assert {name: stamp.size for name, stamp in before.items() if "/." not in name and name[0] != "."} == {
        name: stamp.size for name, stamp in files.stamps("").items() if "/." not in name and name[0] != "."
    }
    assert verify(files) == []
    assert queries.run(copy(files.path, tmp_path / "undone").path, counting=True, confs=CONFS[provider]) == {}
    do(files, plan_undo(files))
    assert queries.run(files.path, counting=True, confs=CONFS[provider]) == {1: [(0, 4), (1, 4)], 2: [(0, 6), (1, 6)]}


def test_an_undone_move_leaves_a_query_as_it_was(queries: Queries, files: LocalFiles) -> None:
    _behind(files)
    do(files, plan_move(read_checkpoint(files), queries.at(0, 0)))
    do(files, plan_undo(files))
    assert queries.run(files.path) == {2: records((0, 4, 6), (1, 4, 6))}


def test_no_query_starts_while_a_change_is_under_way(queries: Queries, files: LocalFiles) -> None:
    """It has read nothing when it fails, and goes on as if nothing had been once the change is undone."""
    _behind(files)
    edit = plan_move(read_checkpoint(files), queries.at(0, 0))
    backup = do(files, edit)
    files.write("offsets/4", f"{BARRIER}A change is under way; the backup is {backup}\n".encode())
    files.delete("commits/3")
    with pytest.raises(StreamingQueryException, match="MALFORMED_LOG_FILE"):
        queries.run(files.path)
    assert [each.file for each in verify(files)] == ["offsets/4"]
    do(files, plan_undo(files))
    assert queries.run(files.path) == {2: records((0, 4, 6), (1, 4, 6))}


def test_a_query_goes_on_from_the_other_format(queries: Queries, files: LocalFiles) -> None:
    """There and back."""
    _behind(files)
    do(files, plan_convert(read_checkpoint(files), 2))
    assert inspect(read_checkpoint(files)).formats["offset log"] == "v2"
    assert verify(files) == []
    other = copy(files.path, files.path.with_name("other"))
    assert queries.run(files.path) == {2: records((0, 4, 6), (1, 4, 6))}
    assert (files.read("offsets/2") or b"").startswith(b"v2\n")
    do(other, plan_convert(read_checkpoint(other), 1))
    assert queries.run(other.path) == {2: records((0, 4, 6), (1, 4, 6))}
    assert (other.read("offsets/2") or b"").startswith(b"v1\n")


def test_sources_get_names_and_lose_them(queries: Queries, files: LocalFiles) -> None:
    _behind(files)
    do(files, plan_convert(read_checkpoint(files), 2, ["orders"]))
    assert verify(files) == []
    other = copy(files.path, files.path.with_name("other"))
    assert queries.run(files.path, name="orders", confs=EVOLUTION) == {2: records((0, 4, 6), (1, 4, 6))}
    do(other, plan_convert(read_checkpoint(other), 1, ["orders"]))
    assert queries.run(other.path) == {2: records((0, 4, 6), (1, 4, 6))}
    assert read_checkpoint(other).initial().keys() == {"0"}


def test_a_micro_batch_query_goes_on_from_a_continuous_one(
    spark: SparkSession, kafka_server: KafkaServer, tmp_path: Path
) -> None:
    """Without `complete` it fails."""
    kafka_server.create_topic("continuous", 2)
    queries, files = Queries(spark, kafka_server, "continuous"), LocalFiles(tmp_path / "checkpoint")
    queries.produce(3)
    frame = spark.readStream.format("kafka").option("kafka.bootstrap.servers", kafka_server.bootstrap)
    frame = frame.option("subscribe", "continuous").option("startingOffsets", "earliest")
    writer = frame.load().writeStream.format("noop").option("checkpointLocation", str(files.path))
    query = writer.trigger(continuous="100 milliseconds").start()
    wait_until(lambda: set(_processed(files).values()) == {3}, "all is read", LIMIT_S)
    query.stop()
    assert {each.what[:33] for each in verify(files)} == {"its metadata line is empty, as co"}
    queries.produce(2)
    unfinished = copy(files.path, tmp_path / "unfinished")
    with pytest.raises(StreamingQueryException):
        queries.run(unfinished.path)
    do(files, plan_complete(read_checkpoint(files)))
    assert verify(files) == []
    read = sorted(row for rows in queries.run(files.path).values() for row in rows)
    assert read == records((0, 3, 5), (1, 3, 5))


def _processed(files: LocalFiles) -> dict[TopicPartition, int]:
    """Return where the newest committed batch ended."""
    found = read_checkpoint(files, may_be_new=True)
    done = max(set(found.commits) & set(found.offsets), default=None)
    return {} if done is None else offsets_after(found, done)


def test_a_query_that_sleeps_through_a_move_fails_before_it_reads(
    spark: SparkSession, kafka_server: KafkaServer, tmp_path: Path
) -> None:
    """Nothing gives it away. The next one goes on where it was moved to."""
    kafka_server.create_topic("sleeping", 2)
    queries, files = Queries(spark, kafka_server, "sleeping"), LocalFiles(tmp_path / "checkpoint")
    queries.produce(3)
    writer = queries.frame().writeStream.format("noop").option("checkpointLocation", str(files.path))
    query = writer.trigger(processingTime="100 milliseconds").start()
    try:
        query.processAllAvailable()
        apply(files, plan_move(read_checkpoint(files), queries.at(1, 2)), quiet_s=0, look_s=0.3)
        queries.produce(1)
        with pytest.raises(StreamingQueryException, match="oncurrent"):
            query.awaitTermination(LIMIT_S)
    finally:
        query.stop()
    found = queries.run(files.path)
    assert sorted(row for rows in found.values() for row in rows) == records((0, 1, 4), (1, 2, 4))


def test_a_truncation_that_holds_lets_a_query_that_sleeps_fail_before_it_reads(
    spark: SparkSession, kafka_server: KafkaServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise it goes on, and leaves a hole in the batches that no query starts from."""
    kafka_server.create_topic("holding", 2)
    queries, files = Queries(spark, kafka_server, "holding"), LocalFiles(tmp_path / "checkpoint")
    queries.produce(6)
    writer = queries.frame().writeStream.format("noop").option("checkpointLocation", str(files.path))
    query = writer.trigger(processingTime="100 milliseconds").start()

    def wait(seconds: float) -> None:
        assert seconds == 600
        queries.produce(1)
        with pytest.raises(StreamingQueryException, match="oncurrent"):
            query.awaitTermination(LIMIT_S)

    try:
        query.processAllAvailable()
        monkeypatch.setattr("offsetkeeper.core.environment.wait", wait)
        apply(files, plan_truncate(read_checkpoint(files), 0, query_id="new"), quiet_s=0, look_s=0, hold_s=600)
    finally:
        query.stop()
    found = queries.run(files.path)
    assert sorted(row for rows in found.values() for row in rows) == records((0, 2, 7), (1, 2, 7))
    assert verify(files) == []


def test_a_query_that_runs_is_noticed(spark: SparkSession, tmp_path: Path) -> None:
    files = LocalFiles(tmp_path / "checkpoint")
    stream = spark.readStream.format("rate").option("rowsPerSecond", 1000).load()
    query = stream.writeStream.format("noop").option("checkpointLocation", str(files.path)).start()
    try:
        wait_until(lambda: len(files.names("commits")) > 4, "two batches ran", LIMIT_S)
        edit = plan_truncate(read_checkpoint(files), 0, query_id="new")
        with pytest.raises(Fenced, match="has changed during the check"):
            apply(files, edit, quiet_s=0, look_s=LIMIT_S)
    finally:
        query.stop()
    assert files.backups() == []


@pytest.mark.parametrize("made", ["plain", "counting", "rocks"])
def test_nothing_is_wrong_with_what_spark_has_made(made: str, request: pytest.FixtureRequest) -> None:
    assert verify(LocalFiles(request.getfixturevalue(made))) == []


def test_a_checksum_without_its_file_stops_a_query_as_verify_says(queries: Queries, files: LocalFiles) -> None:
    """The batch has run when it fails: its records are in the output."""
    (files.path / "commits" / "2").unlink()
    [finding] = verify(files)
    assert (finding.file, "after the batch has run" in finding.what) == ("commits/.2.crc", True)
    with pytest.raises(StreamingQueryException, match="oncurrent"):
        queries.run(files.path)
    files.delete("commits/2")
    assert verify(files) == []
    assert queries.run(files.path) == {2: records((0, 4, 6), (1, 4, 6))}


def test_without_the_batch_before_the_newest_a_query_starts_only_after_the_remedy(
    queries: Queries, files: LocalFiles
) -> None:
    """Any offsets will do there, once the newest batch is committed."""
    _delete(files, offsets=[0, 2], commits=[2])
    [finding] = verify(files)
    assert (finding.file, finding.remedy[:23]) == ("offsets/0", "Copy offsets/1 to it: S")
    with pytest.raises(StreamingQueryException, match="batch 0 doesn't exist"):
        queries.run(files.path)
    files.write("offsets/0", files.read("offsets/1") or b"")
    assert queries.run(files.path) == {2: records((0, 4, 6), (1, 4, 6))}
