"""Plans of resets: what they do, and that nobody changes one unseen. And the way back through the history."""

from __future__ import annotations

import json
import secrets
from dataclasses import replace
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offsetkeeper.core.batch import Batch
from offsetkeeper.core.bounds import Bounds
from offsetkeeper.core.ledger import Ledger
from offsetkeeper.core.model import Snapshot
from offsetkeeper.core.offsets import OffsetRange, Position, TopicPartition
from offsetkeeper.errors import Refused, SettingsError, Stale
from offsetkeeper.operate.audit import Read
from offsetkeeper.operate.earlier import positions_before
from offsetkeeper.operate.reset_goal import Goal, make_reset
from offsetkeeper.operate.reset_plan import Dropped, ResetPlan, Step, load_plan
from offsetkeeper.operate.reset_words import notes_of
from offsetkeeper.stores.memory import MemoryStore

A, B, C, D = (TopicPartition(topic, 0) for topic in "abcd")
SNAPSHOT = Snapshot("g", version=7, change_id="seven", positions={A: Position(50, "id"), B: Position(5)})
FOUND = {A: Bounds(10, 100, "id"), B: Bounds(0, 5, "new"), C: Bounds(3, 9, "c")}


def reset(targets: dict[TopicPartition, int]) -> ResetPlan:
    return make_reset(SNAPSHOT, "memory://s", Goal({tp: Position(at) for tp, at in targets.items()}), FOUND)


def test_each_step_counts_what_is_read_again_and_what_is_skipped() -> None:
    plan = reset({A: 20, C: 5})
    assert plan.steps == (
        Step(A, 50, Position(20, "id"), 10, 100, read=Read(((0, 50),))),
        Step(C, None, Position(5, "c"), 3, 9),
    )
    assert [(s.replayed, s.skipped, s.above_beginning) for s in plan.steps] == [(30, 0, 10), (0, 2, 2)]
    assert reset({A: 80}).steps[0].skipped == 30
    assert plan.positions == {A: Position(20, "id"), C: Position(5, "c")}


@pytest.mark.parametrize(("new", "again", "skipped"), [(0, 0, 0), (50, 0, 50), (60, 0, 60)])
def test_of_a_topic_that_was_made_again_nothing_was_read(new: int, again: int, skipped: int) -> None:
    """It said "skipped 10" of a new topic of 60 records, of which none was ever read."""
    snapshot = Snapshot("g", positions={A: Position(50, "id", "here")})
    plan = make_reset(
        snapshot, "memory://s", Goal({A: Position(new)}), {A: Bounds(0, 60, "id of now", cluster_id="here")}
    )
    [step] = plan.steps
    assert (step.replayed, step.skipped) == (again, skipped)
    assert any("deleted and created again" in note for note in notes_of(plan))
    assert load_plan(plan.dump(), "saved") == plan


def test_of_a_batch_of_the_older_topic_nothing_is_read_again() -> None:
    batch = Batch("g", "token", 1, (OffsetRange(*A, 0, 20), OffsetRange(*B, 5, 9)))
    snapshot = Snapshot("g", positions={A: Position(0, "id"), B: Position(5)}, pending=batch)
    plan = make_reset(snapshot, "memory://s", Goal({A: Position(0)}), {A: Bounds(0, 60, "id of now")})
    assert plan.drops is not None
    assert plan.drops.again == (OffsetRange(*B, 5, 9),)


def test_partitions_of_a_topic_that_was_made_again_and_are_not_named_are_told() -> None:
    """Once the topic is known again, a start takes them for new ones, whatever the policy for such a topic is."""
    other = TopicPartition("a", 1)
    batch = Batch("g", "token", 1, (OffsetRange(*A, 0, 20), OffsetRange(*other, 5, 9)))
    snapshot = Snapshot("g", positions={A: Position(0, "id"), other: Position(5, "id")}, pending=batch)
    plan = make_reset(snapshot, "memory://s", Goal({A: Position(0)}), {A: Bounds(0, 60, "id of now")})
    assert plan.left == (other,)
    assert plan.drops is not None
    assert plan.drops.again == ()


def test_of_a_dropped_batch_comes_again_what_stays_in_the_cluster_that_the_group_was_in() -> None:
    """One partition of the topic moves to another cluster. The other one stays, for when the group comes back."""
    other = TopicPartition("a", 1)
    batch = Batch("g", "token", 1, (OffsetRange(*A, 0, 20), OffsetRange(*other, 5, 9)))
    positions = {A: Position(0, cluster_id="here"), other: Position(5, cluster_id="here")}
    there = {A: Bounds(0, 60, cluster_id="there")}
    plan = make_reset(Snapshot("g", positions=positions, pending=batch), "", Goal({A: Position(0)}), there)
    assert plan.drops is not None
    assert plan.drops.again == (OffsetRange(*other, 5, 9),)


def test_of_another_cluster_nothing_was_read() -> None:
    snapshot = Snapshot("g", positions={A: Position(50, "id", "here")})
    plan = make_reset(snapshot, "memory://s", Goal({A: Position(60)}), {A: Bounds(0, 60, "id", cluster_id="there")})
    assert [(step.replayed, step.skipped) for step in plan.steps] == [(0, 60)]
    assert any("the Kafka cluster here" in note for note in notes_of(plan))


