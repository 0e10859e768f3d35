"""Promises that were once not kept, each with its rows counted: what a preview said, and what came."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from offsetkeeper.core.model import Guarantee
from offsetkeeper.core.offsets import OffsetRange
from offsetkeeper.core.plan import Policies
from offsetkeeper.errors import Refused, Stale, StartRefused
from offsetkeeper.operate.audit import Kind
from offsetkeeper.operate.copy import copy
from offsetkeeper.operate.forget import Forgetting
from offsetkeeper.operate.outlook import outlook
from offsetkeeper.operate.reset import Shift, apply_reset, plan_reset, plan_rewind
from offsetkeeper.operate.reset_plan import ResetPlan, load_plan
from offsetkeeper.operate.reset_words import clips_of, notes_of
from offsetkeeper.operate.scope import Scope
from offsetkeeper.testing.simulator.kafka import FIRST, GROUP, TOPIC, ModelPlace, ModelTopic
from offsetkeeper.testing.simulator.operators import forget_positions
from offsetkeeper.testing.simulator.world import World
from simulator.counted import GROUPS, P0, P1, P2, Counted, counted, died, made


def test_what_a_dropped_batch_has_of_a_partition_that_does_not_move_is_named_and_comes_once() -> None:
    """The preview said "read again 0", and its rows came twice; `verify` told a gap over rows that were there."""
    with died("marked, from the earliest", it=True) as group:
        plan = group.reset("latest", P1)
        assert plan.drops is not None
        assert [(r.partition, r.start, r.end) for r in plan.drops.stays] == [(0, 0, 1)]
        group.run()
        assert group.rows() == {(0, 0): 1, (0, 1): 1, (1, 0): 1}
        assert (group.findings(Kind.GAP), group.findings(Kind.OVERLAP)) == ({(1, 1, 2)}, set())


@pytest.mark.parametrize("it", [True, False], ids=["the output has it", "it has not"])
def test_a_plan_says_what_of_a_dropped_batch_counts_as_done_if_its_output_has_it(it: bool) -> None:  # noqa: FBT001
    """It said that the first batch begins with these records, which were not read again."""
    with died("marked, from the earliest", it=it) as group:
        group.reset("latest", P1)
        ahead = outlook(group.world.store.state.snapshot, (), Guarantee.EXACTLY_ONCE, Policies())
        assert (ahead.counts, ahead.positions[P0].offset) == ((OffsetRange(*P0, 0, 1),), 0)
        group.run()
        assert group.commits() == [(OffsetRange(*P0, 1 if it else 0, 2),)]
        assert group.rows() == {(0, 0): 1, (0, 1): 1} | ({(1, 0): 1} if it else {})


def test_what_a_function_may_have_of_a_dropped_batch_is_named_and_comes_again() -> None:
    with died("at least once, from the earliest", it=True) as group:
        plan = group.reset("latest", P1)
        assert plan.drops is not None
        assert [(r.partition, r.start, r.end) for r in plan.drops.again] == [(0, 0, 1)]
        assert "an output without a mark may have that batch, and cannot be asked" in notes_of(plan)
        group.run()
        assert group.rows() == {(0, 0): 2, (0, 1): 1, (1, 0): 1}


def test_what_a_function_may_have_of_a_batch_that_was_dropped_is_named_when_it_is_undone() -> None:
    """The preview of the undo said "read again 0", and the record came twice."""
    with died("at least once, from the earliest", it=True) as group:
        group.reset("latest", P1)
        plan = group.undo()
        assert [each for step in plan.steps for each in step.perhaps_again] == [OffsetRange(*P1, 0, 1)]
        assert any("may come twice: orders 1 0 1" in note for note in notes_of(plan))
        group.run()
        assert group.rows() == {(0, 0): 2, (0, 1): 1, (1, 0): 2, (1, 1): 1}


def test_what_one_of_two_outputs_has_of_a_batch_that_was_dropped_is_named_when_it_is_read_again() -> None:
    """The second reset said "read again 0", and had no note."""
    with died("two marked, from the earliest", one=True, two=False) as group:
        group.reset("latest", P0, P1)
        group.run()
        plan = group.reset("earliest", P0, P1)
        assert [each for step in plan.steps for each in step.perhaps_again] == [(*P0, 0, 1), (*P1, 0, 1)]
        group.run()
        assert group.rows("one") == {(0, 0): 2, (0, 1): 1, (1, 0): 2, (1, 1): 1}
        assert group.rows("two") == dict.fromkeys(group.there(), 1)


def test_an_undo_of_what_dropped_a_batch_brings_it_back_and_its_records_come_once() -> None:
    with died("marked, from the earliest", it=True) as group:
        group.reset("latest", P1)
        assert group.undo().restores
        group.run()
        assert group.rows() == dict.fromkeys(group.there(), 1)


def test_what_one_of_two_outputs_has_of_a_dropped_batch_comes_twice_there_and_verify_says_so() -> None:
    """The column said 0, and `verify` was silent."""
    with died("two marked, from the earliest", one=True, two=False) as group:
        plan = group.reset("latest", P1)
        assert plan.drops is not None
        assert [(r.partition, r.start, r.end) for r in plan.drops.stays] == [(0, 0, 1)]
        group.run()
        assert group.rows("one") == {(0, 0): 2, (0, 1): 1, (1, 0): 1}
        assert group.rows("two") == {(0, 0): 1, (0, 1): 1}
        assert group.findings(Kind.OVERLAP) == {(0, 0, 1)}


@pytest.mark.parametrize("to", ["earliest", "latest"])
def test_of_a_topic_that_was_made_again_all_is_skipped_or_read_once(to: str) -> None:
    """The preview subtracted the old offsets from the new ones: "skipped 10", and 60 were never read."""
    with counted("marked, from the earliest") as group:
        group.run()
        group.happen("the topic is made again")
        new = group.there()
        plan = group.reset(to, P0, P1)
        assert [(step.replayed, step.another) for step in plan.steps] == [(0, True)] * 2
        skipped = sum(step.skipped for step in plan.steps)
        assert skipped == (len(new) if to == "latest" else 0)
        group.run()
        assert group.rows() == {(p, n): 1 for p in (0, 1) for n in (0, 1)}
        ids = {record[1] for record in group.world.cluster.records()}
        assert len(group.rows(topic_id=ids.pop())) == len(new) - skipped
        gaps = sum(end - start for _, start, end in group.findings(Kind.GAP))
        assert (gaps, group.findings(Kind.OVERLAP)) == (skipped, set())


def test_of_a_batch_under_way_of_a_topic_that_was_made_again_nothing_comes_again() -> None:
    """The preview said "read again 20", none was there twice, and `verify` told an overlap."""
    with died("marked, from the earliest", it=True) as group:
        group.happen("the topic is made again")
        plan = group.reset("earliest", P0, P1)
        assert plan.drops is not None
        assert (plan.drops.again, plan.drops.stays, [s.replayed for s in plan.steps]) == ((), (), [0, 0])
        group.run()
        assert set(group.rows().values()) == {1}
        ids = {record[1] for record in group.world.cluster.records()}
        assert group.rows(topic_id=ids.pop()) == dict.fromkeys(group.there(), 1)
        assert group.findings(Kind.OVERLAP) == set()


def test_a_partition_that_a_first_reset_does_not_name_is_told_and_read_from_its_beginning() -> None:
    """The program says start="latest", and `plan` had said to skip its records."""
    with counted("marked, from the latest") as group:
        plan = group.reset({P0: 1})
        assert plan.left == (P1,)
        assert any(note.endswith(f"a start reads them from their beginning: {P1}") for note in notes_of(plan))
        group.run()
        assert group.rows() == {(0, 1): 1, (1, 0): 1, (1, 1): 1}


def test_a_partition_that_was_added_is_told_where_all_topics_move_and_is_read() -> None:
    with counted("marked, from the earliest") as group:
        group.run()
        group.happen("a partition is added")
        group.happen("records arrive")
        plan = group.reset("latest", scope=Scope(all_topics=True))
        assert plan.left == (P2,)
        skipped = {(number, offset) for number, offset in group.there() if number < P2.partition and offset >= 2}
        assert sum(step.skipped for step in plan.steps) == len(skipped)
        group.run()
        assert group.rows() == dict.fromkeys(group.there() - skipped, 1)
        assert any(number == P2.partition for number, _ in group.rows())


def test_an_undo_of_a_skip_counts_what_was_read_since() -> None:
    """It said that all comes again from the old offset on; what was skipped came for the first time."""
    with counted("marked, from the earliest") as group:
        group.run()
        group.happen("records arrive")
        group.reset("latest", P0, P1)
        group.happen("records arrive")
        group.run()
        before = group.rows()
        plan = group.undo()
        group.run()
        rows = group.rows()
        again = [each for each in rows if rows[each] > 1]
        assert rows.keys() == group.there()
        assert sum(step.replayed for step in plan.steps) == len(again) > 0
        assert set(again) < set(before)


def test_a_topic_that_was_forgotten_comes_again_from_where_the_preview_says() -> None:
    with counted("marked, from the earliest") as group:
        group.run()
        plan: Forgetting = group.do(lambda world: forget_positions(world, Scope([P1])))
        assert [plan.start(tp) for tp, _ in plan.positions] == ["from its beginning"]
        group.run()
        assert group.rows() == {(0, 0): 1, (0, 1): 1, (1, 0): 2, (1, 1): 2}
        assert group.findings(Kind.OVERLAP) == {(1, 0, 2)}


def test_what_retention_has_cut_before_a_rewind_is_counted_as_lost_and_the_rest_comes() -> None:
    with counted("marked, from the earliest") as group:
        group.run()
        group.happen("retention deletes")
        kept = group.there()

        def act(world: World) -> ResetPlan:
            ledger = world.ledger()
            plan = plan_rewind(ledger, world.cluster, 2, clip=True)
            apply_reset(ledger, world.cluster, plan, "rewind", force=True)
            return plan

        plan = group.do(act)
        assert sum(plan.lost.values()) == 4 - len(kept) > 0
        assert sum(step.replayed for step in plan.steps) == len(kept)
        group.run()
        assert group.rows() == {(p, n): 1 + ((p, n) in kept) for p in (0, 1) for n in (0, 1)}


def test_after_a_copy_there_and_back_verify_knows_what_was_read_there_and_undo_takes_back_the_newest_reset() -> None:
    """The history of the other store did not come along: `verify` told a gap, and `undo` took back an older reset."""
    with counted("marked, from the earliest") as group:
        group.run()
        group.reset("earliest", P0)
        group.happen("copy")
        group.run()
        group.reset("earliest", P1)
        group.happen("copy")
        assert group.world.store is group.world.origin
        plan = group.undo()
        assert [(step.topic_partition, step.replayed, step.skipped) for step in plan.steps] == [(P1, 0, 0)]
        group.run()
        assert group.rows() == {(0, 0): 2, (0, 1): 2, (1, 0): 1, (1, 1): 1}
        assert (group.findings(Kind.GAP), group.findings(Kind.OVERLAP)) == (set(), {(0, 0, 2)})


def lost_and_anew(group: Counted) -> None:
    """Let a partition have six records that are read; then a leader without the last three gets five others."""
    group.world.cluster.topics[TOPIC].partitions[0] = (0, 6, 6)
    group.run()
    group.cut(3, 8)


@pytest.mark.parametrize(
    ("to", "how", "start"),
    [
        ({P0: 2}, {}, 2),
        ({P0: 5}, {}, 5),
        ({P0: 6}, {}, 6),
        ("earliest", {}, 0),
        ("latest", {}, 8),
        (datetime.fromtimestamp(0.004, UTC), {}, 4),
        (Shift(-4), {}, 2),
        (Shift(-1), {"clip": True}, 3),
        ("current", {"clip": True}, 3),
    ],
)
def test_what_came_into_a_log_that_was_cut_is_read_or_counted_as_skipped(
    to: Any, how: dict[str, Any], start: int
) -> None:
    """No run had noticed the cut: the preview said "read again 1, skipped 0", and `verify` told an overlap."""
    with counted("marked, from the earliest") as group:
        lost_and_anew(group)
        plan = group.reset(to, *(() if isinstance(to, dict) else (P0,)), **how)
        assert load_plan(plan.dump(), "here") == plan
        [step] = plan.steps
        assert (step.old, step.new.offset, step.cut) == (6, start, 3)
        assert (step.replayed, step.skipped) == (max(0, 3 - start), max(0, start - 3))
        group.run()
        anew = Counter({(0, offset): 1 for offset in range(max(3, start), 8)})
        assert group.rows(topic_id="1 epoch 1") == anew
        assert {key: n - 1 for key, n in group.rows().items() if n > 1} == {(0, n): 1 for n in range(start, 3)}
        assert group.findings(Kind.CUT) == {(0, 3, 6)}
        assert group.findings(Kind.OVERLAP) == ({(0, start, 3)} if start < 3 else set())
        assert group.findings(Kind.GAP) == ({(0, 3, start)} if start > 3 else set())


def test_a_time_between_two_records_is_that_of_the_later_one() -> None:
    """A reset took the millisecond before: the record of that one came again."""
    with counted("marked, from the earliest") as group:
        group.run()
        plan = group.reset(datetime(1970, 1, 1, microsecond=500, tzinfo=UTC), P0)
        assert [(step.new.offset, step.replayed) for step in plan.steps] == [(1, 1)]
        group.run()
        assert group.rows() == {(0, 0): 1, (0, 1): 2, (1, 0): 1, (1, 1): 1}


@pytest.mark.parametrize("to", [Shift(-1), "current"])
def test_a_position_whose_records_were_cut_from_the_log_leads_to_no_other(to: Any) -> None:
    with counted("marked, from the earliest") as group:
        lost_and_anew(group)
        with pytest.raises(
            Refused, match=r"orders 0: offset [56] means another record now: its log was cut at offset 3"
        ):
            group.reset(to, P0)
        group.run()
        assert group.rows(topic_id="1 epoch 1") == {(0, offset): 1 for offset in range(3, 8)}


def test_an_undo_after_a_cut_goes_back_to_what_the_log_still_has() -> None:
    """The stored position is before the cut, and the one to go back to is not."""
    with counted("marked, from the earliest") as group:
        group.world.cluster.topics[TOPIC].partitions[0] = (0, 6, 6)
        group.run()
        group.reset({P0: 2})
        group.cut(3, 8)
        with pytest.raises(Refused, match="orders 0: offset 6 means another record now: its log was cut at offset 3"):
            group.undo()
        plan = group.undo(clip=True)
        assert [(step.old, step.new.offset, step.replayed, step.skipped) for step in plan.steps] == [(2, 3, 0, 0)]
        [note] = clips_of(plan)
        assert note == "orders 0: offset 6 was of a log that was cut; 3 is the offset from which on it has others"
        group.run()
        assert group.rows() == {(p, n): 1 for p, n in group.there() if n < 3} | {(0, n): 1 for n in range(6)}
        assert group.rows(topic_id="1 epoch 1") == {(0, n): 1 for n in range(3, 8)}
        assert [group.findings(kind) for kind in (Kind.CUT, Kind.OVERLAP, Kind.GAP)] == [{(0, 3, 6)}, set(), set()]


def test_a_way_back_to_where_a_group_stands_leaves_a_cut_to_the_next_start() -> None:
    with counted("marked, from the earliest") as group:
        group.world.cluster.topics[TOPIC].partitions[0] = (0, 6, 6)
        group.run()
        group.reset({P0: 2})
        group.run()
        group.cut(3, 8)
        assert not group.undo().moves
        group.run()
        assert group.rows(topic_id="1 epoch 1") == {(0, n): 1 for n in range(3, 8)}
        assert group.findings(Kind.CUT) == {(0, 3, 6)}


def test_a_plan_of_before_a_cut_is_stale() -> None:
    with counted("marked, from the earliest") as group:
        group.world.cluster.topics[TOPIC].partitions[0] = (0, 6, 6)
        group.run()

        def act(world: World) -> None:
            ledger = world.ledger()
            plan = plan_reset(ledger.load(), ledger.store.address, world.cluster, {P0: 4})
            group.cut(3, 8)
            apply_reset(ledger, world.cluster, load_plan(plan.dump(), "here"), "late")

        with pytest.raises(Stale, match="the log of orders 0 was cut since the plan was made"):
            group.do(act)


def test_a_log_that_is_cut_after_a_reset_is_noticed_by_the_next_start() -> None:
    """A position that a reset had set had no leader epoch: 5 records that came were never read."""
    with counted("marked, from the earliest") as group:
        group.reset({P0: 2})
        group.cut(1, 4)
        group.run()
        assert group.rows(topic_id="1 epoch 1") == {(0, n): 1 for n in range(1, 4)}


def test_where_nobody_knows_where_a_log_was_cut_all_of_it_counts_as_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    with counted("marked, from the earliest") as group:
        lost_and_anew(group)
        monkeypatch.setattr(ModelTopic, "common", lambda *_: -1)
        [step] = group.reset({P0: 5}).steps
        assert (step.cut, step.replayed, step.skipped) == (0, 0, 5)
        group.run()
        assert group.findings(Kind.CUT) == {(0, 0, 6)}
        assert group.findings(Kind.GAP) == {(0, 0, 5)}
        assert group.findings(Kind.OVERLAP) == set()


def test_what_a_copy_has_passed_of_a_log_that_was_cut_comes_for_the_first_time() -> None:
    """The preview said "read again 3", and none did."""
    with counted("marked, from the earliest") as group:
        group.world.cluster.topics[TOPIC].partitions[0] = (0, 6, 6)
        group.run()
        group.do(lambda world: copy(GROUP, world.store, world.copy, history=0, force=True))
        group.world.store = group.world.copy
        group.cut(3, 8)
        group.reset("latest", P0)
        [step] = group.reset({P0: 2}).steps
        assert (step.replayed, step.skipped) == (1, 0)
        before = group.rows()
        group.run()
        assert group.rows() == before + Counter({(0, 2): 1})
        assert group.rows(topic_id="1 epoch 1") == {(0, n): 1 for n in range(3, 8)}


def test_a_batch_that_an_undo_makes_pending_again_is_of_the_log_of_then() -> None:
    """One output has it: the other got what had come in its place, and the first one never did."""
    with died("two marked, from the earliest", 2, one=True, two=False) as group:
        group.reset("earliest", P0)
        group.cut(1, 3)
        assert group.undo().restores
        group.run()
        refusal = group.world.schedule.actors[-1].raised
        assert isinstance(refusal, StartRefused)
        assert "'orders 0 1 2' cannot be read: its log was cut at offset 1" in str(refusal)
        assert group.rows("two", "1 epoch 1") == {}


@contextmanager
def mirrored() -> Iterator[Counted]:
    """Make a group that has read all, and goes on in a mirror with each record, and one more, at the same offset."""
    scenario = GROUPS["marked, from the earliest"]
    with made(replace(scenario, policies=replace(scenario.policies, elsewhere="keep"))) as group:
        group.run()
        there = ModelTopic("m", [(0, 3, 3), (0, 3, 3)])
        group.world.cluster.place = ModelPlace("B", {TOPIC: there})
        yield group


def test_what_was_read_in_one_cluster_is_read_in_its_mirror() -> None:
    """`verify` told gaps over all that was read before; a reset there said "read again 1", and three records came."""
    with mirrored() as group:
        group.run()
        assert group.rows() == {(p, n): 1 for p in (0, 1) for n in (0, 1)}
        assert group.rows(topic_id="m") == {(0, 2): 1, (1, 2): 1}
        assert (group.findings(Kind.GAP), group.findings(Kind.OVERLAP)) == (set(), set())
        [step] = group.reset("earliest", P0).steps
        assert (step.replayed, step.skipped) == (3, 0)
        group.run()
        assert group.rows(topic_id="m") == {(0, 0): 1, (0, 1): 1, (0, 2): 2, (1, 2): 1}
        assert (group.findings(Kind.GAP), group.findings(Kind.OVERLAP)) == (set(), {(0, 0, 3)})


def test_what_was_read_in_a_mirror_is_read_where_the_group_comes_back_to() -> None:
    with mirrored() as group:
        first = group.world.cluster.name or group.world.cluster
        place = ModelPlace(FIRST, {TOPIC: ModelTopic("1", [(0, 3, 3), (0, 4, 4)])})
        group.run()
        first.place = place
        steps = group.reset({P0: 1, P1: 4}).steps
        assert [(step.replayed, step.skipped) for step in steps] == [(2, 0), (0, 1)]
        group.run()
        assert group.rows() == {(0, 0): 1, (0, 1): 2, (0, 2): 1, (1, 0): 1, (1, 1): 1}
        assert (group.findings(Kind.GAP), group.findings(Kind.OVERLAP)) == ({(1, 3, 4)}, {(0, 1, 3)})


def test_a_reset_before_the_first_start_in_a_mirror_says_what_to_do_first() -> None:
    """No reset can know that it is one: it counts the records there as others."""
    with mirrored() as group:
        plan = group.reset({P0: 1})
        assert any("start there with Policies(elsewhere='keep') first" in note for note in notes_of(plan))
