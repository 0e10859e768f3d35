"""Where a run starts: the cases of a restart one by one, then every count against sets of single offsets."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offsetkeeper.core.bounds import Bounds
from offsetkeeper.core.model import Snapshot
from offsetkeeper.core.offsets import Position, TopicPartition
from offsetkeeper.core.plan import FirstOffsets, Plan, PlanRow, Policies, Verdict, plan
from offsetkeeper.core.rules import Author, Rewind, decide
from offsetkeeper.errors import SettingsError, StartRefused

P0, P1, P2 = (TopicPartition("orders", p) for p in range(3))
OTHER = TopicPartition("payments", 0)
STOP = Policies()


def planned(
    stored: dict[TopicPartition, Position],
    found: dict[TopicPartition, Bounds],
    policies: Policies = STOP,
    *,
    first: dict[TopicPartition, int] | None = None,
    start: str = "earliest",
    by_hand: dict[TopicPartition, int] | None = None,
) -> Plan:
    return plan("g", stored, found, policies, FirstOffsets(start, first or {}, given=by_hand or {}))


def test_a_console_shows_a_plan_in_a_line() -> None:
    found = planned({P0: Position(3)}, {P0: Bounds(0, 9), P1: Bounds(0, 9)})
    assert repr(found) == "<Plan of group 'g': 1 resume, 1 new>"
    assert repr(planned({}, {})) == "<Plan of group 'g': no partitions>"


def only(plan_: Plan) -> PlanRow:
    (row,) = plan_.rows
    return row


def outcome(row: PlanRow) -> tuple[Verdict, int | None, str, int, int, int, bool]:
    return row.verdict, row.start, row.policy, row.lost, row.skipped, row.replayed, row.stops


# The cases of a restart.


def test_a_first_run_from_the_earliest_begins_at_the_beginning() -> None:
    row = only(planned({}, {P0: Bounds(5, 9, "id")}))
    assert outcome(row) == (Verdict.FIRST_RUN, 5, "start=earliest", 0, 0, 0, False)


def test_a_position_that_the_store_has_lost_stops_the_start() -> None:
    """Until it is set, or given: then what is new beside it begins at its beginning."""
    found = {P0: Bounds(0, 9), P1: Bounds(0, 9), P2: Bounds(0, 9)}
    ledger = Snapshot("g", 1, positions={OTHER: Position(1)}, missing=frozenset({P0, P1}))

    def rows(ledger: Snapshot, given: Mapping[TopicPartition, int] | None = None) -> list[tuple[Verdict, int | None]]:
        first = FirstOffsets("latest", {P2: 9}, given=given or {})
        made = plan("g", ledger.positions, found, STOP, first, missing=ledger.missing)
        return [(row.verdict, row.start) for row in made.rows if row.bounds]

    assert rows(ledger) == [(Verdict.MISSING, None), (Verdict.MISSING, None), (Verdict.NEW, 0)]
    assert rows(ledger, given={P0: 3, P1: 4}) == [(Verdict.GIVEN, 3), (Verdict.GIVEN, 4), (Verdict.NEW, 0)]
    author = Author("me", "me", 0, "id")
    reset = decide(ledger, Rewind({P0: Position(3)}), author).after
    assert rows(reset) == [(Verdict.RESUME, 3), (Verdict.MISSING, None), (Verdict.NEW, 0)]
    with pytest.raises(StartRefused, match=r"(?s)orders 1: position missing.*lost positions"):
        plan("g", {}, found, STOP, FirstOffsets("latest"), missing=reset.missing).check()


@pytest.mark.parametrize("policy", ["stop", "end", "beginning"])
def test_a_partition_that_a_topic_gets_after_it_was_made_again_is_new(policy: Any) -> None:
    """It was made again with fewer, and has grown: the position of the topic before is not judged a second time."""
    stored = {P0: Position(4, "new"), P1: Position(7, "old")}
    found = {P0: Bounds(0, 9, "new"), P1: Bounds(0, 5, "new")}
    result = planned(stored, found, Policies(recreated=policy))
    assert [(row.verdict, row.start) for row in result.rows] == [(Verdict.RESUME, 4), (Verdict.NEW, 0)]
    assert result.places == {P1: Position(0, "new")}
    before = planned({P0: Position(4, "old"), P1: Position(7, "old")}, found, Policies(recreated=policy))
    assert {row.verdict for row in before.rows} == {Verdict.RECREATED}


def test_a_first_run_that_is_to_stop_begins_nowhere() -> None:
    found = planned({}, {P0: Bounds(5, 9)}, Policies(first_run="stop"))
    assert outcome(only(found)) == (Verdict.FIRST_RUN, None, "first_run=stop", 0, 0, 0, True)
    with pytest.raises(StartRefused, match="orders 0"):
        found.check()


def test_a_first_run_elsewhere_counts_what_it_skips() -> None:
    row = only(planned({}, {P0: Bounds(5, 9)}, first={P0: 8}, start="latest"))
    assert outcome(row) == (Verdict.FIRST_RUN, 8, "start=latest", 0, 3, 0, False)


def test_a_first_run_is_a_matter_of_the_topic() -> None:
    """A second topic starts by choice, though the group has long read another."""
    result = planned({OTHER: Position(1)}, {OTHER: Bounds(0, 3), P0: Bounds(0, 9)}, first={P0: 9}, start="latest")
    assert [(row.verdict, row.start) for row in result.rows] == [(Verdict.FIRST_RUN, 9), (Verdict.RESUME, 1)]


def test_a_new_partition_begins_at_its_beginning_whatever_the_choice_was() -> None:
    """Nothing that came in before it was found may be skipped."""
    result = planned({P0: Position(4)}, {P0: Bounds(0, 9), P1: Bounds(0, 7)}, first={P1: 7}, start="latest")
    assert outcome(result.rows[1]) == (Verdict.NEW, 0, "beginning, always", 0, 0, 0, False)


def test_positions_of_partitions_that_are_not_read_make_their_topic_known() -> None:
    """A program may read some partitions of a topic; the group keeps its positions of the others."""

    def row(stored: dict[TopicPartition, Position], others: dict[TopicPartition, Position]) -> PlanRow:
        found = {P0: Bounds(0, 9, "new")}
        return only(plan("g", stored, found, STOP, FirstOffsets("latest", {P0: 9}), others=others))

    for others, verdict, start in (
        ({P1: Position(7, "new")}, Verdict.NEW, 0),
        ({P1: Position(7, "old")}, Verdict.NEW, 0),
        ({OTHER: Position(7, "new")}, Verdict.FIRST_RUN, 9),
    ):
        assert (row({}, others).verdict, row({}, others).start) == (verdict, start)
    for topic_id, verdict in (("new", Verdict.NEW), ("old", Verdict.RECREATED)):
        assert row({P0: Position(4, "old")}, {P1: Position(7, topic_id)}).verdict is verdict


def test_records_of_a_new_partition_that_expired_unseen_are_counted_as_lost() -> None:
    result = planned({P0: Position(4)}, {P0: Bounds(0, 9), P1: Bounds(6, 7)})
    assert outcome(result.rows[1]) == (Verdict.NEW, 6, "beginning, always", 6, 0, 0, False)


@pytest.mark.parametrize("offset", [3, 5, 9])
def test_what_lies_within_kafka_is_resumed(offset: int) -> None:
    result = planned({P0: Position(offset, "id")}, {P0: Bounds(3, 9, "id")})
    assert outcome(only(result)) == (Verdict.RESUME, offset, "store", 0, 0, 0, False)
    assert result.places == {}


def test_removed_partitions_are_told_and_their_positions_kept() -> None:
    result = planned({P0: Position(4), P1: Position(6)}, {P0: Bounds(0, 9)})
    assert outcome(result.rows[1]) == (Verdict.REMOVED, None, "removed=keep", 0, 0, 0, False)
    assert result.check() is result
    assert result.places == {}
    assert "orders 1: removed, stored 6, Kafka holds gone, start - (removed=keep)" in str(result)


def test_removed_partitions_stop_the_run_where_that_is_asked_for() -> None:
    with pytest.raises(StartRefused, match=r"orders 1: removed[\s\S]*Policies\(removed=…\), where removed is 'keep'"):
        planned({P0: Position(4), P1: Position(6)}, {P0: Bounds(0, 9)}, Policies(removed="stop")).check()


JUMPS = {
    Verdict.BELOW_BEGINNING: ("below_beginning", Position(2, "id"), Bounds(5, 9, "id")),
    Verdict.BEYOND_END: ("beyond_end", Position(12, "id"), Bounds(5, 9, "id")),
    Verdict.RECREATED: ("recreated", Position(7, "old"), Bounds(5, 9, "id")),
    Verdict.CUT: ("cut", Position(8, "id", leader_epoch=0), Bounds(5, 9, "id", leader_epoch=1, common=7)),
}
# verdict and policy to start, lost, skipped, replayed
COUNTS = {
    (Verdict.BELOW_BEGINNING, "stop"): (None, 3, 0, 0),
    (Verdict.BELOW_BEGINNING, "beginning"): (5, 3, 0, 0),
    (Verdict.BELOW_BEGINNING, "end"): (9, 3, 4, 0),
    (Verdict.BEYOND_END, "stop"): (None, 0, 0, 0),
    (Verdict.BEYOND_END, "beginning"): (5, 0, 0, 4),
    (Verdict.BEYOND_END, "end"): (9, 0, 0, 0),
    (Verdict.RECREATED, "stop"): (None, 0, 0, 0),
    (Verdict.RECREATED, "beginning"): (5, 0, 0, 0),
    (Verdict.RECREATED, "end"): (9, 0, 4, 0),
    (Verdict.CUT, "stop"): (None, 0, 0, 0),
    (Verdict.CUT, "common"): (7, 0, 0, 0),
    (Verdict.CUT, "beginning"): (5, 0, 0, 2),
    (Verdict.CUT, "end"): (9, 0, 2, 0),
}


@pytest.mark.parametrize(("verdict", "policy"), COUNTS)
def test_each_jump_does_what_its_own_policy_says(verdict: Verdict, policy: Any) -> None:
    setting, stored, found = JUMPS[verdict]
    start, lost, skipped, replayed = COUNTS[verdict, policy]
    row = only(planned({P0: stored}, {P0: found}, Policies(**{setting: policy})))
    assert outcome(row) == (verdict, start, f"{setting}={policy}", lost, skipped, replayed, policy == "stop")


@pytest.mark.parametrize("verdict", JUMPS)
def test_no_policy_is_taken_for_another(verdict: Verdict) -> None:
    """What is allowed for two kinds of jump still stops at the third."""
    setting, stored, found = JUMPS[verdict]
    others: dict[str, Any] = {name: "end" for name, _, _ in JUMPS.values() if name != setting}
    with pytest.raises(StartRefused):
        planned({P0: stored}, {P0: found}, Policies(**others)).check()


@pytest.mark.parametrize("common", [-1, 4])
def test_a_cut_log_stops_where_no_common_offset_is_there_to_read(common: int) -> None:
    """Nobody knows it, or retention has taken it."""
    cut = Bounds(5, 9, "id", leader_epoch=1, common=common)
    made = planned({P0: Position(8, "id", leader_epoch=0)}, {P0: cut}, Policies(cut="common"))
    assert outcome(only(made))[:2] == (Verdict.CUT, None)
    assert made.cuts == {}
    with pytest.raises(
        StartRefused, match=r"cut, stored 8, Kafka holds 5..9 and was cut [\s\S]*where cut is 'beginning' or 'end'"
    ):
        made.check()


def test_where_nobody_knows_where_a_log_was_cut_the_history_says_from_its_beginning_on() -> None:
    """With "end", `verify` told no gap before the old position."""
    cut, stored = Bounds(5, 9, "id", leader_epoch=1, common=-1), {P0: Position(8, "id", leader_epoch=0)}
    assert planned(stored, {P0: cut}, Policies(cut="end")).cuts == {P0: 5}


def test_an_offset_given_after_a_cut_is_one_of_the_log_of_now() -> None:
    cut, stored = Bounds(5, 9, "id", leader_epoch=1, common=6), {P0: Position(8, "id", leader_epoch=0)}
    made = planned(stored, {P0: cut}, by_hand={P0: 7})
    assert outcome(only(made))[:2] == (Verdict.GIVEN, 7)
    assert (made.places, made.cuts) == ({P0: Position(7, "id", leader_epoch=1)}, {P0: 6})
    assert planned({P0: Position(6, "id", leader_epoch=0)}, {P0: cut}).cuts == {}


def test_a_plan_stores_the_leader_epoch_of_now_and_forgets_one_that_it_cannot_know() -> None:
    for old, new in ((None, 3), (2, 3), (2, None), (3, 3)):
        made = planned({P0: Position(4, "id", None, old)}, {P0: Bounds(0, 9, "id", leader_epoch=new)})
        assert made.places == ({} if old == new else {P0: Position(4, "id", None, new)})


def test_a_recreated_topic_is_known_even_when_it_has_outgrown_the_stored_offset() -> None:
    assert only(planned({P0: Position(4, "old")}, {P0: Bounds(0, 1000, "new")})).verdict is Verdict.RECREATED


@pytest.mark.parametrize(("stored_id", "found_id"), [(None, "id"), ("id", None), (None, None)])
def test_an_unknown_topic_id_tells_nothing(stored_id: str | None, found_id: str | None) -> None:
    """Then only the bounds can speak."""
    assert only(planned({P0: Position(4, stored_id)}, {P0: Bounds(0, 9, found_id)})).verdict is Verdict.RESUME
    assert only(planned({P0: Position(10, stored_id)}, {P0: Bounds(0, 9, found_id)})).verdict is Verdict.BEYOND_END
    assert only(planned({P0: Position(1, stored_id)}, {P0: Bounds(2, 9, found_id)})).verdict is Verdict.BELOW_BEGINNING


@pytest.mark.parametrize("ids", [("old", "new"), (None, None), ("same", "same")], ids=["other", "unknown", "same"])
def test_another_cluster_is_known_whatever_ids_the_topics_have(ids: tuple[str | None, str | None]) -> None:
    """The offset may be one that is there too. It is resumed only where the policy says that it is a mirror."""
    stored, found = {P0: Position(4, ids[0], "A")}, {P0: Bounds(2, 9, ids[1], cluster_id="B")}
    row = only(planned(stored, found))
    assert outcome(row) == (Verdict.ELSEWHERE, None, "elsewhere=stop", 0, 0, 0, True)
    assert str(row).startswith("orders 0: another cluster, stored 4 in cluster A, Kafka holds 2..9 in cluster B")
    keep, beginning, end = Policies(elsewhere="keep"), Policies(elsewhere="beginning"), Policies(elsewhere="end")
    for policies, start, skipped in ((keep, 4, 0), (beginning, 2, 0), (end, 9, 7)):
        made = planned(stored, found, policies)
        assert outcome(only(made))[:3] == (Verdict.ELSEWHERE, start, f"elsewhere={policies.elsewhere}")
        assert only(made).skipped == skipped
        assert made.places == {P0: Position(start, ids[1], "B")}
        assert made.mirror == (policies is keep)
    assert planned(stored, found, keep, by_hand={P0: 3}).mirror  # its offsets are those of the mirror too
    assert not planned(stored, {P0: found[P0]._replace(cluster_id="A", topic_id=ids[0])}, keep).mirror


@pytest.mark.parametrize(("offset", "verdict"), [(1, Verdict.BELOW_BEGINNING), (10, Verdict.BEYOND_END)])
def test_a_mirror_that_does_not_hold_the_offset_is_judged_as_any_cluster(offset: int, verdict: Verdict) -> None:
    stored, found = {P0: Position(offset, "id", "A")}, {P0: Bounds(2, 9, "other", cluster_id="B")}
    with pytest.raises(StartRefused, match=str(verdict)):
        planned(stored, found, Policies(elsewhere="keep")).check()
    going_on = Policies(elsewhere="keep", below_beginning="beginning", beyond_end="end")
    assert planned(stored, found, going_on).places == {P0: Position(2 if offset == 1 else 9, "other", "B")}


def test_a_refused_start_names_the_reset_of_the_partitions_that_stop_it_alone() -> None:
    found = dict.fromkeys((P0, P1, OTHER), Bounds(2, 9, "id"))
    lost, kept, again = Position(1, "id"), Position(4, "id"), Position(4, "old")
    some = planned({P0: lost, P1: kept, OTHER: again}, found).remedy
    assert "'offsetkeeper reset g --topic orders:0 --topic payments:0 --to-earliest' shows what that does" in some
    read = planned({P0: lost, P1: lost}, found).remedy  # the ledger may have others, which another program reads
    assert "'offsetkeeper reset g --topic orders:0,1 --to-earliest' shows what that does" in read
    assert "offsetkeeper reset" not in planned({P0: Position(10, "id")}, found).remedy  # nobody knows what was read
    many = {TopicPartition(f"topic-{number:03}", 0): lost for number in range(99)}
    assert "offsetkeeper reset" not in planned(many, dict.fromkeys(many, Bounds(2, 9, "id"))).remedy


def test_an_unknown_cluster_tells_nothing_and_is_not_forgotten_once_it_is_known() -> None:
    for stored, found, known in ((None, "A", "A"), ("A", None, "A"), (None, None, None)):
        made = planned({P0: Position(4, "id", stored)}, {P0: Bounds(2, 9, "id", cluster_id=found)})
        assert only(made).verdict is Verdict.RESUME
        assert made.places == ({} if stored == known else {P0: Position(4, "id", known)})
    stop = Policies(below_beginning="beginning")
    assert planned({P0: Position(1, "id", "A")}, {P0: Bounds(2, 9)}, stop).places == {P0: Position(2, "id", "A")}


def test_a_topic_id_that_becomes_known_is_stored() -> None:
    assert planned({P0: Position(4)}, {P0: Bounds(0, 9, "id")}).places == {P0: Position(4, "id")}


@pytest.mark.parametrize("offset", [1, 4, 12])
def test_a_topic_id_once_known_is_not_forgotten_while_kafka_does_not_tell_it(offset: int) -> None:
    """Else a topic made again in the meantime would be read on as if it were the old one."""
    policies = Policies(below_beginning="beginning", beyond_end="end")
    result = planned({P0: Position(offset, "id")}, {P0: Bounds(3, 9)}, policies)
    assert result.places == ({P0: Position(result.rows[0].start or 0, "id")} if offset != 4 else {})


def test_a_partition_of_an_empty_topic_can_be_resumed_and_begun() -> None:
    assert only(planned({P0: Position(7)}, {P0: Bounds(7, 7)})).verdict is Verdict.RESUME
    assert only(planned({}, {P0: Bounds(7, 7)})).start == 7


def test_offsets_given_by_hand_go_before_everything_else() -> None:
    """Before the store, before every policy, before the beginning of a new partition, and for a first run."""
    stored = {P0: Position(8, "id"), P1: Position(2, "old")}
    found = {P0: Bounds(0, 9, "id"), P1: Bounds(5, 9, "id"), P2: Bounds(0, 9, "id"), OTHER: Bounds(0, 4)}
    result = planned(stored, found, by_hand={P0: 3, P1: 6, P2: 1, OTHER: 4}).check()
    assert [outcome(row) for row in result.rows] == [
        (Verdict.GIVEN, 3, "given", 0, 0, 5, False),
        (Verdict.GIVEN, 6, "given", 0, 1, 0, False),
        (Verdict.GIVEN, 1, "given", 0, 1, 0, False),
        (Verdict.GIVEN, 4, "given", 0, 4, 0, False),
    ]
    assert result.places == {
        P0: Position(3, "id"),
        P1: Position(6, "id"),
        P2: Position(1, "id"),
        OTHER: Position(4),
    }


@pytest.mark.parametrize(
    ("by_hand", "told"),
    [
        ({P1: 5}, "orders 1, which is not among the partitions to read"),
        ({P0: 2}, "offset 2 given for orders 0 is outside the offsets that Kafka holds: 3 to 9"),
        ({P0: 10}, "offset 10 given for orders 0 is outside"),
        ({P0: -1}, "-1 is not an offset"),
        ({P0: True}, "True is not an offset"),
        ({P0: "5"}, "'5' is not an offset"),
    ],
)
def test_offsets_that_cannot_be_read_are_refused_before_anything_is_touched(
    by_hand: dict[TopicPartition, int], told: str
) -> None:
    with pytest.raises(SettingsError, match=told):
        planned({P1: Position(1)}, {P0: Bounds(3, 9)}, by_hand=by_hand)


@pytest.mark.parametrize("name", ["below_beginning", "beyond_end", "recreated", "removed"])
@pytest.mark.parametrize("word", ["", "latest", "STOP", None, "keep", "end"])
def test_words_that_are_no_policy_are_refused(name: str, word: Any) -> None:
    allowed = {"stop", "keep"} if name == "removed" else {"stop", "beginning", "end"}
    if word in allowed:
        assert getattr(Policies(**{name: word}), name) == word
    else:
        with pytest.raises(SettingsError, match=f"policy {name}={word!r}: use 'stop'"):
            Policies(**{name: word})


# What people see.


def test_a_refusal_names_each_partition_its_state_and_the_remedies() -> None:
    stored = {P0: Position(2), P1: Position(12), P2: Position(6)}
    found = {P0: Bounds(5, 9), P1: Bounds(5, 9), P2: Bounds(5, 9)}
    with pytest.raises(StartRefused) as caught:
        planned(stored, found).check()
    message = str(caught.value)
    assert "group 'g' cannot start; nothing was changed" in message
    assert (
        "orders 0: below the beginning, stored 2, Kafka holds 5..9, start -, 3 lost (below_beginning=stop)" in message
    )
    assert "orders 1: beyond the end, stored 12, Kafka holds 5..9, start - (beyond_end=stop)" in message
    assert "orders 2" not in message
    assert (
        "give policies=Policies(below_beginning=…, beyond_end=…), where below_beginning is 'beginning' or 'end'"
        in message
    )
    assert "'offsetkeeper plan g --policy below_beginning=beginning' shows what one does" in message
    assert "give offsets for these partitions" in message


@pytest.mark.parametrize(("count", "told"), [(20, ""), (21, "\n  and 1 more"), (25, "\n  and 5 more")])
def test_many_partitions_stay_readable(count: int, told: str) -> None:
    """In a refusal and in the summary alike: the first twenty, and how many there are beside them."""
    parts = [TopicPartition("t", p) for p in range(count)]
    result = planned(dict.fromkeys(parts, Position(2)), dict.fromkeys(parts, Bounds(5, 9)))
    with pytest.raises(StartRefused) as caught:
        result.check()
    for text in (str(caught.value), str(result)):
        assert text.count("below the beginning, stored 2") == 20
        assert told in text
        assert ("more" in text) == bool(told)


def test_the_summary_counts_all_and_lists_what_is_not_simply_resumed() -> None:
    stored = {P0: Position(2, "id"), P1: Position(6, "id")}
    found = {P0: Bounds(5, 9, "id"), P1: Bounds(5, 9, "id"), P2: Bounds(0, 9, "id")}
    assert str(planned(stored, found, Policies(below_beginning="end"))).splitlines() == [
        "group 'g': 1 below the beginning, 1 resume, 1 new, 3 lost, 4 skipped",
        "  orders 0: below the beginning, stored 2, Kafka holds 5..9, start 9, 3 lost, 4 skipped (below_beginning=end)",
        "  orders 2: new, stored -, Kafka holds 0..9, start 0 (beginning, always)",
    ]


@pytest.mark.parametrize(("partitions", "lines"), [(1, 2), (20, 21), (21, 1)])
def test_of_few_partitions_the_command_lists_the_resumed_ones_too(partitions: int, lines: int) -> None:
    stored = {TopicPartition("a", number): Position(3, "id") for number in range(partitions)}
    found = planned(stored, dict.fromkeys(stored, Bounds(0, 9, "id")))
    assert len(str(found).splitlines()) == 1
    assert len(found.text().splitlines()) == lines
    assert ("a 0: resume, stored 3, Kafka holds 0..9, start 3" in found.text()) == (lines > 1)


def test_no_verdict_hides_behind_many_others() -> None:
    """Five hundred new partitions come first, and one whose topic was made again."""
    found = {TopicPartition("a", n): Bounds(0, 9, "a") for n in range(500)} | {
        TopicPartition("b", 0): Bounds(0, 9, "new")
    }
    stored = {TopicPartition("a", 0): Position(1, "a"), TopicPartition("b", 0): Position(1, "old")}
    lines = str(planned(stored, found)).splitlines()
    assert len(lines) <= 1 + 20 + 2
    assert "  and 489 more" in lines
    assert any(line.startswith("  b 0: recreated") for line in lines)


def test_nothing_to_read_is_told_too() -> None:
    assert str(planned({}, {})) == "group 'g': no partitions"


def test_the_plan_goes_to_json_and_back() -> None:
    stored = {P0: Position(2, "id"), P1: Position(6)}
    result = planned(stored, {P0: Bounds(5, 9, "id"), P2: Bounds(0, 9)})
    plain = result.as_dict()
    assert json.loads(json.dumps(plain)) == plain
    assert plain["group"] == "g"
    verdicts = {"below the beginning": 1, "removed": 1, "new": 1}
    assert plain["counts"] == verdicts | {"lost": 3, "skipped": 0, "replayed": 0}
    assert plain["partitions"][0] == {
        "topic": "orders",
        "partition": 0,
        "verdict": "below the beginning",
        "stored": 2,
        "beginning": 5,
        "end": 9,
        "start": None,
        "policy": "below_beginning=stop",
        "lost": 3,
        "skipped": 0,
        "replayed": 0,
        "stops": True,
    }
    assert [(p["verdict"], p["stored"], p["beginning"], p["end"], p["start"]) for p in plain["partitions"][1:]] == [
        ("removed", 6, None, None, None),
        ("new", None, 0, 9, 0),
    ]


def test_ten_thousand_partitions_are_planned_and_told_in_a_few_lines() -> None:
    parts = [TopicPartition(f"topic-{n % 10}", n // 10) for n in range(10_000)]
    stored = {tp: Position(n, "id") for n, tp in enumerate(parts[:9_000])}
    found = {tp: Bounds(max(0, n - 1), n + 5, "id") for n, tp in enumerate(parts)}
    result = planned(stored, found).check()
    assert result.counts() == {"resume": 9_000, "new": 1_000, "lost": sum(range(8_999, 9_999)), "skipped": 0} | {
        "replayed": 0
    }
    assert list(result.places) == sorted(parts[9_000:])
    assert len(str(result).splitlines()) == 22
    assert len(result.as_dict()["partitions"]) == 10_000


# Every count, held against sets of single offsets.

offsets = st.integers(0, 12)
ids = st.sampled_from([None, "one", "two"])
found_ = st.builds(lambda a, b, i: Bounds(min(a, b), max(a, b), i), offsets, offsets, ids)
jumps = st.sampled_from(["stop", "beginning", "end"])


def counted(row: PlanRow) -> tuple[int, int, int]:
    """Return what is lost, skipped and replayed, by looking at each offset."""
    if row.bounds is None:
        return 0, 0, 0
    held = set(range(row.bounds.beginning, row.bounds.end))
    gone = set(range(row.bounds.beginning))
    if row.verdict is Verdict.NEW:
        read, unread = set[int](), gone | held
    elif row.stored is None or len({row.stored.topic_id, row.bounds.topic_id} - {None}) > 1:
        read, unread = set[int](), held
    else:
        read = set(range(row.stored.offset))
        unread = (gone | held) - read
    if row.start is None:
        return len(unread & gone), 0, 0
    will_be_read = set(range(row.start, row.bounds.end))
    return len(unread & gone), len(unread & held - will_be_read), len(read & will_be_read)


@given(
    st.dictionaries(st.sampled_from([P0, P1, OTHER]), st.builds(Position, offsets, ids)),
    st.dictionaries(st.sampled_from([P0, P1, P2, OTHER]), found_),
    st.builds(Policies, jumps, jumps, jumps, st.sampled_from(["stop", "keep"])),
    st.data(),
)
def test_every_partition_has_one_row_whose_start_and_counts_are_right(
    stored: dict[TopicPartition, Position],
    found: dict[TopicPartition, Bounds],
    policies: Policies,
    data: st.DataObject,
) -> None:
    within = {tp: st.integers(here.beginning, here.end) for tp, here in found.items()}
    first, by_hand = (data.draw(st.fixed_dictionaries({}, optional=within)) for _ in range(2))
    result = planned(stored, found, policies, first=first, by_hand=by_hand)
    assert [row.topic_partition for row in result.rows] == sorted(stored.keys() | found.keys())
    for row in result.rows:
        assert (row.lost, row.skipped, row.replayed) == counted(row)
        assert row.stops == (row.start is None and row.policy.endswith("=stop"))
        if row.start is not None:
            assert row.bounds is not None
            assert row.bounds.beginning <= row.start <= row.bounds.end
            assert result.places.get(row.topic_partition, row.stored or Position(-1)).offset == row.start
        else:
            assert row.topic_partition not in result.places
        if row.skipped:
            assert row.verdict in {Verdict.GIVEN, Verdict.FIRST_RUN} or row.policy.endswith("=end")
    assert json.loads(json.dumps(result.as_dict())) == result.as_dict()


@given(st.builds(Position, offsets, ids), found_, st.builds(Policies, jumps, jumps, jumps))
def test_a_plan_once_stored_is_resumed_by_the_next(position: Position, here: Bounds, policies: Policies) -> None:
    """So a run that ends right after its start begins the next time where it would have begun."""
    result = planned({P0: position}, {P0: here}, policies)
    if only(result).stops:
        return
    again = only(planned({P0: position} | result.places, {P0: here}))
    assert (again.verdict, again.start) == (Verdict.RESUME, only(result).start)


def test_an_offset_by_hand_counts_again_for_a_partition_that_was_forgotten() -> None:
    """For one that was read on it does not; nor for one whose position is lost."""

    def row(stored: dict[TopicPartition, Position], missing: tuple[TopicPartition, ...] = ()) -> PlanRow:
        first = FirstOffsets(given={P0: 50}, again=True)
        return plan("g", stored, {P0: Bounds(0, 100, "id")}, Policies(), first, missing=missing).rows[0]

    assert row({P0: Position(70, "id")}).verdict is Verdict.GIVEN_AGAIN
    assert row({}, (P0,)).stops
    assert (row({}).verdict, row({}).start) == (Verdict.GIVEN, 50)