def test_a_plan_of_a_release_whose_steps_say_less_is_one_of_another_version() -> None:
    raw = json.loads(reset({A: 20}).dump())
    del raw["steps"][0]["another"]
    with pytest.raises(SettingsError, match="saved by another version"):
        load_plan(json.dumps(raw), "saved")


def test_who_stands_there_already_is_left_out() -> None:
    assert reset({A: 50}).steps == ()


def test_a_topic_id_that_was_not_known_is_stored_with_the_offset() -> None:
    assert reset({B: 5}).positions == {B: Position(5, "new")}


@pytest.mark.parametrize(
    ("targets", "told"),
    [
        ({A: 9}, "a 0: offset 9 is outside the offsets that Kafka holds, 10 to 100"),
        ({A: 101}, "a 0: offset 101 is outside"),
        ({A: -1}, "a 0: offset -1 is outside"),
        ({TopicPartition("no", 1): 3}, "no 1 does not exist"),
    ],
)
def test_an_offset_that_kafka_does_not_hold_is_refused_and_never_bent(
    targets: dict[TopicPartition, int], told: str
) -> None:
    with pytest.raises(Refused, match=told):
        reset({**targets, C: 5})


def test_of_many_wrong_ones_the_first_are_named() -> None:
    with pytest.raises(Refused, match="and 30 more"):
        reset({TopicPartition("no", number): 0 for number in range(50)})


def test_a_plan_comes_back_from_its_file() -> None:
    pending = Batch("g", "token", 2, (OffsetRange(*A, 50, 60),), written=("table",))
    before = replace(SNAPSHOT, pending=pending)
    plan = make_reset(before, "memory://s", Goal({A: Position(20), C: Position(5)}), FOUND, [B], [D])
    assert (plan.left, plan.gone, plan.drops) == (
        (B,),
        (D,),
        Dropped("g/token/2", ("table",), (), (OffsetRange(*A, 50, 60),)),
    )
    assert load_plan(plan.dump(), "here") == plan
    landing = replace(pending, ranges=(*pending.ranges, OffsetRange(*B, 5, 6)), lands_in=("table",))
    partly = make_reset(replace(SNAPSHOT, pending=landing), "memory://s", Goal({A: Position(20)}), FOUND)
    assert partly.drops == Dropped("g/token/2", ("table",), ("table",), landing.ranges[:1], landing.ranges[1:])
    assert "Otherwise they are read again, and come twice into outputs that have it: b 0 5 6" in " ".join(
        notes_of(partly)
    )
    assert load_plan(partly.dump(), "here") == partly
    still = make_reset(SNAPSHOT, "memory://s", Goal({A: Position(50)}), FOUND)
    assert still.stays == ((A, 50),)
    assert load_plan(still.dump(), "here") == still


@pytest.mark.parametrize(
    "change",
    [
        lambda raw: raw.update(group="other"),
        lambda raw: raw.update(version=8),
        lambda raw: raw["steps"].pop(),
        lambda raw: raw["steps"][0].update(new=21),
        lambda raw: raw["steps"][0].update(topic_id=None),
        lambda raw: raw.update(
            drops={"batch": "g/1/2", "written": [], "lands_in": [], "again": [], "stays": [], "unasked": []}
        ),
        lambda raw: raw.update(digest="0" * 64),
    ],
    ids=["group", "version", "a step less", "an offset", "a topic id", "what is dropped", "the digest"],
)
def test_a_plan_that_was_changed_is_refused(change: object) -> None:
    raw = json.loads(reset({A: 20, C: 5}).dump())
    assert callable(change)
    change(raw)
    with pytest.raises(SettingsError, match="digest does not match"):
        load_plan(json.dumps(raw), "here")


@pytest.mark.parametrize("change", [lambda raw: raw.pop("stays"), lambda raw: raw.update(more=1)], ids=["less", "more"])
def test_a_plan_of_another_version_is_to_be_made_anew(change: object) -> None:
    raw = json.loads(reset({A: 20}).dump())
    assert callable(change)
    change(raw)
    with pytest.raises(SettingsError, match=r"^here was saved by another version of offsetkeeper: make a new plan"):
        load_plan(json.dumps(raw), "here")


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"steps": [{}]}', "\x00"])
def test_what_is_no_plan_is_told(text: str) -> None:
    with pytest.raises(SettingsError, match="here is not a plan"):
        load_plan(text, "here")


@pytest.mark.parametrize(
    "found",
    [
        Snapshot("g", version=8, change_id="eight"),
        Snapshot("g", version=7, change_id="another seven"),
        Snapshot("h", version=7, change_id="seven"),
    ],
)
def test_a_plan_is_for_one_version_of_one_ledger(found: Snapshot) -> None:
    plan = reset({A: 20})
    assert plan.check(SNAPSHOT, "memory://s") is plan
    with pytest.raises(Stale):
        plan.check(found, "memory://s")
    with pytest.raises(Stale):
        plan.check(SNAPSHOT, "memory://other")


