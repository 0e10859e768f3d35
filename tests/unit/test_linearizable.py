"""The checker of histories: known violations, and random histories against all orders that there are."""

from __future__ import annotations

from itertools import permutations
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offsetkeeper.testing.linearizable import Answer, Call, linearized, told

DONE, REFUSED, UNKNOWN = Answer.DONE, Answer.REFUSED, Answer.UNKNOWN


def read(sent: float, answered: float, value: str) -> Call:
    return Call("r", sent, answered, DONE, value)


def swap(sent: float, answered: float, expected: str, value: str, answer: Answer = DONE) -> Call:
    return Call("w", sent, inf if answer is UNKNOWN else answered, answer, value, expected)


FINE = {
    "one after the other": [swap(0, 1, "", "a"), read(2, 3, "a"), swap(4, 5, "a", "b"), read(6, 7, "b")],
    "a read beside a write sees either": [swap(0, 9, "", "a"), read(1, 2, ""), read(3, 4, "a")],
    "the slower of two is refused": [swap(0, 5, "", "a"), swap(1, 6, "", "b", REFUSED), read(7, 8, "a")],
    "unknown, and done much later": [swap(0, 0, "", "a", UNKNOWN), read(1, 2, ""), read(3, 4, "a")],
    "unknown, and never done": [swap(0, 0, "", "a", UNKNOWN), swap(1, 2, "", "b"), read(3, 4, "b")],
    "sent again under the same value": [swap(0, 0, "", "a", UNKNOWN), swap(1, 2, "", "a"), read(3, 4, "a")],
    "sent again, and the first was done": [swap(0, 0, "", "a", UNKNOWN), swap(1, 2, "", "a", REFUSED)],
}
WRONG = {
    "a stale read": [swap(0, 1, "", "a"), read(2, 3, "")],
    "a read that goes back": [swap(0, 9, "", "a"), read(1, 2, "a"), read(3, 4, "")],
    "a lost update": [swap(0, 5, "", "a"), swap(1, 6, "", "b")],
    "an acknowledged write that is gone": [swap(0, 1, "", "a"), swap(2, 3, "", "b")],
    "refused, though nothing was changed": [swap(0, 1, "", "a", REFUSED)],
    "refused, and done": [swap(0, 1, "", "a"), swap(2, 3, "", "b", REFUSED), read(4, 5, "b")],
    "applied twice": [swap(0, 1, "", "a"), swap(2, 3, "a", "b"), read(4, 5, "a")],
    "an unknown one that took effect twice": [
        swap(0, 0, "", "a", UNKNOWN),
        swap(1, 2, "a", ""),
        swap(3, 4, "a", "c"),
    ],
    "what nobody wrote": [read(0, 1, "x")],
    "done before it was sent": [read(0, 1, "a"), swap(2, 3, "", "a")],
}


@pytest.mark.parametrize("history", FINE.values(), ids=FINE)
def test_a_history_of_one_register_is_explained(history: list[Call]) -> None:
    found = linearized(history)
    assert found is not None
    assert explains(found, "")


@pytest.mark.parametrize("history", WRONG.values(), ids=WRONG)
def test_a_violation_is_found_also_in_a_long_history(history: list[Call]) -> None:
    assert linearized(history) is None
    chain = [swap(at, at + 1.5, str(at or ""), str(at + 1)) for at in range(200)]
    beside = [swap(at, at + 1.5, "never", f"lost {at}", (REFUSED, UNKNOWN)[at % 2]) for at in range(200)]
    back = swap(201.5, 202, "200", "")
    later = [call._replace(sent=call.sent + 300, answered=call.answered + 300) for call in history]
    assert linearized([*chain, *beside, back]) is not None
    assert linearized([*chain, *beside, back, *later]) is None


def test_a_failure_shows_each_call_in_its_order() -> None:
    assert told(WRONG["a stale read"]).splitlines() == [
        "0.000000 1.000000 w:  to a: done",
        "2.000000 3.000000 r: read ",
    ]


VALUES = st.sampled_from(["", "a", "b", "c"])


@st.composite
def histories(draw: st.DrawFn) -> list[Call]:
    """Draw calls at any times with any answers."""
    calls = []
    for _ in range(draw(st.integers(0, 5))):
        sent = draw(st.integers(0, 8))
        answered = sent + draw(st.integers(0, 5)) + 0.5
        if draw(st.booleans()):
            calls.append(read(sent, answered, draw(VALUES)))
        else:
            calls.append(swap(sent, answered, draw(VALUES), draw(VALUES), draw(st.sampled_from(Answer))))
    return calls


@settings(max_examples=500)
@given(history=histories())
def test_the_search_finds_an_order_exactly_where_trying_all_orders_does(history: list[Call]) -> None:
    found = linearized(history)
    assert (found is not None) == any(explains(list(order), "") for order in subsets(history))
    assert found is None or explains(found, "")


def subsets(history: list[Call]) -> list[tuple[Call, ...]]:
    """Return every order of the calls, with each choice of the unknown ones."""
    answered = [call for call in history if call.answer is not UNKNOWN]
    unknown = [call for call in history if call.answer is UNKNOWN]
    chosen = [[each for n, each in enumerate(unknown) if bits >> n & 1] for bits in range(1 << len(unknown))]
    return [order for some in chosen for order in permutations([*answered, *some])]


def explains(order: list[Call], value: str) -> bool:
    """Whether the calls may have had this order, one after the other."""
    for number, call in enumerate(order):
        if any(later.answered < call.sent for later in order[number + 1 :]):
            return False
        after = call.after(value)
        if after is None:
            return False
        value = after
    return True
