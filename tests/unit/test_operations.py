"""Resets, rewinds and undos planned and done: what is refused, what is told, and that nothing else is touched.

Kafka is a fake here: topics are deleted, made again and shortened between two questions, which a broker does when it
likes. The commands' own tests ask a real one.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, cast
from uuid import UUID

import pytest

from offsetkeeper.core.batch import Output, QueryBatch
from offsetkeeper.core.bounds import Bounds
from offsetkeeper.core.cluster import Cluster, TopicDescription
from offsetkeeper.core.ledger import Ledger
from offsetkeeper.core.model import Entry, Having, Snapshot
from offsetkeeper.core.offsets import OffsetRange, Position, TopicPartition
from offsetkeeper.errors import CorruptStore, NotAllowed, Refused, SettingsError, Stale
from offsetkeeper.operate.audit import Kind, audit
from offsetkeeper.operate.copy import copy
from offsetkeeper.operate.forget import apply_forgetting, plan_forgetting
from offsetkeeper.operate.reset import (
    Shift,
    apply_reset,
    known_history,
    plan_reset,
    plan_rewind,
    plan_undo,
    taken_back,
    taken_back_by,
    undo_reason,
)
from offsetkeeper.operate.reset_plan import Dropped, ResetPlan, load_plan
from offsetkeeper.operate.reset_words import clips_of, notes_of
from offsetkeeper.operate.scope import Scope
from offsetkeeper.stores.memory import MemoryStore

A0, A1, B0, NO = (TopicPartition(*each) for each in (("a", 0), ("a", 1), ("b", 0), ("no", 0)))

BACK = (
    "streaming queries of this group need a new checkpoint to follow this reset; queries with state also need "
    "offsets=. With the old checkpoint their start is refused"
)
AHEAD = (
    "streaming queries of this group skip the records in between; the start of queries with state is refused: "
    "they need a new checkpoint and offsets= to follow this reset"
)
FIRST_OF_B = (
    "without a position until now, so check the names: b. If no program of this group reads them, these positions stay "
    "behind for ever, and undo does not take them out: offsetkeeper forget does"
)


class Brokers:
    """What a cluster is asked for a reset; `found` may be changed at any time."""

    brokers = "kafka:9092"

    def __init__(self) -> None:
        self.found = {A0: Bounds(10, 100, "ida"), A1: Bounds(0, 50, "ida"), B0: Bounds(0, 70, "idb")}
        self.written: dict[TopicPartition, int] = {}  # the ends of partitions that have an open transaction

    with_open_transactions = Cluster.with_open_transactions
    with_cuts = Cluster.with_cuts

    def bounds_of(self, topics: Iterable[TopicDescription]) -> dict[TopicPartition, Bounds]:
        """See `Cluster.bounds_of`."""
        asked = [TopicPartition(each.topic, number) for each in topics for number in each.partitions]
        return {tp: self.found[tp] for tp in asked}

    def describe(self, topics: Iterable[str]) -> dict[str, TopicDescription]:
        """See `Cluster.describe`."""
        numbers: dict[str, list[TopicPartition]] = {}
        for tp in sorted(self.found):
            numbers.setdefault(tp.topic, []).append(tp)
        return {
            topic: TopicDescription(topic, self.found[tps[0]].topic_id, tuple(tp.partition for tp in tps))
            for topic, tps in numbers.items()
            if topic in set(topics)
        }

    def bounds(self, partitions: Collection[TopicPartition], *, isolation: str) -> dict[TopicPartition, Bounds]:
        """See `Cluster.bounds`."""
        assert isolation == "read_uncommitted"
        return {tp: Bounds(self.found[tp].beginning, self.written.get(tp, self.found[tp].end)) for tp in partitions}

    def offsets_for_times(self, partitions: Collection[TopicPartition], _: int) -> dict[TopicPartition, int]:
        """See `Cluster.offsets_for_times`."""
        return {tp: self.found[tp].beginning for tp in partitions}


class Group:
    """A group at a 0: 40 and a 1: 20, as version 4 of its ledger; nobody holds it."""

    def __init__(self) -> None:
        self.kafka = Brokers()
        self.cluster = cast("Cluster", self.kafka)
        self.ledger = Ledger(MemoryStore(f"memory://{secrets.token_hex(8)}"), "g")
        self.ledger.acquire()
        self.ledger.place({A0: Position(10, "ida"), A1: Position(0, "ida")})
        self.ledger.commit(self.ledger.batch([OffsetRange(*A0, 10, 40), OffsetRange(*A1, 0, 20)]))
        self.ledger.release()

    @property
    def offsets(self) -> dict[TopicPartition, int]:
        """Where it stands."""
        return {tp: at.offset for tp, at in self.ledger.load().positions.items()}

    def plan(self, to: Any, *partitions: TopicPartition, **names: Any) -> ResetPlan:
        """Plan a reset."""
        found = self.ledger.load()
        how = {name: names.pop(name) for name in ("history", "clip") if name in names}
        scope, how = Scope(partitions, **names), {"history": self.ledger.history(), **how}
        return plan_reset(found, self.ledger.store.address, self.cluster, to, scope, **how)

    def do(self, plan: ResetPlan, *, force: bool = False) -> None:
        """Do what a plan says."""
        apply_reset(self.ledger, self.cluster, plan, "test", force=force)

    def run(self, *ranges: OffsetRange, **starts: Position) -> None:
        """Let a run place topics' first partitions and commit ranges."""
        self.ledger.acquire()
        self.ledger.place({TopicPartition(topic, 0): at for topic, at in starts.items()})
        for each in ranges:
            self.ledger.commit(self.ledger.batch([each]))
        self.ledger.release()

    def begin(self) -> None:
        """Let a run begin a batch, write one of its outputs, and die."""
        self.ledger.acquire()
        batch = self.ledger.batch([OffsetRange(*A0, 40, 60)])
        self.ledger.begin(batch)
        self.ledger.note_written(batch, "table")
        self.ledger.release()


