"""Promises that were once not kept, each with its rows counted: what a preview said, and what came."""

from __future__ import annotations

import pytest

from offsetkeeper.core.model import Guarantee
from offsetkeeper.core.offsets import OffsetRange
from offsetkeeper.core.plan import Policies
from offsetkeeper.operate.audit import Kind
from offsetkeeper.operate.forget import Forgetting
from offsetkeeper.operate.outlook import outlook
from offsetkeeper.operate.reset import apply_reset, plan_rewind
from offsetkeeper.operate.reset_plan import ResetPlan
from offsetkeeper.testing.simulator.operators import forget_positions
from offsetkeeper.testing.simulator.world import World
from simulator.counted import P0, P1, P2, counted, died


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
        assert "an output without a mark may have that batch, and cannot be asked" in plan.notes
        group.run()
        assert group.rows() == {(0, 0): 2, (0, 1): 1, (1, 0): 1}


def test_what_a_function_may_have_of_a_batch_that_was_dropped_is_named_when_it_is_undone() -> None:
    """The preview of the undo said "read again 0", and the record came twice."""
    with died("at least once, from the earliest", it=True) as group:
        group.reset("latest", P1)
        plan = group.undo()
        assert [each for step in plan.steps for each in step.perhaps_again] == [OffsetRange(*P1, 0, 1)]
        assert any("may come twice: orders 1 0 1" in note for note in plan.notes)
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
        assert any(note.endswith(f"a start reads them from their beginning: {P1}") for note in plan.notes)
        group.run()
        assert group.rows() == {(0, 1): 1, (1, 0): 1, (1, 1): 1}


def test_a_partition_that_was_added_is_told_where_all_topics_move_and_is_read() -> None:
    with counted("marked, from the earliest") as group:
        group.run()
        group.happen("a partition is added")
        group.happen("records arrive")
        plan = group.reset("latest", all_topics=True)
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
        plan: Forgetting = group.do(lambda world: forget_positions(world, [P1], ()))
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
