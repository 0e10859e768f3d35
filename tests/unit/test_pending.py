"""What becomes of a batch: the tables in code and docstring, line by line, and what holds in every situation."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import product

import pytest

from offsetkeeper.core import pending
from offsetkeeper.core.batch import Batch, Program, QueryBatch
from offsetkeeper.core.mark import Landing
from offsetkeeper.core.model import Guarantee, Having
from offsetkeeper.core.offsets import OffsetRange, Position, TopicPartition
from offsetkeeper.core.pending import (
    Fate,
    Line,
    Situation,
    after_failure,
    at_start,
    check_program,
    check_unsettled,
    has,
    told,
    when_given_up,
    when_poisoned,
    when_unsettled,
)
from offsetkeeper.core.plan import Policies
from offsetkeeper.errors import CheckpointMismatch, OffsetkeeperError, StartRefused

QUERY, OTHER = "11111111-1111-1111-1111-111111111111", "22222222-2222-2222-2222-222222222222"
RANGE, COUNT = OffsetRange("t", 0, 10, 15), QueryBatch(QUERY, 3)
AT = {TopicPartition("t", 0): Position(10)}
EDITED = {TopicPartition("t", 0): Position(11)}
BATCH = Batch("g", "token", 7, (RANGE,), lands_in=("one", "two"))


def program_of(topics: tuple[str, ...], outputs: dict[str, str]) -> Program:
    """Return a program whose outputs, but for functions, tell where they are."""
    return Program(topics, outputs, {name: each for name, each in outputs.items() if " " in each})


HERE = program_of(("t",), {"one": "Table x", "two": "Table z", "dead_letters": "Table x"})
PROGRAMS = {
    "another topic": (program_of(("u",), {"one": "Table x"}), True),
    "another output": (program_of(("t",), {"one": "Table y"}), True),
    "another kind": (program_of(("t",), {"one": "DeltaTable x"}), True),
    "a function": (program_of(("t",), {"one": "Function"}), False),
    "a function of other topics": (program_of(("u",), {"one": "Function"}), True),
    "a topic more": (program_of(("t", "u"), {"one": "Table x"}), False),
    "an output more": (program_of(("t",), {"one": "Table x", "two": "Table y"}), False),
}
BATCHES = (
    BATCH,
    replace(BATCH, program=program_of(("u",), {"one": "Table y"})),
    replace(BATCH, program=program_of(("t",), {"one": "Table z"})),
    replace(BATCH, written=("one",)),
    replace(BATCH, query=COUNT),
    replace(BATCH, query=COUNT, ranges=(), program=program_of(("t",), {"one": "Table z"})),
    replace(BATCH, lands_in=("dead_letters",)),
    replace(
        BATCH, lands_in=("dead_letters",), program=program_of(("t",), {"one": "Table x", "dead_letters": "Table y"})
    ),
)
SAYS = (None, Landing.ABSENT, Landing.LANDED, Landing.ELSEWHERE, Landing.VOID, Landing.PARTLY, Landing.CUT)
OUTPUTS = ("one", "two", "dead_letters")
PENDING = "at a start, of the pending batch of an earlier run"
UNSETTLED = "at a start, of an unsettled batch, which a reset has dropped"
PLANNED = "when a query runs a batch, and one is pending"
TABLES = {
    PENDING: pending.AT_START,
    UNSETTLED: pending.WHEN_UNSETTLED,
    "after a failure, before the next attempt of a run without a query": pending.AFTER_FAILURE,
    "when one of the tables above drops a pending batch, or the quarantine cuts a batch": pending.WHEN_GIVEN_UP,
    "when a record fails, before the quarantine cuts the batch": pending.WHEN_POISONED,
    PLANNED: pending.WHEN_PLANNED,
}


def situations() -> Iterator[Situation]:
    """Yield a batch with all that may be known of it."""
    yield from (
        Situation(batch, AT, problems, guarantee, policies, outputs, landings, marked, query, program=HERE)
        for batch, one, two, guarantee, policies, problems, query, outputs, marked in product(
            BATCHES,
            SAYS,
            SAYS,
            Guarantee,
            (Policies(), Policies(pending="finish"), Policies(pending="drop")),
            ((), ("'t 0: 10 to 15' cannot be read: Kafka holds 12 to 20",)),
            (None, "", QUERY, OTHER),
            (OUTPUTS, ("one",)),
            (None, ("one",)),
        )
        for landings in [{name: each for name, each in _marks(batch, one, two) if each is not None}]
    )


def _marks(batch: Batch, one: Landing | None, two: Landing | None) -> tuple[tuple[str, Landing | None], ...]:
    names = ("dead_letters", "one") if batch.lands_in == ("dead_letters",) else ("one", "two")
    return ((names[0], one), (names[1], two))


SHARED = replace(BATCH, program=program_of(("t",), {"one": "Table z", "more": "Table z"}))


@functools.cache
def every() -> list[Situation]:
    """Return all situations: more than 100,000, so only once they are needed."""
    found = [*situations()]
    fifth = found[::5]  # no choice has five ways, so each meets each
    found += [replace(each, positions=EDITED) for each in fifth]
    return found + [replace(each, batch=SHARED) for each in fifth if each.batch is BATCH]


@functools.cache
def starts() -> list[tuple[Situation, Fate | type[OffsetkeeperError]]]:
    """Return all situations, each with what a start does."""
    return [(found, attempt(at_start, found)) for found in every()]


def documented() -> dict[str, list[tuple[str, str]]]:
    """Return the tables in the docstring: of each occasion, the lines and what they lead to."""
    tables = re.findall(r"^(\w[^\n]*?):\n((?:    \S[^\n]*\n)+)", pending.__doc__ or "", re.MULTILINE)
    return {name: [tuple(re.split(r"\s{2,}", line.strip())) for line in lines.splitlines()] for name, lines in tables}  # type: ignore[misc]


def outcome(line: Line, found: Situation) -> str:
    return line.then.name if isinstance(line.then, Fate) else type(line.then(found)).__name__


def deciding(table: Sequence[Line], found: Situation) -> Line:
    return next(line for line in table if line.fits(found))


def attempt(decide: Callable[[Situation], Fate], found: Situation) -> Fate | type[OffsetkeeperError]:
    try:
        return decide(found)
    except OffsetkeeperError as error:
        return type(error)


def situations_of(occasion: str) -> Iterator[Situation]:
    """Yield what may be known on an occasion."""
    if occasion == PLANNED:
        yield from (replace(every()[0], planned=planned) for planned in (BATCH, replace(BATCH, sequence=8)))
        return
    if occasion in {PENDING, UNSETTLED}:
        yield from (replace(each, given=AT.keys()) for each in every()[::11])
    yield from every()
    if occasion not in {PENDING, UNSETTLED}:
        yield from (replace(each, begun=False) for each in every())


@pytest.mark.parametrize("occasion", TABLES)
def test_the_docstring_has_the_lines_of_the_table_and_each_decides_somewhere(occasion: str) -> None:
    table = TABLES[occasion]
    decided: dict[str, str] = {}
    for found in situations_of(occasion):
        line = deciding(table, found)
        decided.setdefault(line.words, outcome(line, found))
        if len(decided) == len(table):
            break
    assert documented()[occasion] == [(line.words, decided[line.words]) for line in table]


def test_the_docstring_has_no_other_tables() -> None:
    assert documented().keys() == TABLES.keys()


def test_a_start_never_loses_or_doubles_rows_against_guarantee_and_policy() -> None:
    for found, fate in starts():
        letters = found.batch.lands_in == ("dead_letters",)
        if found.policies.pending == "drop":
            assert fate is (StartRefused if found.astray or found.taken or found.unclear else Fate.DROP), found
            continue
        foreign = found.foreign and found.policies.pending == "own"
        if foreign or found.moved or found.taken or found.unclear or {*found.batch.lands_in} - {*found.outputs}:
            assert fate is StartRefused, found
        if found.guarantee is Guarantee.AT_MOST_ONCE:
            assert fate in {Fate.COUNT, StartRefused}, found
            continue
        if fate is Fate.COUNT:
            assert found.had, found
        if fate is Fate.FINISH or fate is Fate.WAIT:
            assert not found.losses, found
        if fate is Fate.DROP and found.exactly and not letters:
            assert found.had is False, found
        if fate is Fate.WAIT:
            assert (found.batch.query, found.query) == (COUNT, QUERY), found
        if fate is CheckpointMismatch:
            assert found.query != (None if found.batch.query is None else QUERY), found


def test_rows_that_an_output_has_are_not_dropped_exactly_once_in_mid_run() -> None:
    for found in every():
        landed = {each for each in found.landings.values() if each in {Landing.LANDED, Landing.PARTLY, Landing.CUT}}
        given_up, poisoned = attempt(when_given_up, found), attempt(when_poisoned, found)
        if found.exactly and found.policies.pending != "drop":
            assert given_up is not Fate.DROP or not landed, found
            assert poisoned is Fate.KEEP or not found.having or found.had, found
        else:
            assert given_up is not StartRefused, found
            assert poisoned is Fate.DROP, found


def test_a_batch_is_dropped_after_a_failure_only_if_it_is_lost_and_rows_are_not_lost_with_it() -> None:
    for each in every():
        for found in (each, replace(each, begun=False)):
            fate = attempt(after_failure, found)
            if not found.problems:
                assert fate is Fate.FINISH, found
            elif found.begun and found.exactly:
                assert fate is {None: StartRefused, True: Fate.COUNT, False: Fate.DROP}[found.had], found
                assert fate is not Fate.DROP or not found.having, found
            else:
                assert fate is Fate.DROP, found


def test_a_batch_that_is_in_another_target_is_neither_finished_nor_counted() -> None:
    found = [each for each in every() if each.diverted]
    for each in found:
        drops = each.policies.pending == "drop"
        assert attempt(at_start, each) is StartRefused or drops, each
        assert attempt(when_given_up, each) is (StartRefused if each.once else Fate.DROP), each
        assert attempt(when_poisoned, each) is (Fate.KEEP if each.once else Fate.DROP), each
        assert each.held is not Having.NONE, each
    assert {each.once for each in found} == {True, False}


def test_a_batch_that_is_lost_is_not_dropped_in_other_outputs_than_those_that_may_have_it() -> None:
    found = [each for each in every() if each.anew and each.exactly and each.losses and not each.had]
    assert {attempt(at_start, each) for each in found} <= {StartRefused, CheckpointMismatch}


def test_an_unsettled_batch_counts_only_if_all_outputs_have_it_and_no_state_lacks_it() -> None:
    for found in every():
        fate = attempt(when_unsettled, found)
        if fate is Fate.COUNT:
            assert found.had, found
            assert found.query is None, found
        gone = found.marked is not None and {*found.batch.lands_in} - {*found.marked}
        names = bool(found.taken or found.unclear)
        if found.policies.pending == "drop" or names:
            assert (fate is StartRefused) is names, found
        elif gone or found.astray or (found.diverted and found.having):
            assert fate is StartRefused, found
        else:
            assert fate is (Fate.COUNT if found.had and found.query is None else Fate.DROP), found


@pytest.mark.parametrize("says", [Landing.PARTLY, Landing.CUT])
def test_a_batch_of_which_an_output_has_a_part_is_neither_had_nor_absent(says: Landing) -> None:
    assert has(BATCH, ["one"], {"one": says}) is None
    assert has(BATCH, ["one", "two"], {"one": says, "two": Landing.LANDED}) is None


def test_an_operator_is_told_each_fate_in_words_of_its_own() -> None:
    found, fates = replace(every()[0], query=QUERY), {*Fate} - {Fate.KEEP}
    assert len({told(fate, found) for fate in fates}) == len(fates)


def test_a_counted_batch_is_called_had_only_where_its_outputs_have_it() -> None:
    batch = replace(BATCH, lands_in=("one",))
    for landing, why in ((Landing.LANDED, "its outputs have it"), (Landing.PARTLY, "it may have been written")):
        found = Situation(batch, AT, (), Guarantee.AT_MOST_ONCE, Policies(), ["one"], {"one": landing})
        assert told(Fate.COUNT, found) == f"the next start counts it as done, because {why}"


def test_a_dropped_batch_names_the_policy_only_where_the_policy_drops_it() -> None:
    for found, fate in starts():
        if fate is Fate.DROP and not found.problems:
            assert ("by policy" in told(Fate.DROP, found)) is (found.policies.pending == "drop"), found
            assert ("it counts as done" in told(Fate.DROP, found)) is bool(found.batch.lands_in), found


def test_a_batch_that_cannot_be_dropped_names_the_output_also_if_kafka_holds_its_records() -> None:
    found = Situation(BATCH, AT, (), Guarantee.EXACTLY_ONCE, Policies(), OUTPUTS, {"one": Landing.PARTLY})
    found = replace(found, failure="it fails with ValueError")
    with pytest.raises(
        StartRefused, match="it fails with ValueError\n  output 'one' has it, or a part of it"
    ) as refused:
        when_given_up(found)
    assert "Kafka still holds" not in str(refused.value)


def test_a_drop_of_a_lost_batch_promises_only_the_records_that_are_there() -> None:
    here = [each for each in every() if not each.astray]
    lost = [each for each in here if deciding(pending.AT_START, each).words.startswith("it is lost, ")]
    assert {"those of its records that Kafka still holds" in str(_refusal(each)) for each in lost if each.problems} == {
        True
    }
    assert {"Kafka still holds" in str(_refusal(each)) for each in lost if not each.problems} == {False}


def _refusal(found: Situation) -> StartRefused:
    with pytest.raises(StartRefused) as refused:
        at_start(found)
    return refused.value


def test_an_output_that_has_lost_its_mark_is_not_called_missing() -> None:
    found = Situation(BATCH, AT, (), Guarantee.EXACTLY_ONCE, Policies(), OUTPUTS, marked=())
    assert "'one', which keeps a mark, but this program has it without a mark" in str(_refusal(found))
    assert "no such output, only output 'two'" in str(_refusal(replace(found, outputs=("two",))))


@pytest.mark.parametrize("change", PROGRAMS)
def test_another_program_reads_none_of_the_topics_or_has_none_of_the_outputs(change: str) -> None:
    other, foreign = PROGRAMS[change]
    found = Situation(replace(BATCH, program=HERE), AT, (), Guarantee.AT_LEAST_ONCE, Policies(), ("one", "two"))
    assert replace(found, program=other).foreign is foreign
    assert not replace(found, program=HERE).foreign


def test_a_program_that_drops_the_topic_of_the_batch_and_keeps_another_one_is_the_same() -> None:
    began = replace(BATCH, program=program_of(("t", "u"), {"one": "Table x"}))
    found = Situation(began, AT, (), Guarantee.AT_LEAST_ONCE, Policies(), ("one", "two"))
    assert not replace(found, program=program_of(("u",), {"one": "Table x"})).foreign


def test_a_program_whose_pattern_had_found_no_topic_is_the_same_once_it_finds_some() -> None:
    """It took over a batch before it had a position of its own."""
    began = replace(BATCH, program=program_of((), {"one": "Table x"}))
    found = Situation(began, AT, (), Guarantee.AT_LEAST_ONCE, Policies(), ("one", "two"), program=HERE)
    assert not found.foreign
    assert replace(found, program=program_of(("t",), {"one": "Table y"})).foreign


def test_no_refusal_of_another_program_advises_a_policy_that_is_refused_too() -> None:
    for found in (each for each in every() if each.foreign):
        try:
            check_program(found)
            at_start(found)
        except StartRefused as refused:
            told = str(refused)
            finish, drop = (replace(found, policies=Policies(pending=word)) for word in ("finish", "drop"))
            if "Policies(pending='drop') drops" in told:
                assert at_start(drop) is Fate.DROP, found
            elif "Policies(pending='drop')" in told:
                assert "Start that program once" in told, found
            if "Policies(pending='finish')" in told and "same names" not in told and not finish.moved:
                told = str(_told(finish))
                assert "another program" not in told or "share a mark" in told, found
        except OffsetkeeperError:
            pass


def _told(found: Situation) -> OffsetkeeperError | None:
    try:
        at_start(found)
    except OffsetkeeperError as error:
        return error
    return None


@pytest.mark.parametrize(("outputs", "said"), [(("one", "two"), ""), (("one",), "the same names for that: 'two'.")])
def test_who_may_finish_under_the_names_of_the_outputs_is_told_the_names(outputs: tuple[str, ...], said: str) -> None:
    began = replace(BATCH, program=program_of(("t",), {"one": "Table y"}))
    found = Situation(began, AT, (), Guarantee.EXACTLY_ONCE, Policies(), outputs, program=HERE)
    with pytest.raises(StartRefused, match="pending='finish'") as refused:
        check_program(found)
    assert said in str(refused.value)
    assert bool(said) is ("same names" in str(refused.value))


def test_another_program_is_not_told_to_finish_what_an_output_without_a_mark_has() -> None:
    """What this output has cannot be forgotten: it would miss in the one that has its name now."""
    began = replace(BATCH, lands_in=(), written=("one",), program=program_of(("t",), {"one": "Table y"}))
    found = Situation(began, AT, (), Guarantee.EXACTLY_ONCE, Policies(), ("one", "two"), program=HERE)
    with pytest.raises(StartRefused) as refused:
        check_program(found)
    assert "finish" not in str(refused.value)
    with pytest.raises(StartRefused, match="writes elsewhere under that name"):
        at_start(replace(found, policies=Policies(pending="finish")))


def test_marked_dead_letters_of_another_program_are_neither_finished_nor_dropped() -> None:
    """A void mark would be in the wrong dead letters, and the record would be in the others and be tried again."""
    there, here = (program_of(("t",), {"one": "Table x", "dead_letters": f"Table {name}"}) for name in ("y", "z"))
    began = replace(BATCH, lands_in=("dead_letters",), program=there)
    found = Situation(began, AT, (), Guarantee.EXACTLY_ONCE, Policies(), OUTPUTS, program=here)
    for policy in ("own", "finish", "drop"):
        with pytest.raises(StartRefused, match="another program began it") as refused:
            at_start(replace(found, policies=Policies(pending=policy)))
        assert "finish" not in str(refused.value)
    assert at_start(replace(found, program=there)) is Fate.DROP


def test_outputs_and_dead_letters_are_compared_apart() -> None:
    there, here = (program_of(("t",), {"one": f"Table {name}", "dead_letters": "Table z"}) for name in ("x", "y"))
    found = Situation(replace(BATCH, program=there), AT, (), Guarantee.EXACTLY_ONCE, Policies(), OUTPUTS, program=here)
    assert found.foreign
    assert not replace(found, batch=replace(found.batch, lands_in=("dead_letters",))).foreign


@pytest.mark.parametrize(
    ("began", "here", "renamed"),
    [
        ({"a": "Table x"}, {"a": "Table x"}, {}),
        ({"a": "Table x"}, {"b": "Table x"}, {"b": "a"}),
        ({"": "Table x"}, {"a": "Table x", "b": "Table y"}, {"a": ""}),
        ({"a": "Table x", "b": "Table y"}, {"a": "Table y", "b": "Table x"}, {"a": "b", "b": "a"}),
        ({"a": "Table x", "b": "Table y"}, {"b": "Table x", "c": "Table y"}, {"b": "a", "c": "b"}),
        ({"a": "Table x", "b": "Table y"}, {"a": "Table z", "c": "Table y"}, {"c": "b"}),
        ({"a": "Table x"}, {"b": "Table x", "c": "Table x"}, {}),  # either could be it
        ({"a": "Table x", "b": "Table x"}, {"c": "Table x"}, {}),
        ({"a": "Table x"}, {"a": "Table x", "b": "Table x"}, {}),
        ({"a": "Function"}, {"b": "Function"}, {}),  # it does not tell its place
        ({"dead_letters": "Table x"}, {"a": "Table x"}, {}),
        ({"a": "Table x"}, {"dead_letters": "Table x"}, {}),
    ],
)
def test_an_output_is_known_by_its_place(began: dict[str, str], here: dict[str, str], renamed: dict[str, str]) -> None:
    assert program_of((), here).old_names(program_of((), began)) == renamed
    elsewhere = program_of((), here)._replace(places=dict.fromkeys(here, "another server"))
    assert elsewhere.old_names(program_of((), began)) == {}


@pytest.mark.parametrize(
    ("began", "here", "unclear"),
    [
        ({"a": "Table x"}, {"b": "Table x"}, []),
        ({"a": "Table x"}, {"b": "Table x", "c": "Table x"}, ["a"]),
        ({"a": "Table x", "b": "Table x"}, {"c": "Table x"}, ["a", "b"]),
        ({"a": "Table x", "b": "Table x"}, {"a": "Table x", "c": "Table x"}, ["b"]),
        ({"a": "Table x", "b": "Table x"}, {"a": "Table x"}, []),  # it is left out, not renamed
        ({"a": "Table x"}, {"a": "Table x", "b": "Table x"}, []),
        ({"a": "Table x"}, {"a": "Table y", "b": "Table x", "c": "Table x"}, ["a"]),
        ({"a": "Function", "b": "Function"}, {"c": "Function"}, []),
    ],
)
def test_an_output_that_shares_its_place_is_not_guessed(
    began: dict[str, str], here: dict[str, str], unclear: list[str]
) -> None:
    batch = replace(BATCH, program=program_of((), began))
    assert batch.unclear(program_of((), here)) == unclear
    found = Situation(batch, AT, (), Guarantee.EXACTLY_ONCE, Policies(), (*began,), program=program_of((), here))
    assert found.unclear == unclear
    assert replace(found, guarantee=Guarantee.AT_LEAST_ONCE).unclear == []  # there are no marks
    assert replace(found, batch=replace(batch, lands_in=("dead_letters",))).unclear == []


@pytest.mark.parametrize("here", [{"two": "Table x", "one": "Table y"}, {"other": "Table x"}])
def test_a_name_that_has_gone_from_one_output_to_another_is_told(here: dict[str, str]) -> None:
    began = replace(BATCH, program=program_of(("t",), {"one": "Table x", "other": "Table z"}))
    program = program_of(("t",), here)
    found = Situation(began, AT, (), Guarantee.EXACTLY_ONCE, Policies(), ("one", "one"), program=program)
    letter = replace(found, batch=replace(began, lands_in=("dead_letters",)))
    check_program(letter)
    for early in (check_program, check_unsettled):
        with pytest.raises(
            StartRefused, match=r"begun for output 'one', which is '(two|other)' here, and a name has gone"
        ):
            early(found)


def test_a_refusal_names_the_outputs_as_the_program_does() -> None:
    began = replace(BATCH, program=program_of(("t",), {"one": "Table x", "two": "Table y"}))
    here = program_of(("t",), {"new": "Table x"})
    found = Situation(began, AT, (), Guarantee.EXACTLY_ONCE, Policies(), ("one",), marked=("one",), program=here)
    assert "the program has no such output, only output 'new'. Start once" in str(_refusal(found))


def test_a_batch_that_does_not_name_its_program_may_be_of_any() -> None:
    found = Situation(BATCH, AT, (), Guarantee.AT_LEAST_ONCE, Policies(), ("one", "two"))
    assert not replace(found, program=HERE).foreign