@pytest.fixture
def group() -> Group:
    return Group()


@pytest.mark.parametrize(
    "to",
    ["earliest", "latest", "current", 20, Shift(-1), datetime(2026, 1, 31, tzinfo=UTC)],
    ids=["earliest", "latest", "current", "an offset", "a shift", "a time"],
)
def test_partitions_that_do_not_exist_are_named_and_nothing_is_planned(group: Group, to: Any) -> None:
    with pytest.raises(Refused, match=r"a 99 does not exist in Kafka.*\n.*no 0 does not exist"):
        group.plan(to, A0, TopicPartition("a", 99), NO)
    with pytest.raises(Refused, match=r"topic no does not exist.*\n.*topic none does not exist"):
        group.plan(to, topics=["a", "no", "none"])


@pytest.mark.parametrize("to", [10**6, Shift(10**6), {A0: 10**6, A1: 10**6}], ids=["offset", "shift", "offsets"])
def test_an_offset_that_kafka_does_not_hold_is_clipped_on_request_and_told(group: Group, to: Any) -> None:
    with pytest.raises(Refused, match="is outside the offsets that Kafka holds"):
        group.plan(to, A0, A1)
    plan = group.plan(to, A0, A1, clip=True)
    ends = {tp: group.kafka.found[tp].end for tp in (A0, A1)}
    assert plan.offsets == ends
    assert [tp for tp, _ in plan.clipped] == [A0, A1]
    assert f"{ends[A0]} is the nearest one that it holds" in clips_of(plan)[0]
    assert load_plan(plan.dump(), "plan") == plan
    back = group.plan(Shift(-(10**6)), A0, clip=True)
    assert back.offsets == {A0: group.kafka.found[A0].beginning}
    assert group.plan(30, A0, clip=True).clipped == ()
    with pytest.raises(Refused, match="does not exist"):
        group.plan({NO: 5}, NO, clip=True)


@pytest.mark.parametrize("to", ["earliest", "latest", "current", Shift(-1)], ids=str)
def test_a_topic_that_was_deleted_is_told_where_all_are_to_move(group: Group, to: Any) -> None:
    del group.kafka.found[A1]
    with pytest.raises(Refused, match="a 1 does not exist in Kafka: leave it out, and name the other partitions"):
        group.plan(to, all_topics=True)
    assert group.plan(to, A0).offsets.keys() == {A0}


def test_partitions_that_are_gone_are_told_where_their_topic_is_named(group: Group) -> None:
    del group.kafka.found[A1]
    plan = group.plan("earliest", topics=["a"])
    assert (plan.offsets, plan.gone) == ({A0: 10}, (A1,))
    assert notes_of(plan) == [BACK, "not moved, because they are no longer in Kafka: a 1"]
    assert (notes_of(group.plan("earliest", A0)), notes_of(group.plan("earliest", topics=["b"]))) == (
        [BACK],
        [AHEAD, FIRST_OF_B],
    )
    with pytest.raises(Refused, match="a 1 does not exist"):
        group.plan("earliest", A1, topics=["a"])


def test_what_streaming_queries_need_to_follow_is_told_of_every_change(group: Group) -> None:
    moved = group.plan({A0: 60, A1: 20})
    assert notes_of(moved) == [AHEAD]
    group.do(moved)
    assert notes_of(plan_undo(group.ledger, group.cluster)[0]) == [BACK]
    assert notes_of(plan_rewind(group.ledger, group.cluster, 4)) == [BACK]
    assert notes_of(group.plan({A0: 80, A1: 10})) == [BACK]
    assert notes_of(group.plan("current", all_topics=True)) == []


def test_what_a_reset_does_to_the_state_of_a_query_and_to_its_output_is_told(group: Group) -> None:
    query = str(UUID(int=1))
    group.ledger.acquire()
    group.ledger.place({}, queries={query: 0})
    assert notes_of(group.plan("earliest", A0)) == [BACK]  # it has done nothing yet
    group.ledger.commit(group.ledger.batch([OffsetRange(*A0, 40, 60)], QueryBatch(query, 0), 7))
    [back] = notes_of(group.plan("earliest", A0))
    [ahead] = notes_of(group.plan({A0: 80}))
    assert re.match(f"streaming query {query} keeps state, and the state does not go back: .*again: delete them", back)
    assert re.match(f"streaming query {query} keeps state, and the state gets none of the records in between", ahead)
    plan = group.plan({A0: 80})
    assert load_plan(plan.dump(), "here") == plan
    other = str(UUID(int=2))
    group.ledger.place({}, queries={other: 1})
    [both] = notes_of(group.plan({A0: 80}))
    assert both.startswith(f"each of the streaming queries {query}, {other} keeps state, and the state gets none")


@pytest.mark.parametrize(
    ("reasons", "told"),
    [(["run"], []), (["run", "by root"], []), (["run", "start"], [BACK]), (["start"], [BACK]), ([""], [BACK])],
)
def test_queries_are_spoken_of_only_where_one_may_have_read_for_the_group(
    group: Group, reasons: list[str], told: list[str]
) -> None:
    """Releases before wrote "start" for direct runs too."""
    for reason in reasons:
        group.ledger.acquire(reason)
    plan = group.plan("earliest", A0)
    assert notes_of(plan) == told
    assert load_plan(plan.dump(), "here") == plan


