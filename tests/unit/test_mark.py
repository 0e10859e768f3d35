"""The marks that outputs keep, and what becomes of a batch by them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from offsetkeeper.core.batch import Batch, Program, QueryBatch
from offsetkeeper.core.mark import Landing, OutputMark, above, check_marks, landing, together
from offsetkeeper.core.model import Guarantee, Having, Landed, Snapshot
from offsetkeeper.core.offsets import OffsetRange, Position, TopicPartition
from offsetkeeper.core.pending import Fate, Situation, at_start, has, landed_text
from offsetkeeper.core.plan import Policies
from offsetkeeper.errors import MarkAhead, MarkBehind, MarkError, MarkMismatch, StartRefused

RANGES = (OffsetRange("t", 0, 10, 15),)
COUNT = QueryBatch("00000000-0000-0000-0000-000000000001", 3)
BATCH = Batch("g", "token", 7, RANGES, lands_in=("one", "two"))
LEDGER = Snapshot("g", 9, sequence=7, positions={TopicPartition("t", 0): Position(10)})
MINE = OutputMark.of(BATCH)
AT = {TopicPartition("t", 0): Position(10)}
A, L, V = Landing.ABSENT, Landing.LANDED, Landing.VOID


@pytest.mark.parametrize(
    ("mark", "says"),
    [
        (None, Landing.ABSENT),
        (MINE._replace(sequence=6), Landing.ABSENT),
        (MINE, Landing.LANDED),
        (MINE._replace(void=True), Landing.VOID),
        (MINE._replace(token="other"), Landing.OTHER),
        (MINE._replace(digest="0" * 16), Landing.ELSEWHERE),
        (MINE._replace(digest="0" * 16, partly=True), Landing.ELSEWHERE),
        (MINE._replace(digest="0" * 16, void=True), Landing.VOID),
        (MINE._replace(digest="0" * 16, token="other", void=True), Landing.OTHER),
        (MINE._replace(partly=True), Landing.PARTLY),
        (MINE._replace(partly=True, void=True), Landing.CUT),
        (MINE._replace(partly=True, token="other"), Landing.OTHER),
        (MINE._replace(sequence=8), Landing.PASSED),
        (MINE._replace(sequence=8, void=True), Landing.PASSED),
    ],
)
def test_a_mark_is_compared_by_its_sequence_and_then_by_its_token_and_digest(
    mark: OutputMark | None, says: Landing
) -> None:
    assert landing(mark, BATCH) is says


@pytest.mark.parametrize(
    ("slots", "says"),
    [
        ((None, None), None),
        ((None, MINE), None),
        ((MINE, MINE), MINE),
        ((MINE._replace(void=True), None), MINE._replace(void=True)),
        ((MINE, None), MINE._replace(partly=True)),
        ((MINE, MINE, MINE._replace(sequence=6)), MINE._replace(partly=True)),
        ((MINE, MINE, MINE._replace(void=True)), MINE._replace(partly=True, void=True)),
    ],
)
def test_the_first_slot_leads_and_the_others_complete_it(
    slots: tuple[OutputMark | None, ...], says: OutputMark | None
) -> None:
    assert together(slots) == says


def test_a_batch_whose_rest_was_dropped_cannot_be_finished_exactly_once() -> None:
    found = Situation(BATCH, AT, (), Guarantee.EXACTLY_ONCE, Policies(), ["one", "two"])
    with pytest.raises(StartRefused, match="output 'one' has the mark of a run that dropped it"):
        at_start(replace(found, landings={"one": Landing.CUT, "two": A}))
    assert at_start(replace(found, landings={"one": Landing.PARTLY, "two": A})) is Fate.FINISH
    assert landed_text(replace(found, landings={"one": Landing.CUT})).startswith(
        "output 'one' has a part of it, and will not get the rest"
    )


@pytest.mark.parametrize(
    ("mark", "target", "says"),
    [
        (OutputMark.of(BATCH, "orders"), "orders", Landing.LANDED),
        (OutputMark.of(BATCH, "orders"), "payments", Landing.ELSEWHERE),
        (OutputMark.of(BATCH, "orders"), "", Landing.ELSEWHERE),
        (OutputMark.of(BATCH, "orders", void=True), "payments", Landing.VOID),
        (MINE, "orders", Landing.LANDED),  # of release 0.2
    ],
)
def test_tables_that_share_a_mark_do_not_share_a_batch(mark: OutputMark, target: str, says: Landing) -> None:
    assert landing(mark, BATCH, target) is says
    assert OutputMark.parse(str(mark)) == mark


def test_where_no_output_is_asked_nothing_is_known() -> None:
    assert has(replace(BATCH, lands_in=("dead_letters",)), [], {"one": V}) is None


def test_a_mark_without_a_target_may_be_of_another_one_where_another_program_finishes_the_batch() -> None:
    assert landing(OutputMark.of(BATCH, "orders"), BATCH, "orders", exact=True) is Landing.LANDED
    for mark, target in ((MINE, "orders"), (MINE, ""), (OutputMark.of(BATCH, "orders"), "payments")):
        assert landing(mark, BATCH, target, exact=True) is Landing.ELSEWHERE
    assert landing(MINE._replace(void=True), BATCH, exact=True) is Landing.VOID


def test_the_digest_is_of_the_ranges_and_the_target() -> None:
    """So it is the same for each try of the batch, and without a target in each release."""
    assert OutputMark.of(replace(BATCH, query=COUNT, retry=True, written=("x",))) == MINE
    assert OutputMark.of(replace(BATCH, ranges=(OffsetRange("t", 0, 10, 16),))).digest != MINE.digest


def test_a_mark_is_written_as_text_and_read_back() -> None:
    for mark in (MINE, MINE._replace(void=True)):
        assert OutputMark.parse(str(mark)) == mark


@pytest.mark.parametrize(
    "text", ["", "7", "7 token", "x token 00", "7 token 00 VOID", "7 token 00 void more", "\u0667 t 0", None]
)
def test_what_is_not_a_mark_is_told(text: str) -> None:
    with pytest.raises(MarkError, match="is not a mark of offsetkeeper"):
        OutputMark.parse(text)


def test_a_start_is_refused_where_the_marks_do_not_fit() -> None:
    landed = replace(LEDGER, landed={"one": Landed(7)})
    fits = [(LEDGER, None), (LEDGER, MINE), (landed, MINE), (landed, MINE._replace(token="other"))]
    for snapshot, mark in fits:
        check_marks(snapshot, {"one": mark})
    with pytest.raises(
        MarkAhead, match=r"output 'one' has batch 8 .* is at batch 7.*adopt g --output one --sequence 8"
    ):
        check_marks(LEDGER, {"one": MINE._replace(sequence=8)})
    ahead = dict.fromkeys(["one", "two"], MINE._replace(sequence=8))
    with pytest.raises(MarkAhead, match=r"(?s)--output one --sequence 8\n.*--output two --sequence 8$"):
        check_marks(LEDGER, {**ahead, "three": MINE})
    for mark in (None, MINE._replace(sequence=6)):
        with pytest.raises(MarkBehind, match=r"the ledger says that it has batch 7: the output was restored"):
            check_marks(landed, {"one": mark})
    check_marks(replace(LEDGER, pending=BATCH), {"one": MINE._replace(void=True)})
    with pytest.raises(MarkMismatch, match="two ledgers write into one output"):
        check_marks(replace(LEDGER, pending=BATCH), {"": MINE._replace(token="other")})


def test_a_start_is_refused_where_an_output_has_lost_a_batch_that_the_others_wait_for() -> None:
    """The pending batch would not be written into that output again."""
    ledger = replace(LEDGER, landed={"one": Landed(7), "two": Landed(5)}, pending=replace(BATCH, written=("one",)))
    check_marks(ledger, {"one": MINE, "two": MINE._replace(sequence=5)})
    for mark in (None, MINE._replace(sequence=5)):
        with pytest.raises(MarkBehind, match=r"output 'one' has .*, but the ledger says that it has batch 7"):
            check_marks(ledger, {"one": mark, "two": MINE._replace(sequence=5)})


def test_an_output_that_kept_no_mark_when_the_pending_batch_was_written_may_keep_one_now() -> None:
    """As where a right that marks need was missing, and is given: the batch is not written there again."""
    pending = replace(BATCH, written=("one",), lands_in=("two",))
    check_marks(replace(LEDGER, pending=pending), {"one": None, "two": MINE._replace(sequence=5)})


def test_a_missing_mark_that_may_have_expired_does_not_gainsay_what_the_ledger_says() -> None:
    """Nobody deleted the rows: written again, they would be there twice."""
    ledger = replace(LEDGER, landed={"one": Landed(7)}, pending=replace(BATCH, written=("one",)))
    check_marks(ledger, {"one": None, "two": None}, {"one"})
    with pytest.raises(MarkBehind):
        check_marks(ledger, {"one": MINE._replace(sequence=5)}, {"one"})


def test_a_mark_that_may_expire_is_needed_only_where_a_batch_is_pending() -> None:
    """Only it tells whether that batch has landed. One that is there is compared all the same."""
    landed = replace(LEDGER, landed={"one": Landed(7)})
    check_marks(landed, {"one": None}, {"one"})
    for ledger, mark, expiring in (
        (landed, None, {"other"}),
        (replace(landed, pending=BATCH), None, {"one"}),
        (landed, MINE._replace(sequence=6), {"one"}),
    ):
        with pytest.raises(MarkBehind):
            check_marks(ledger, {"one": mark}, expiring)


@pytest.mark.parametrize(
    ("landings", "problems", "expected"),
    [
        ({"one": L, "two": L}, [], Fate.COUNT),
        ({"one": L, "two": L}, ["gone"], Fate.COUNT),
        ({"one": L, "two": A}, [], Fate.FINISH),
        ({"one": A, "two": A}, [], Fate.FINISH),
        ({"one": A, "two": A}, ["gone"], Fate.DROP),
        ({"one": V, "two": A}, [], Fate.DROP),
        ({"one": V, "two": V}, ["gone"], Fate.DROP),
        ({"one": L, "two": A}, ["gone"], StartRefused),
        ({"one": L, "two": V}, [], StartRefused),
        ({"one": V}, [], StartRefused),
        ({"one": L}, ["gone"], StartRefused),
        ({}, [], Fate.FINISH),
        ({}, ["gone"], StartRefused),
    ],
)
def test_what_becomes_of_a_pending_batch_by_the_marks(
    landings: dict[str, Landing], problems: list[str], expected: Fate | type[Exception]
) -> None:
    """An output that is not among the landings keeps no mark, so nobody can tell whether it has the batch."""

    def asked(guarantee: Guarantee) -> Fate:
        return at_start(Situation(BATCH, AT, problems, guarantee, Policies(), ["one", "two"], landings))

    if isinstance(expected, Fate):
        assert asked(Guarantee.EXACTLY_ONCE) is expected
    else:
        with pytest.raises(expected):
            asked(Guarantee.EXACTLY_ONCE)
        assert asked(Guarantee.AT_LEAST_ONCE) is Fate.DROP


def test_a_batch_of_a_query_with_state_is_run_again_though_all_outputs_have_it() -> None:
    """Spark needs it for its state; the outputs find that they have it."""
    batch, query = replace(BATCH, query=COUNT), COUNT.query
    every = {"one": L, "two": L}
    found = Situation(batch, AT, [], Guarantee.EXACTLY_ONCE, Policies(), ["one", "two"], every, query=query)
    assert at_start(found) is Fate.WAIT


def test_an_output_that_may_have_the_batch_must_be_there() -> None:
    found = Situation(BATCH, AT, [], Guarantee.EXACTLY_ONCE, Policies(), ["one"])
    with pytest.raises(StartRefused, match="output 'two' may have it"):
        at_start(found)
    assert at_start(replace(found, policies=Policies(pending="drop"))) is Fate.DROP


def test_whether_outputs_have_a_batch_counts_those_that_are_marked_in_the_ledger_too() -> None:
    written = replace(BATCH, written=("three",))
    assert has(written, ("one", "three"), {"one": L}) is True
    assert has(written, ("one", "three"), {"one": A}) is None
    assert has(BATCH, ("one", "three"), {"one": A}) is None
    assert has(BATCH, ("one",), {"one": A}) is False


def test_what_became_of_a_dropped_batch_is_told_for_each_output() -> None:
    batch = replace(BATCH, lands_in=("one", "two", "three", "four"), written=("five", "six"))
    landings = {"one": L, "two": V, "three": Landing.PASSED}
    here = ["one", "two", "three", "five", "seven", "eight"]
    found = Situation(batch, AT, (), Guarantee.EXACTLY_ONCE, Policies(), here, landings, joined=("eight",))
    assert landed_text(found).split("; ") == [
        "output 'one' has it",
        "output 'two' does not have it",
        "output 'three' may have it",
        "whether output 'four' has it is unknown: the program has no such output",
        "output 'five' has it",
        "output 'six' has it",
        "output 'seven' may have it, and keeps no mark",
    ]


@pytest.mark.parametrize(
    ("batch", "landings", "joined", "held"),
    [
        (BATCH, {"one": A, "two": V}, (), Having.NONE),
        (BATCH, {"one": A}, ("two",), Having.NONE),
        (BATCH, {}, ("one", "two"), Having.NONE),
        (BATCH, {"one": A}, (), Having.MAYBE),  # the other one keeps no mark
        (BATCH, {}, (), Having.MAYBE),
        (BATCH, {"one": A, "two": Landing.PASSED}, (), Having.MAYBE),
        (BATCH, {"one": A, "two": Landing.OTHER}, (), Having.MAYBE),
        (BATCH, {"one": A, "two": Landing.ELSEWHERE}, (), Having.MAYBE),
        (BATCH, {"one": L, "two": A}, (), Having.SOME),
        (BATCH, {"one": L, "two": L}, (), Having.ALL),
        (replace(BATCH, lands_in=("three",)), {"one": A, "two": A}, (), Having.MAYBE),  # which is away
        (replace(BATCH, program=Program((), {"three": "Function"})), {"one": A, "two": A}, (), Having.MAYBE),
        (replace(BATCH, written=("three",)), {"one": A, "two": A}, (), Having.SOME),
        (replace(BATCH, lands_in=("three",)), {"one": L, "two": L}, (), Having.SOME),
        (replace(BATCH, program=Program((), {"dead_letters": "Function"})), {"one": A, "two": A}, (), Having.NONE),
    ],
)
def test_an_output_that_cannot_be_asked_may_have_a_dropped_batch(
    batch: Batch, landings: dict[str, Landing], joined: tuple[str, ...], held: Having
) -> None:
    found = Situation(batch, AT, (), Guarantee.EXACTLY_ONCE, Policies(), ["one", "two"], landings, joined=joined)
    assert found.held is held


@pytest.mark.parametrize(
    ("sequence", "void", "is_above"), [(4, False, False), (5, False, False), (6, False, True), (6, True, False)]
)
def test_only_a_later_batch_that_an_output_has_is_above_what_the_ledger_knows(
    sequence: int, *, void: bool, is_above: bool
) -> None:
    assert above(Landed(5), OutputMark(sequence, "token", "digest", void)) is is_above
    assert not above(Landed(5), None)
