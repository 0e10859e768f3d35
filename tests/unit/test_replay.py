"""What a replay would read: cut to what Kafka holds, and refused where it would read something else."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from offsetkeeper.core import environment
from offsetkeeper.core.batch import QueryBatch
from offsetkeeper.core.bounds import Bounds
from offsetkeeper.core.ledger import Ledger
from offsetkeeper.core.model import Snapshot
from offsetkeeper.core.offsets import OffsetRange, Position, TopicPartition
from offsetkeeper.errors import NotAllowed, Refused
from offsetkeeper.kafka import KafkaCluster
from offsetkeeper.kafka.cluster import Retentions
from offsetkeeper.operate.replay import plan_replay, plan_replay_of
from offsetkeeper.operate.replay_plan import Replay, make_replay, record_fields
from offsetkeeper.operate.replay_records import between, replay_records
from offsetkeeper.operate.scope import Scope
from offsetkeeper.readers import Source, consume
from offsetkeeper.readers.turns import Range
from offsetkeeper.readers.unreadable import unreadable
from offsetkeeper.stores.memory import MemoryStore
from offsetkeeper.testing.simulator.kafka import ModelCluster, ModelPlace, ModelTopic
from offsetkeeper.testing.simulator.schedule import Budget, Schedule

A = TopicPartition("a", 0)
FOUND = {A: Bounds(10, 100, "id")}


def a(start: int, end: int) -> OffsetRange:
    return OffsetRange(*A, start, end)


@pytest.mark.parametrize(
    ("wanted", "left", "lost"),
    [
        (a(10, 100), a(10, 100), 0),
        (a(50, 60), a(50, 60), 0),
        (a(5, 20), a(10, 20), 5),
        (a(2, 10), a(10, 10), 8),
        (a(2, 7), a(7, 7), 5),
    ],
)
def test_what_is_lost_to_retention_is_counted_and_the_rest_is_read(
    wanted: OffsetRange, left: OffsetRange, lost: int
) -> None:
    made = make_replay("g", [wanted], {}, FOUND)
    [stretch] = made.stretches
    assert (stretch.wanted, stretch.left, stretch.lost, made.lost) == (wanted, left, lost, lost)
    assert made.ranges == ((left,) if left.size else ())
    assert made.size == left.size
    assert made.as_dict()["stretches"][0]["wanted"] == [wanted.start, wanted.end]


@pytest.mark.parametrize(
    ("wanted", "told"),
    [
        ([a(50, 101)], "offsets up to 101 are requested, but the partition ends at 100"),
        ([OffsetRange("b", 0, 0, 1)], "b 0 does not exist"),
        ([a(50, 50)], "the requested ranges are empty"),
        ([a(60, 50)], "the requested ranges are empty"),
        ([], "the requested ranges are empty"),
    ],
)
def test_what_is_not_there_is_refused(wanted: list[OffsetRange], told: str) -> None:
    with pytest.raises(Refused, match=told):
        make_replay("g", wanted, {}, FOUND)


def test_a_replay_of_a_topic_that_was_made_again_is_refused() -> None:
    assert make_replay("g", [a(50, 60)], {A: Position(60, "id")}, FOUND).size == 10
    assert make_replay("g", [a(50, 60)], {A: Position(60)}, FOUND).size == 10
    with pytest.raises(Refused, match="created again since"):
        make_replay("g", [a(50, 60)], {A: Position(60, "old")}, FOUND)


class Cut:
    """A group that has read six records in two batches: versions 3 and 4 of its ledger."""

    def __init__(self) -> None:
        self.topic = ModelTopic("id", [(0, 6, 6)])
        self.cluster = ModelCluster(
            Schedule(lambda _: 0, Budget(0, 0)), ModelPlace("here", {"a": self.topic}), epochs=True
        )
        self.ledger = Ledger(MemoryStore(f"memory://{secrets.token_hex(8)}"), "g")
        self.ledger.acquire()
        self.place(0)
        self.commit(0, 4)
        self.commit(4, 6)

    def place(self, offset: int, **cut: int) -> None:
        """Set the position in the epoch of now; `cut` is where an election has cut the log, if it has."""
        at = Position(offset, "id", "here", self.topic.epoch(0))
        self.ledger.place({A: at}, cuts={A: cut["cut"]} if cut else {})

    def commit(self, start: int, end: int) -> None:
        """Commit a range."""
        self.ledger.commit(self.ledger.batch([a(start, end)]))

    def elect(self, lost: int, end: int) -> None:
        """Elect a leader without so many records, and write others up to an end."""
        self.topic.elect(0, lost)
        self.topic.partitions[0] = (0, end, end)

    def again(self, version: int = 0, **limits: Any) -> Replay:
        """Plan a replay of a version, or of what limits say."""
        if version:
            return plan_replay_of(self.ledger, self.cluster, version)
        return plan_replay(self.ledger, self.cluster, **limits)

    def read(self, made: Replay) -> list[tuple[int, str]]:
        """Return the offsets that a replay reads, each with what tells its record from others at that offset."""
        return [(offset, record) for _, record, _, offset in self.cluster.read(made.ranges, made.topic_ids)]


def firsts(end: int, start: int = 0) -> list[tuple[int, str]]:
    return [(offset, "id") for offset in range(start, end)]


@pytest.mark.parametrize("noted", [False, True], ids=["before a start has noted it", "after a start has noted it"])
@pytest.mark.parametrize("end", [3, 5, 8])
def test_records_that_have_the_offsets_of_others_are_not_read_for_them(end: int, *, noted: bool) -> None:
    """An election cut the log at 3. A replay read the new records from there on, and said nothing."""
    group = Cut()
    group.elect(3, end)
    if noted:
        group.place(3, cut=3)
        if end > 3:
            group.commit(3, end)
    first, second = (group.again(version) for version in (3, 4))
    assert (group.read(first), first.lost, first.cut) == (firsts(3), 1, 1)
    assert (group.read(second), second.lost, second.cut) == ([], 2, 2)
    told = first.as_dict()
    assert (told["records"], told["lost"], told["cut"], told["stretches"][0]["cut"]) == (3, 1, 1, 1)
    whole = group.again()
    new = [(offset, "id epoch 1") for offset in range(3, end)]
    assert group.read(whole) == firsts(3) + (new if noted else [])
    assert whole.cut == (0 if noted else 3)
    if noted and end > 3:
        assert group.read(group.again(group.ledger.snapshot.version)) == new


def test_after_a_second_cut_the_lower_one_counts_and_an_unknown_one_leaves_nothing() -> None:
    """The second one is above the first, and was not noted at first."""
    group = Cut()
    group.elect(4, 8)
    group.place(2, cut=2)
    group.commit(2, 8)
    group.elect(3, 9)
    for _ in range(2):
        assert [group.read(group.again(version)) for version in (3, 4)] == [firsts(2), []]
        assert group.read(group.again(6)) == [(offset, "id epoch 1") for offset in range(2, 5)]
        group.place(5, cut=5)
    group.place(0, cut=-1)
    made = group.again(3)
    assert (group.read(made), made.cut) == ([], 4)


def test_an_election_that_lost_nothing_cuts_nothing_also_of_what_was_not_read() -> None:
    group = Cut()
    group.elect(0, 8)
    made = group.again(start=2, end=8)
    assert (group.read(made), made.lost) == ([*firsts(6, 2), (6, "id epoch 1"), (7, "id epoch 1")], 0)
    assert [group.again(version).lost for version in (3, 4)] == [0, 0]


def test_a_batch_is_known_to_be_cut_also_if_the_group_stands_before_it() -> None:
    group = Cut()
    group.ledger.rewind({A: Position(1, "id", "here")}, "again", force=True)
    group.ledger.acquire()
    group.place(1)
    group.elect(3, 8)
    assert (group.read(group.again(4)), group.again(4).cut) == ([], 2)


def test_between_times_the_records_that_are_there_now_are_read() -> None:
    group = Cut()
    group.elect(3, 8)
    made = group.again(start=datetime(1970, 1, 1, tzinfo=UTC))
    assert (made.ranges, made.lost) == ((a(0, 6),), 0)


@pytest.mark.parametrize(("beginning", "perhaps"), [(0, ()), (2, ()), (3, (A,)), (4, (A,)), (6, (A,))])
def test_from_a_time_on_what_retention_may_have_deleted_is_told(
    monkeypatch: pytest.MonkeyPatch, beginning: int, perhaps: tuple[TopicPartition, ...]
) -> None:
    """Record n is of second n: what is deleted tells no time, unless an older record is still there."""
    group = Cut()
    group.topic.partitions[0] = (beginning, 6, 6)
    found = {A: max(beginning, 3)}
    monkeypatch.setattr(ModelCluster, "offsets_for_times", lambda *_: found)
    start = datetime(1970, 1, 1, 0, 0, 3, tzinfo=UTC)
    if beginning == 6:
        with pytest.raises(Refused, match=r"ranges are empty\n  retention has deleted .* these times: a 0"):
            group.again(start=start)
        return
    made = group.again(start=start)
    assert (made.perhaps_deleted, made.lost, made.whole) == (perhaps, 0, not perhaps)
    assert ("retention has deleted records" in made.losses) == bool(perhaps)
    assert group.again(start=max(beginning, 1)).whole  # by offsets it is known


@pytest.mark.parametrize(
    ("retentions", "harmless"),
    [
        (Retentions({"a": 10_000}), True),
        (Retentions({"a": 4_000}), False),
        (Retentions({"a": 10_000}, {"a": "by size"}), False),
        (Retentions({}), False),
        (None, False),
    ],
    ids=["kept since then", "deleted since then", "by size too", "for ever", "unknown"],
)
def test_a_partition_without_records_is_no_loss_if_retention_keeps_those_of_that_time(
    monkeypatch: pytest.MonkeyPatch, retentions: Retentions | None, *, harmless: bool
) -> None:
    """For an idle partition the exit code was 1, and `--partial`, which it asked for, hides what is lost indeed."""
    group, idle = Cut(), TopicPartition("a", 1)
    group.topic.partitions.append((4, 4, 4))
    group.ledger.place({idle: Position(4, "id", "here")})
    monkeypatch.setattr(ModelCluster, "offsets_for_times", lambda *_: {A: 3, idle: 4})
    monkeypatch.setattr(environment, "now_ms", lambda: 8_000)
    since = datetime(1970, 1, 1, 0, 0, 3, tzinfo=UTC)
    made = group.again(start=since, retentions=retentions and (lambda _: retentions))
    assert (made.emptied, made.perhaps_deleted) == (((idle,), ()) if harmless else ((), (idle,)))
    assert (made.whole, made.ranges) == (harmless, (a(3, 6),))
    assert made.as_dict()["emptied"] == [{"topic": "a", "partition": 1}] * harmless
    group.topic.partitions[0] = (3, 6, 6)
    assert A in group.again(start=since, retentions=retentions and (lambda _: retentions)).perhaps_deleted


def test_a_deleted_topic_whose_position_is_lost_stops_no_replay_of_others() -> None:
    """Kafka drops the offsets of a topic that is deleted. It was refused for a topic that nobody named."""
    group, gone = Cut(), TopicPartition("gone", 0)
    group.ledger.place({gone: Position(3)})
    assert isinstance(group.ledger.store, MemoryStore)
    del group.ledger.store.memory.positions["g"][gone]
    assert [*group.ledger.load().missing] == [gone]
    assert group.again().ranges == (a(0, 6),)
    with pytest.raises(Refused, match="gone 0 does not exist"):
        group.again(scope=Scope((gone,)))


def test_what_retention_and_a_cut_have_taken_is_counted_once() -> None:
    [stretch] = make_replay("g", [a(5, 40)], {}, FOUND, cuts={A: 30}).stretches
    assert (stretch.left, stretch.lost, stretch.cut) == (a(10, 30), 15, 10)
    [stretch] = make_replay("g", [a(2, 9)], {}, FOUND, cuts={A: 4}).stretches
    assert (stretch.left.size, stretch.lost, stretch.cut) == (0, 7, 5)


def test_a_version_that_has_nothing_to_read_again_is_told() -> None:
    group, query = Cut(), "00000000-0000-0000-0000-000000000001"
    group.ledger.place({}, queries={query: 0})
    group.ledger.commit(group.ledger.batch([], QueryBatch(query, 0)))
    for version, told in ((6, "was made by a batch of a query that had no records"), (5, "by place, not by a batch")):
        with pytest.raises(NotAllowed, match=f"version {version} of group 'g' .*{told}"):
            group.again(version)


@pytest.mark.parametrize("commits", [0, 1, 5, 20])
def test_a_version_is_found_also_while_a_run_commits(monkeypatch: pytest.MonkeyPatch, commits: int) -> None:
    """It was said not to be in the history: of that as many entries were read as there had been a moment before."""
    group = Cut()
    group.topic.partitions[0] = (0, 40, 40)
    load = Ledger.load

    def racing(ledger: Ledger) -> Snapshot:
        found = load(ledger)
        for at in range(6, 6 + commits):
            group.commit(at, at + 1)
        return found

    reader = Ledger(group.ledger.store, "g")
    monkeypatch.setattr(Ledger, "load", racing)
    assert plan_replay_of(reader, group.cluster, 3).ranges == (a(0, 4),)
    assert group.ledger.snapshot.version == 4 + commits


@pytest.mark.parametrize("bad", [10, 15, 25, 29])
@pytest.mark.parametrize("second", [15, 20, 28])
def test_a_batch_of_two_ranges_of_one_partition_is_read_whole_around_what_cannot_be_read(
    monkeypatch: pytest.MonkeyPatch, bad: int, second: int
) -> None:
    """The reader gives none of the rows before it comes to the record with such headers."""

    def read(source: Source, ranges: Iterable[Range], _: Mapping[str, str]) -> Iterator[pa.RecordBatch]:
        for topic, partition, start, end in ranges:
            if source.headers and start <= bad < end:
                raise unreadable((topic, partition, bad), "has headers that cannot be read")
            size = end - start
            yield pa.record_batch(
                {"topic": [topic] * size, "partition": [partition] * size, "offset": [*range(start, end)]}
            )

    monkeypatch.setattr(consume, "read", read)
    replay = make_replay("g", [a(10, second), a(second, 30)], {}, FOUND)
    rows = list(replay_records(replay, KafkaCluster("localhost:9")))
    assert [row["offset"] for row in rows] == [*range(10, 30)]
    assert [row["offset"] for row in rows if "unreadable" in row] == [bad]


def test_a_record_is_told_without_loss() -> None:
    row: dict[str, Any] = {
        "topic": "a",
        "partition": 0,
        "offset": 7,
        "timestamp": 1_769_860_800_250,
        "key": None,
        "value": "tea \u2615".encode(),
        "headers": [{"key": "h", "value": b"\xff\x00"}],
    }
    assert record_fields(row) == {
        "topic": "a",
        "partition": 0,
        "offset": 7,
        "timestamp": "2026-01-31T12:00:00.250+00:00",
        "key": None,
        "value": "tea \u2615",
        "headers": [["h", {"base64": "/wA="}]],
    }
    bare = {**row, "value": b"", "timestamp": 1_700_000_000_000_000, "unreadable": "it has headers that …"}
    del bare["headers"]
    assert record_fields(bare) == {
        "topic": "a",
        "partition": 0,
        "offset": 7,
        "timestamp": None,
        "key": None,
        "value": "",
        "headers": [],
        "timestamp_ms": 1_700_000_000_000_000,
        "unreadable": "it has headers that …",
    }


def test_a_record_of_a_time_that_python_does_not_know_is_left_out() -> None:
    """A producer gave microseconds or nanoseconds as milliseconds: the year 55840, or none at all."""
    start, end = (datetime(2026, 1, 31, hour, tzinfo=UTC) for hour in (12, 13))
    at = [1_769_860_800_000, 1_769_864_399_999, 1_769_864_400_000, 1_700_000_000_000_000, 1_700_000_000_000_000_000]
    batch = pa.RecordBatch.from_pydict({"offset": [*range(5)], "timestamp": pa.array(at, pa.int64())})
    replay = replace(make_replay("g", [a(50, 60)], {}, FOUND), since=start, before=end)
    assert [row["offset"] for row in between(replay, batch).to_pylist()] == [0, 1]
    assert between(replace(replay, since=None, before=None), batch) is batch