def test_what_each_output_gets_twice_or_never_is_told(group: Group) -> None:
    """By its kind: of the last run that took the group, also after it was stopped by an owner that writes nothing."""
    outputs = {
        "": Output("Table shop.orders", "append"),
        "keyed": Output("Table shop.last", "upsert"),
        "own": Output("Function"),
        "dead_letters": Output("Topic letters", "append"),
    }
    group.ledger.acquire("start", outputs)
    group.ledger.acquire("to stop the run")
    assert group.ledger.load().outputs == outputs
    plan = group.plan("earliest", A0)
    up_to_it = "whether they are twice is up to the output"
    assert notes_of(plan)[:3] == [
        "the results of up to 30 records come twice into what the last run appends to: the output (Table shop.orders)",
        "the results of up to 30 records come again, over the rows with the same key: output keyed (Table shop.last)",
        f"the results of up to 30 records come again, and {up_to_it}: output own (Function)",
    ]
    assert load_plan(plan.dump(), "here") == plan
    every = "the output (Table shop.orders), output keyed (Table shop.last), output own (Function)"
    [skipped, *_] = notes_of(group.plan({A0: 80}))
    assert skipped == f"the results of up to 40 records that are skipped may not be in {every}"


def test_what_an_earlier_reset_went_over_and_a_way_back_leaves_out_is_told(group: Group) -> None:
    """It is skipped by the earlier one, so this one skips nothing; and who goes back wants to have it."""
    group.do(group.plan(90, A0))
    half = group.plan(60, A0)
    assert [step.skipped for step in half.steps] == [0]
    told = (
        "offsets that were never read, as an earlier reset or start went over them: a 0 40 60. No batch will read them"
    )
    assert [told in note for note in notes_of(half)].count(True) == 1
    assert not any("never read" in note for to in (40, 30, 95) for note in notes_of(group.plan(to, A0)))


def test_a_reset_of_a_group_that_the_store_does_not_have_says_so(group: Group) -> None:
    """Its name may be mistyped."""
    plan = plan_reset(Snapshot("gg"), "store", group.cluster, "earliest", Scope(topics=["a"]))
    assert "the store has no group 'gg' yet, so check the name: this reset makes it" in notes_of(plan)


def test_partitions_without_a_position_are_all_named_where_the_target_is_relative(group: Group) -> None:
    group.kafka.found[TopicPartition("b", 1)] = Bounds(0, 1, "idb")
    with pytest.raises(Refused, match=r"b 0 has no stored position.*\n.*b 1 has no stored position"):
        group.plan(Shift(-1), topics=["a", "b"])


def test_a_plan_that_moves_nothing_changes_nothing(group: Group) -> None:
    """Neither the pending batch nor the owner is lost by it, also by force."""
    group.begin()
    group.ledger.acquire()
    before = group.ledger.load()
    plan = group.plan("current", all_topics=True)
    assert (plan.steps, plan.drops, plan.offsets) == ((), None, {A0: 40, A1: 20})
    group.do(plan, force=True)
    assert group.ledger.load() == before
    assert group.ledger.history(1)[0].event == "acquire"


def landed(group: Group) -> None:
    """Let a batch land, drop it by a reset of a 0, and leave it unsettled."""
    group.ledger.acquire()
    group.ledger.begin(group.ledger.batch([OffsetRange(*A0, 40, 60), OffsetRange(*A1, 20, 30)]), lands_in=["table"])
    group.ledger.release()
    group.do(group.plan(60, A0))


def settled(group: Group) -> dict[TopicPartition, int]:
    """Let a start find that all outputs have the batch."""
    group.ledger.acquire()
    group.ledger.settle("table has it", {"table": ""}, Having.ALL)
    group.ledger.release()
    return group.offsets


def test_a_reset_to_where_a_partition_stands_reads_again_what_a_dropped_batch_has_of_it(group: Group) -> None:
    """It was not done, as nothing moved: then the records counted as done."""
    landed(group)
    plan = group.plan(20, A1)
    assert (plan.steps, plan.stays, plan.once_more) == ((), ((A1, 20),), (OffsetRange(*A1, 20, 30),))
    assert "of that batch these records are read again, also if all outputs have them: a 1 20 30" in notes_of(plan)
    assert load_plan(plan.dump(), "here") == plan
    group.do(plan)
    assert group.ledger.history(1)[0].event == "rewind"
    assert not group.plan(20, A1).moves
    assert settled(group) == {A0: 60, A1: 20}


def test_a_reset_to_the_current_positions_leaves_a_dropped_batch_as_it_is(group: Group) -> None:
    landed(group)
    plan = group.plan("current", all_topics=True)
    assert (plan.moves, notes_of(plan)) == (False, [])
    group.do(plan)
    assert settled(group) == {A0: 60, A1: 30}


def test_what_a_reset_reads_again_of_a_batch_that_an_earlier_one_dropped_is_named(group: Group) -> None:
    landed(group)
    plan = group.plan(45, A0)
    assert plan.once_more == (OffsetRange(*A0, 45, 60),)
    assert load_plan(plan.dump(), "here") == plan


def test_a_way_back_to_before_a_batch_was_dropped_is_done_though_nothing_moves(group: Group) -> None:
    """The preview said that the batch is pending again, and it was not."""
    landed(group)
    group.do(group.plan(40, A0))
    plan = plan_rewind(group.ledger, group.cluster, 7)
    assert (plan.steps, bool(plan.restores), plan.moves) == ((), True, True)
    group.do(plan)
    assert group.ledger.load().pending is not None
    assert group.offsets == {A0: 40, A1: 20}


def test_an_undo_takes_back_the_newest_reset_that_moved_anything(group: Group) -> None:
    group.do(group.plan(30, A0))
    group.ledger.rewind({}, "as an older release did")
    plan, entry = plan_undo(group.ledger, group.cluster)
    assert (entry.version, plan.offsets[A0]) == (5, 40)