moves = st.lists(st.tuples(st.sampled_from(["commit", "rewind", "place"]), st.integers(0, 1), st.integers(1, 9)))


@given(moves)
def test_the_history_leads_back_to_every_version(drawn: list[tuple[str, int, int]]) -> None:
    """Whatever a ledger went through, each of its earlier positions is found again."""
    ledger = Ledger(MemoryStore(f"memory://{secrets.token_hex(8)}"), "g")
    ledger.acquire()
    seen = [dict(ledger.snapshot.positions)]
    for event, which, size in drawn:
        tp = (A, B)[which]
        at = ledger.snapshot.positions.get(tp)
        if event == "commit" and at:
            ledger.commit(ledger.batch([OffsetRange(*tp, at.offset, at.offset + size)]))
        elif event == "rewind":
            ledger.rewind({tp: Position(size)}, "again", force=True)
            ledger.acquire()
            seen.append(dict(ledger.snapshot.positions))
        else:
            ledger.place({tp: Position(size, "id")})
        seen.append(dict(ledger.snapshot.positions))
    entries = ledger.history(1000)
    for version, positions in enumerate(seen, 1):
        assert positions_before(entries, ledger.snapshot.positions, ledger.snapshot.version, version) == positions


def test_a_history_that_was_pruned_does_not_reach_back() -> None:
    ledger = Ledger(MemoryStore(f"memory://{secrets.token_hex(8)}?history=2"), "g")
    ledger.acquire()
    for offset in (1, 2, 3, 4):
        ledger.place({A: Position(offset)})
    back = partial(positions_before, ledger.history(10), ledger.snapshot.positions, 5)
    assert back(3) == {A: Position(2)}
    with pytest.raises(Refused, match="goes back only to version 4"):
        back(2)


@pytest.mark.parametrize("lacking", [(7,), (7, 6), (5,), (7, 6, 5, 4)])
def test_a_history_that_lacks_an_entry_leads_not_back_past_it(lacking: tuple[int, ...]) -> None:
    """Else positions stay that an entry had moved, and what lies before them is never read."""
    ledger = Ledger(MemoryStore(f"memory://{secrets.token_hex(8)}"), "g")
    ledger.acquire()
    for offset in range(1, 7):
        ledger.place({A: Position(offset)})
    entries = [entry for entry in ledger.history(10) if entry.version not in lacking]
    back = partial(positions_before, entries, ledger.snapshot.positions, 7)
    assert back(7) == {A: Position(6)}
    with pytest.raises(Refused, match="lacks version 7" if 7 in lacking else "goes back only to version 6"):
        back(4)
    assert positions_before(ledger.history(10), {A: Position(5)}, 6, 4) == {A: Position(3)}  # a run has moved on since


def test_a_batch_that_is_dropped_is_told_with_all_that_comes_again_also_where_nothing_moves() -> None:
    batch = Batch("g", "token", 2, (OffsetRange(*A, 50, 60), OffsetRange(*D, 5, 9)), lands_in=("",))
    before = replace(SNAPSHOT, positions={A: Position(50), D: Position(5)}, pending=batch)
    plan = make_reset(before, "memory://s", Goal({A: Position(60)}), {**FOUND, A: Bounds(0, 60)})
    assert plan.drops is not None
    assert (plan.drops.again, plan.drops.stays) == ((), (OffsetRange(*D, 5, 9),))
    assert "are read again, and come twice into outputs that have it: d 0 5 9" in "\n".join(notes_of(plan))
    plan = make_reset(
        replace(before, pending=replace(batch, lands_in=())), "memory://s", Goal({A: Position(60)}), FOUND
    )
    assert plan.drops is not None
    assert (plan.drops.again, plan.drops.stays) == ((OffsetRange(*D, 5, 9),), ())
    assert "read again, and may come twice into outputs that have it: d 0 5 9" in "\n".join(notes_of(plan))


def test_a_batch_none_of_whose_partitions_moves_is_told_to_stay() -> None:
    batch = Batch("g", "token", 2, (OffsetRange(*A, 50, 60),), lands_in=("",))
    before = replace(SNAPSHOT, pending=batch)
    plan = make_reset(before, "memory://s", Goal({A: Position(50), C: Position(5)}), FOUND)
    assert (plan.drops, plan.keeps) == (None, "g/token/2")
    assert "batch g/token/2 was begun and not committed: none of its partitions moves, so it stays" in notes_of(plan)[0]
    assert load_plan(plan.dump(), "here") == plan
    nothing = make_reset(before, "memory://s", Goal({A: Position(50)}), FOUND)
    assert (nothing.moves, nothing.drops, nothing.keeps) == (False, None, "g/token/2")
    assert "counts it as done if all outputs have it, or drops it by policy" in notes_of(nothing)[0]
    left = make_reset(replace(SNAPSHOT, unsettled=batch), "memory://s", Goal({C: Position(5)}), FOUND)
    assert left.unsettled == "g/token/2"
    assert "batch g/token/2 was dropped by an earlier reset" in notes_of(left)[0]