def test_an_undo_is_of_the_ledger_as_it_was_loaded_though_another_resets_it_at_this_moment(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    group.do(group.plan(30, A0))
    store, other = group.ledger.store, Ledger(group.ledger.store, "g", name="other")
    history = store.history

    def reset_first(name: str, limit: int = 100) -> Sequence[Entry]:
        monkeypatch.setattr(store, "history", history)
        other.load()
        other.rewind({A1: Position(5, "ida")}, "at this moment")
        return history(name, limit)

    monkeypatch.setattr(store, "history", reset_first)
    plan, entry = plan_undo(group.ledger, group.cluster)
    assert (entry.version, plan.offsets[A0]) == (5, 40)
    with pytest.raises(Stale, match="has changed from version"):
        group.do(plan)
    assert group.offsets == {A0: 30, A1: 5}


def test_no_offsets_are_no_plan(group: Group) -> None:
    with pytest.raises(SettingsError, match="no offsets were given"):
        group.plan({})


def test_names_narrow_the_offsets_that_are_given(group: Group) -> None:
    given = {A0: 15, A1: 5, B0: 7}
    assert group.plan(given).offsets == given
    assert group.plan(given, A0, topics=["b"]).offsets == {A0: 15, B0: 7}
    with pytest.raises(Refused, match=r"a 99 is not among the offsets.*\n.*no partition of no is among"):
        group.plan(given, TopicPartition("a", 99), topics=["no"])


def test_all_topics_are_the_stored_partitions_and_the_others_are_told(group: Group) -> None:
    new = TopicPartition("a", 2)
    group.kafka.found[new] = Bounds(0, 5, "ida")
    plan = group.plan(Shift(-1), all_topics=True)
    assert (plan.offsets, plan.left) == ({A0: 39, A1: 19}, (new,))
    assert notes_of(plan) == [
        BACK,
        "not moved, because they have no position in the topic, and a start reads them from their beginning: a 2",
    ]
    assert group.plan("earliest", topics=["b"], all_topics=True).offsets == {A0: 10, A1: 0, B0: 0}
    assert group.plan("earliest", topics=["a"]).offsets == {A0: 10, A1: 0, new: 0}


def test_partitions_that_are_not_named_and_have_no_position_are_told(group: Group) -> None:
    """A start reads them from their beginning, also one that begins at the latest: the topic is known then."""
    new = TopicPartition("c", 0), TopicPartition("c", 1)
    group.kafka.found |= dict.fromkeys(new, Bounds(0, 100, "idc"))
    assert group.plan({new[0]: 90}).left == new[1:]
    assert group.plan(90, new[0]).left == new[1:]
    assert group.plan(90, *new).left == ()
    assert group.plan({A0: 15}).left == ()
    group.ledger.snapshot = replace(group.ledger.snapshot, missing=frozenset(new[1:]))
    assert plan_reset(group.ledger.snapshot, "memory://s", group.cluster, {new[0]: 90}).left == ()


def test_a_batch_that_is_dropped_is_told_before(group: Group) -> None:
    group.begin()
    pending = group.ledger.load().pending
    assert pending is not None
    plan = group.plan(30, A1, A0)
    assert plan.drops == Dropped(pending.id, ("table",), (), pending.ranges)
    assert notes_of(plan) == [
        f"batch {pending.id} was begun and not committed: it is dropped, and undo does not restore it",
        "these records of that batch are read again, and may come twice into outputs that have it: a 0 40 60",
        "output table already has that batch",
        "an output without a mark may have that batch, and cannot be asked",
        BACK,
    ]
    group.do(plan)
    group.do(plan_undo(group.ledger, group.cluster)[0])
    assert group.ledger.load().pending is None


def test_a_position_that_a_reset_gave_first_is_not_taken_back_in_silence(group: Group) -> None:
    group.do(group.plan({A0: 30, B0: 70}))
    told = "b 0 had no position then and is at 70 now: .* Do that with offsetkeeper forget g b:0"
    for version in (2, 4):
        with pytest.raises(Refused, match=told):
            plan_rewind(group.ledger, group.cluster, version)
    with pytest.raises(Refused, match=told):
        plan_undo(group.ledger, group.cluster)
    group.do(plan_undo(group.ledger, group.cluster, Scope(topics=["a"]))[0])
    assert group.offsets == {A0: 40, A1: 20, B0: 70}
    with pytest.raises(Refused, match="no partition of c is among the positions of group 'g'"):
        plan_undo(group.ledger, group.cluster, Scope(topics=["c"]))


def forget(group: Group, *partitions: TopicPartition, topics: Collection[str] = ()) -> None:
    """Take positions out of the ledger."""
    apply_forgetting(group.ledger, plan_forgetting(group.ledger.load(), Scope(partitions, topics)), "test")


def test_a_position_of_a_topic_that_the_group_never_read_is_told_and_can_be_forgotten(group: Group) -> None:
    """A typo in --topic: `lag` said "stopped" for ever, and no command took the position out."""
    reset = group.plan("latest", topics=["b"])
    assert FIRST_OF_B in notes_of(reset)
    group.do(reset)
    forget(group, topics=["b"])
    found = group.ledger.load()
    assert group.offsets == {A0: 40, A1: 20}
    assert (found.missing, audit(group.ledger.history()[::-1], found)) == (frozenset(), [])
    group.do(plan_undo(group.ledger, group.cluster)[0])
    assert group.offsets == {A0: 40, A1: 20, B0: 70}


def test_an_undo_puts_back_what_was_forgotten_also_after_a_start_began_it_anew(group: Group) -> None:
    forget(group, A0)
    group.ledger.acquire()
    group.ledger.place({A0: Position(10, "ida")})
    group.ledger.commit(group.ledger.batch([OffsetRange(*A0, 10, 25), OffsetRange(*A1, 20, 30)]))
    group.ledger.release()
    found = audit(group.ledger.history()[::-1], group.ledger.load())
    assert [(each.kind, each.start, each.end, each.explained) for each in found] == [(Kind.OVERLAP, 10, 40, True)]
    assert plan_rewind(group.ledger, group.cluster, 6).offsets == {A0: 10, A1: 20}
    plan, entry = plan_undo(group.ledger, group.cluster, Scope(topics=["a"]))
    assert (entry.event, plan.offsets) == ("forget", {A0: 40, A1: 20})
    group.do(plan)
    assert audit(group.ledger.history()[::-1], group.ledger.load())[0].explained


def test_what_is_forgotten_and_put_back_at_once_has_left_nothing(group: Group) -> None:
    forget(group, A0, A1)
    assert group.offsets == {}
    group.do(plan_undo(group.ledger, group.cluster)[0])
    assert group.offsets == {A0: 40, A1: 20}
    assert audit(group.ledger.history()[::-1], group.ledger.load()) == []
    assert counted(group.plan("earliest", A0), A0) == (30, 0)


def test_a_position_that_the_store_has_lost_is_forgotten_and_undo_goes_past_that(group: Group) -> None:
    group.do(group.plan({A1: 15}))
    store = group.ledger.store
    assert isinstance(store, MemoryStore)
    del store.memory.positions["g"][A0]
    assert group.ledger.load().missing == {A0}
    plan = plan_forgetting(group.ledger.snapshot, Scope({A0}))
    assert plan.as_dict()["positions"] == [
        {"topic": "a", "partition": 0, "position": None, "start": "from its beginning"}
    ]
    assert "the store has lost these positions, so undo cannot put them back: a 0" in plan.notes
    apply_forgetting(group.ledger, plan, "clean-up")
    found = group.ledger.load()
    assert (found.missing, group.offsets) == (frozenset(), {A1: 15})
    assert [each.kind for each in audit(group.ledger.history()[::-1], found)] == [Kind.OVERLAP]
    _, entry = plan_undo(group.ledger, group.cluster, Scope(topics=["a"]))
    assert (entry.event, entry.reason) == ("rewind", "test")


def test_an_undo_names_what_it_takes_back_and_the_copies_since(group: Group) -> None:
    """A reset here, a copy elsewhere, resets in both and a copy back: undo took back the first one without a word."""
    group.do(group.plan({A0: 60}))
    _, entry = plan_undo(group.ledger, group.cluster)
    [told] = taken_back(group.ledger, entry)
    assert re.fullmatch(
        r"this takes back version 5, a rewind by .* at \d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00: test", told
    )
    here, there = group.ledger.store, MemoryStore(f"memory://{secrets.token_hex(8)}")
    copy("g", here, there)
    group.ledger = Ledger(there, "g")
    _, entry = plan_undo(group.ledger, group.cluster)
    assert (entry.reason, len(taken_back(group.ledger, entry))) == ("test", 1)  # this history is whole
    group.do(group.plan({A0: 80}))
    copy("g", there, here, overwrite=True)
    group.ledger = Ledger(here, "g")
    plan, entry = plan_undo(group.ledger, group.cluster)
    assert (plan.offsets, len(taken_back(group.ledger, entry))) == ({A0: 60}, 2)  # this one too; a reset stays
    group.do(group.plan({A0: 70}))
    now = group.ledger.snapshot.version
    group.ledger = Ledger(there, "g")
    group.do(group.plan({A0: 90}))
    copy("g", there, here, overwrite=True)
    group.ledger = Ledger(here, "g")
    plan, entry = plan_undo(group.ledger, group.cluster)
    notes = taken_back(group.ledger, entry)
    assert (entry.version, plan.offsets) == (now, {A0: 80})
    assert notes[1].startswith(f"it also takes back version {now + 1}, a copy by ")
    assert there.address in notes[1]


def test_an_undo_names_the_resets_before_it_that_stay(group: Group) -> None:
    """Two wrong resets: the first undo took back one of them, and the second one that undo."""
    group.do(group.plan({A0: 60}))
    group.do(group.plan({A1: 10}))
    plan, entry = plan_undo(group.ledger, group.cluster)
    [_, stays] = taken_back(group.ledger, entry)
    assert re.fullmatch(
        "an earlier reset stays: version 5, .* go back to before it: offsetkeeper rewind g --version 4", stays
    )
    apply_reset(group.ledger, group.cluster, plan, undo_reason(entry, "by ann"))
    _, entry = plan_undo(group.ledger, group.cluster)
    [_, once_more, stays] = taken_back(group.ledger, entry)
    assert once_more == "version 7 took back version 6: this makes that change once more"
    assert stays.endswith("offsetkeeper rewind g --version 4")
    assert plan_rewind(group.ledger, group.cluster, 4).offsets == {A0: 40}
    assert len(taken_back(group.ledger, entry, Scope([A1]))) == 1  # that undo leaves A0 alone
    group.run(OffsetRange(*A0, 60, 70))
    group.do(group.plan({A1: 10}))
    _, entry = plan_undo(group.ledger, group.cluster)
    assert len(taken_back(group.ledger, entry)) == 1  # what was read since is not unread by going further back


def test_no_way_back_leads_to_a_reset_that_was_undone(group: Group) -> None:
    """A wrong reset, its undo, another wrong reset: the version before the undo is that of the first one."""
    group.do(group.plan({A0: 90}))
    plan, entry = plan_undo(group.ledger, group.cluster)
    apply_reset(group.ledger, group.cluster, plan, undo_reason(entry))
    group.do(group.plan({A0: 70}))
    _, entry = plan_undo(group.ledger, group.cluster)
    assert len(taken_back(group.ledger, entry)) == 1
    plan, entry = plan_undo(group.ledger, group.cluster)
    apply_reset(group.ledger, group.cluster, plan, undo_reason(entry, "by ann"))
    plan, entry = plan_undo(group.ledger, group.cluster)
    apply_reset(group.ledger, group.cluster, plan, undo_reason(entry))
    group.do(group.plan({A0: 60}))
    _, entry = plan_undo(group.ledger, group.cluster)
    assert len(taken_back(group.ledger, entry)) == 1  # an undo was undone: nothing is said of the resets before


@pytest.mark.parametrize(
    ("reason", "version"),
    [
        ("undo of version 8", 8),
        ("undo of version 8 (by ann)", 8),
        ("undo of version 8; wrong day (by ann)", 8),
        ("wrong day; undo of version 8; through serve, from 127.0.0.1", 8),
        ("go past what the undo of version 8 brought back (by ann)", None),
        ("by ann", None),
    ],
)
def test_an_undo_is_known_by_its_reason(reason: str, version: int | None) -> None:
    assert taken_back_by(Entry(9, "rewind", "id", 0, "me", reason=reason)) == version


def test_an_undo_names_a_copy_that_took_a_position_out_and_goes_back_to_before_it(group: Group) -> None:
    here, there = group.ledger.store, MemoryStore(f"memory://{secrets.token_hex(8)}")
    copy("g", here, there)
    elsewhere = Ledger(there, "g")
    elsewhere.load()
    elsewhere.forget([A1], "reads it no more")
    group.do(group.plan({A1: 15}))
    copy("g", there, here, overwrite=True)
    assert group.offsets == {A0: 40}
    plan, entry = plan_undo(group.ledger, group.cluster)
    assert (entry.event, entry.reason, plan.offsets) == ("rewind", "test", {A1: 20})
    assert [re.findall(", a ([a-z]+) by", note) for note in taken_back(group.ledger, entry)] == [["rewind"], ["copy"]]


def test_what_a_start_does_with_a_forgotten_partition_is_told(group: Group) -> None:
    some, every = (plan_forgetting(group.ledger.load(), Scope({A0}, topics)) for topics in ((), ("a",)))
    assert [some.start(tp) for tp, _ in some.positions] == ["from its beginning"]
    assert [every.start(tp) for tp, _ in every.positions] == ["where start= says"] * 2
    assert (len(some.notes), len(every.notes)) == (4, 5)
    forget(group, A0)
    rest = plan_forgetting(group.ledger.load(), Scope({A1}))
    assert rest.before == (A0,)
    assert rest.notes[-1].endswith("and now reads them where start= says: a 0")
    assert plan_forgetting(group.ledger.load(), Scope({A1})).start(A1) == "where start= says"
    with pytest.raises(Refused, match="no partition of c is among the positions of group 'g'"):
        plan_forgetting(group.ledger.load(), Scope((), ["c"]))
    with pytest.raises(SettingsError, match="say which positions"):
        plan_forgetting(group.ledger.load(), Scope())


def test_what_the_refusal_of_an_undo_advises_leads_to_it(group: Group) -> None:
    """Though the newest reset is then the one that was advised."""
    group.do(group.plan("latest", topics=["a", "b"]))
    with pytest.raises(Refused, match="reset this partition, for example to earliest, and name the partitions"):
        plan_undo(group.ledger, group.cluster)
    group.do(group.plan("earliest", B0))
    plan, entry = plan_undo(group.ledger, group.cluster, Scope(topics=["a"]))
    group.do(plan)
    assert (entry.version, group.offsets) == (5, {A0: 40, A1: 20, B0: 0})


def test_undos_of_some_partitions_take_one_reset_back_part_by_part(group: Group) -> None:
    group.do(group.plan(15, topics=["a"]))
    for tp in (A0, A1):
        plan, entry = plan_undo(group.ledger, group.cluster, Scope([tp]))
        group.do(plan)
        assert entry.version == 5
    assert group.offsets == {A0: 40, A1: 20}


def test_an_undo_of_some_partitions_is_undone_by_the_next_one_of_them_or_of_all(group: Group) -> None:
    group.do(group.plan(15, topics=["a"]))
    group.do(plan_undo(group.ledger, group.cluster, Scope([A0]))[0])
    for named, a0 in (([A0], 15), ([A0], 40), ([], 15), ([], 40)):
        group.do(plan_undo(group.ledger, group.cluster, Scope(named))[0])
        assert group.offsets == {A0: a0, A1: 15}


def test_an_undo_takes_nothing_back_where_no_reset_moved_what_is_named(group: Group) -> None:
    group.run(b=Position(5, "idb"))
    group.do(group.plan(30, A0))
    group.run(OffsetRange(*B0, 5, 60))
    with pytest.raises(NotAllowed, match="no reset of these partitions to undo"):
        plan_undo(group.ledger, group.cluster, Scope(topics=["b"]))


def test_a_way_back_to_what_retention_has_cut_is_refused_or_clipped_and_what_is_lost_is_counted(group: Group) -> None:
    """The refusal had no remedy: a reset could be clipped, a rewind and an undo could not."""
    group.do(group.plan("latest", A0, A1))
    group.kafka.found[A0] = Bounds(65, 100, "ida")
    ways: list[Callable[[bool], ResetPlan]] = [
        lambda clip: plan_undo(group.ledger, group.cluster, clip=clip)[0],
        lambda clip: plan_rewind(group.ledger, group.cluster, 3, clip=clip),
    ]
    for plan in ways:
        with pytest.raises(Refused, match=r"a 0: offset 40 .* 65 to 100 \(25 offsets are lost\)\. --clip takes"):
            plan(False)  # noqa: FBT003 - clip
        made = plan(True)  # noqa: FBT003
        assert (made.offsets, made.lost, made.clipped) == ({A0: 65, A1: 20}, {A0: 25}, ((A0, 40),))
        assert clips_of(made) == [
            "a 0: Kafka does not hold offset 40; 65 is the nearest one that it holds. 25 offsets in between are lost"
        ]
        assert load_plan(made.dump(), "here") == made
    group.do(made)
    assert group.offsets == {A0: 65, A1: 20}


def test_clipped_back_from_beyond_the_end_nothing_is_lost(group: Group) -> None:
    assert group.plan(120, A0, clip=True).lost == {}
    assert group.plan(4, A0, clip=True).lost == {A0: 6}


def test_offsets_below_0_are_never_lost_as_no_record_ever_had_them(group: Group) -> None:
    with pytest.raises(Refused) as refused:
        group.plan(Shift(-100), topics=["a"])
    asked = [line.partition(": ")[2] for line in str(refused.value).splitlines()[1:]]
    assert [line[: line.index(". --clip")] for line in asked] == [
        "offset -60 is outside the offsets that Kafka holds, 10 to 100 (10 offsets are lost)",
        "offset -80 is outside the offsets that Kafka holds, 0 to 50",
    ]
    made = group.plan(Shift(-100), topics=["a"], clip=True)
    assert (made.lost, made.clipped) == ({A0: 10}, ((A0, -60), (A1, -80)))
    assert clips_of(made) == [
        "a 0: Kafka does not hold offset -60; 10 is the nearest one that it holds. 10 offsets in between are lost",
        "a 1: Kafka does not hold offset -80; 0 is the nearest one that it holds",
    ]


def test_a_topic_that_was_made_again_is_not_clipped_into(group: Group) -> None:
    group.do(group.plan("latest", A0))
    group.kafka.found[A0] = Bounds(65, 100, "another")
    with pytest.raises(Refused, match="created again"):
        plan_undo(group.ledger, group.cluster, clip=True)


def test_the_reset_that_made_a_group_is_not_undone_in_silence(group: Group) -> None:
    group.ledger = Ledger(group.ledger.store, "new")
    group.do(group.plan("latest", topics=["b"]))
    with pytest.raises(Refused, match="b 0 had no position then and is at 70 now"):
        plan_undo(group.ledger, group.cluster)
    with pytest.raises(NotAllowed, match="give a version from 1"):
        plan_rewind(group.ledger, group.cluster, 0)


def test_what_a_run_began_to_read_since_goes_back_to_where_it_began(group: Group) -> None:
    group.do(group.plan(30, A0))
    group.run(OffsetRange(*B0, 5, 60), OffsetRange(*A0, 30, 35), b=Position(5, "idb"))
    group.do(plan_undo(group.ledger, group.cluster)[0])
    assert group.offsets == {A0: 40, A1: 20, B0: 5}
    group.do(plan_rewind(group.ledger, group.cluster, 1))
    assert group.offsets == {A0: 10, A1: 0, B0: 5}


def test_offsets_of_a_topic_that_was_made_again_are_refused(group: Group) -> None:
    """An offset of the topic there was means other records now, though Kafka holds it."""
    group.kafka.found[A0] = Bounds(0, 100, "new")
    told = (
        "a 0: the topic was deleted and created again since; offset {} means another record now. Reset it to earliest"
    )
    with pytest.raises(Refused, match=told.format(35)):
        group.plan(Shift(-5), A0)
    with pytest.raises(Refused, match=told.format(40)):
        group.plan("current", A0)
    assert group.plan("earliest", A0).positions == group.plan(0, A0).positions == {A0: Position(0, "new")}
    group.run(OffsetRange(*A0, 0, 90), a=Position(0, "new"))
    with pytest.raises(Refused, match=told.format(40)):
        plan_rewind(group.ledger, group.cluster, 4)
    group.do(group.plan(10, A1))
    group.do(plan_rewind(group.ledger, group.cluster, 4, Scope([A1])))
    assert group.offsets == {A0: 90, A1: 20}


def test_a_group_in_an_open_transaction_is_moved_from_there_and_back(group: Group) -> None:
    """A run that reads uncommitted records got to 120, past the last stable offset: Kafka holds what lies before it."""
    group.kafka.written[A0] = 130
    group.run(OffsetRange(*A0, 40, 120))
    plan = group.plan(Shift(-5), all_topics=True)
    assert (plan.offsets, plan.steps[0].replayed) == ({A0: 115, A1: 15}, 5)
    for to in ("current", "latest"):
        assert group.plan(to, A0).offsets == {A0: 120}
    group.do(plan)
    group.do(plan_undo(group.ledger, group.cluster)[0])
    group.do(group.plan(90, A0))
    group.do(plan_undo(group.ledger, group.cluster)[0])
    assert group.offsets == {A0: 120, A1: 20}
    assert group.plan({A0: 130}).offsets == {A0: 130}
    with pytest.raises(Refused, match="a 0: offset 131 is outside the offsets that Kafka holds, 10 to 120"):
        group.plan(131, A0)


def test_a_position_of_a_topic_that_was_made_again_lies_in_none_of_its_transactions(group: Group) -> None:
    group.kafka.found[A0] = Bounds(0, 30, "new")
    group.kafka.written[A0] = 50
    assert group.plan("latest", A0).positions == {A0: Position(30, "new")}


def test_a_way_back_asks_nothing_of_what_stands_there_already(group: Group) -> None:
    group.do(group.plan(10, A1))
    del group.kafka.found[A0]
    group.do(plan_undo(group.ledger, group.cluster)[0])
    assert group.offsets == {A0: 40, A1: 20}


@pytest.mark.parametrize(
    ("now", "told"),
    [
        ({A0: Bounds(30, 100, "ida")}, "a 0: offset 20 is outside the offsets that Kafka holds, 30 to 100"),
        ({A0: Bounds(0, 100, "new")}, "a 0: the topic was deleted and created again since"),
        ({}, "a 0 does not exist in Kafka"),
    ],
    ids=["retention", "made again", "deleted"],
)
def test_a_plan_is_held_against_kafka_again_when_it_is_done(group: Group, now: Any, told: str) -> None:
    plan = group.plan(20, A0)
    group.kafka.found = now
    before = group.ledger.load()
    with pytest.raises(Refused, match=told):
        group.do(plan)
    assert group.ledger.load() == before


def counted(plan: ResetPlan, tp: TopicPartition) -> tuple[int, int]:
    """Return how many offsets are read again and how many are skipped, of a partition that moves."""
    [step] = [step for step in plan.steps if step.topic_partition == tp]
    return step.replayed, step.skipped


def test_what_was_skipped_is_not_read_again_but_read(group: Group) -> None:
    """An undo of a skip said that all records since then are read again: most of them had never been read."""
    group.do(group.plan({A0: 80}))
    group.run(OffsetRange(*A0, 80, 90))
    plan, _ = plan_undo(group.ledger, group.cluster)
    assert (plan.offsets[A0], counted(plan, A0)) == (40, (10, 0))
    assert counted(group.plan("earliest", A0), A0) == (40, 0)
    group.do(plan)
    assert counted(group.plan({A0: 85}), A0) == (5, 40)


def test_what_was_read_before_is_not_skipped(group: Group) -> None:
    group.do(group.plan({A0: 20}))
    assert counted(group.plan({A0: 30}), A0) == (10, 0)
    assert counted(group.plan({A0: 50}), A0) == (0, 10)
    group.run(OffsetRange(*A0, 20, 30))
    assert counted(group.plan({A0: 60}), A0) == (0, 20)


def test_what_lies_before_the_first_position_may_come_again_and_is_never_called_read(group: Group) -> None:
    """The group began at the latest, or was moved here from elsewhere: nobody knows."""
    ledger = Ledger(group.ledger.store, "new")
    ledger.acquire()
    ledger.place({A0: Position(60, "ida")})
    ledger.commit(ledger.batch([OffsetRange(*A0, 60, 70)]))
    ledger.release()

    def plan(to: Any) -> tuple[int, int]:
        history = ledger.history()
        return counted(plan_reset(ledger.load(), "memory://s", group.cluster, to, history=history), A0)

    assert plan("earliest") == (60, 0)
    ledger.rewind({A0: Position(20, "ida")}, "all of it")
    assert plan("latest") == (0, 70), "20 to 60, and 70 to 100"


def test_a_group_that_comes_back_to_a_cluster_reads_again_what_it_read_there(group: Group) -> None:
    here, there = (Bounds(0, 100, cluster_id=name) for name in ("here", "there"))
    ledger = Ledger(group.ledger.store, "moved")
    ledger.acquire()
    ledger.place({A0: Position(0, cluster_id="here")})
    ledger.commit(ledger.batch([OffsetRange(*A0, 0, 50)]))
    ledger.release()
    ledger.rewind({A0: Position(10, cluster_id="there")}, "to the new cluster")
    group.kafka.found = {A0: there}
    assert counted(plan_reset(ledger.load(), "", group.cluster, {A0: 0}, history=ledger.history()), A0) == (0, 0)
    ledger.rewind({A0: Position(50, cluster_id="here")}, "back")
    group.kafka.found = {A0: here}
    assert counted(plan_reset(ledger.load(), "", group.cluster, {A0: 0}, history=ledger.history()), A0) == (50, 0)
    [gap] = audit(ledger.history()[::-1], ledger.load())
    assert (gap.kind, gap.start, gap.end) == (Kind.GAP, 0, 10), "of the new cluster"


def test_what_was_read_below_the_first_position_is_not_skipped_again(group: Group) -> None:
    """The group began at the latest, a reset brought it to records before that, and they were read."""
    ledger = Ledger(group.ledger.store, "new")
    ledger.acquire()
    ledger.place({A0: Position(60, "ida")})
    ledger.rewind({A0: Position(50, "ida")}, "some of it")
    ledger.acquire()
    ledger.commit(ledger.batch([OffsetRange(*A0, 50, 60)]))
    ledger.release()
    ledger.rewind({A0: Position(40, "ida")}, "more of it")
    plan = plan_reset(ledger.load(), "", group.cluster, {A0: 70}, history=ledger.history())
    assert counted(plan, A0) == (0, 20), "40 to 50, and 60 to 70"
    plan = plan_reset(ledger.load(), "", group.cluster, "earliest", history=ledger.history())
    assert counted(plan, A0) == (50, 0), "50 to 60; of 10 to 50 nothing is known"


@pytest.mark.parametrize(("to", "numbers"), [("earliest", (40, 0)), ({A0: 60}, (10, 0)), ("latest", (0, 30))])
def test_a_reset_back_to_a_cluster_counts_what_was_read_there(group: Group, to: Any, numbers: tuple[int, int]) -> None:
    """The preview called all of the cluster unread: nothing came again, and all before the new offset was skipped."""
    ledger = Ledger(group.ledger.store, "moved")
    ledger.acquire()
    ledger.place({A0: Position(0, cluster_id="here")})
    ledger.commit(ledger.batch([OffsetRange(*A0, 0, 70)]))
    ledger.release()
    ledger.rewind({A0: Position(5, cluster_id="there")}, "to the new cluster")
    group.kafka.found = {A0: Bounds(30, 100, cluster_id="here")}
    named = () if isinstance(to, dict) else (A0,)
    plan = plan_reset(ledger.load(), "", group.cluster, to, Scope(named), history=ledger.history())
    assert counted(plan, A0) == numbers


def test_a_history_with_a_gap_counts_as_far_as_it_has_none(group: Group) -> None:
    group.run(OffsetRange(*A0, 40, 50))
    group.run(OffsetRange(*A0, 50, 60))
    found, entries = group.ledger.load(), group.ledger.history()
    pruned = [entry for entry in entries if entry.version != 5]
    plan = plan_reset(found, "memory://s", group.cluster, "earliest", history=pruned)
    assert counted(plan, A0) == (50, 0)


def test_a_damaged_history_refuses_no_reset(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    history = group.ledger.store.history

    def damaged(name: str, limit: int = 100) -> Sequence[Entry]:
        if limit > 25:
            raise CorruptStore("a line")
        return history(name, limit)

    group.do(group.plan(30, A0))
    monkeypatch.setattr(group.ledger.store, "history", damaged)
    group.ledger.load()
    assert known_history(group.ledger) == ()
    assert counted(plan_rewind(group.ledger, group.cluster, 4), A0) == (0, 0)
