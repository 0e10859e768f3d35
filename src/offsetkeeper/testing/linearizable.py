"""Whether what concurrent clients were answered is what one register with compare-and-set could have answered.

A history is linearizable if each call can be given one moment between its request and its answer, so that the calls in
the order of these moments get the answers that they got. The search is that of Wing and Gong with Lowe's memory, as in
Porcupine and Knossos: it tries each call that may be the next one, and forgets what it has tried before.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from math import inf
from typing import Any, NamedTuple


class Answer(StrEnum):
    """The answer of a call."""

    DONE = "done"
    REFUSED = "refused"
    """The register did not have the value that was expected; nothing was changed."""
    UNKNOWN = "unknown"
    """No answer: the call takes effect at any time after its request, or never."""


class Call(NamedTuple):
    """One call of a client.

    Attributes:
        client: who called.
        sent: when, by a clock that all clients share.
        answered: when the answer was there; infinite if it is unknown.
        answer: the answer.
        value: the value that was read, or that was to be written.
        expected: the value that the register should have had; None if the call is a read.
    """

    client: str
    sent: float
    answered: float
    answer: Answer
    value: str
    expected: str | None = None

    def after(self, value: str) -> str | None:
        """Return the value of the register after this call found `value`; None if it cannot have got its answer.

        It is None also where an unknown call changes nothing: then it can as well come later, or never.
        """
        if self.expected is None:
            return value if value == self.value else None
        fits = value == self.expected
        if self.answer is Answer.REFUSED:
            return None if fits else value
        return self.value if fits else None


def linearized(calls: Iterable[Call], initial: str = "") -> list[Call] | None:
    """Return the calls in an order that explains all answers, or None if there is none.

    Unknown calls that took no effect are left out.
    """
    given = sorted(calls, key=lambda call: call.sent)
    answered = sum(1 << number for number, call in enumerate(given) if call.answer is not Answer.UNKNOWN)
    tried = set[tuple[int, str]]()
    stack: list[tuple[int, str, Any]] = [
        (0, initial, None)
    ]  # calls made, as bits; value; the last one and those before
    while stack:
        made, value, path = stack.pop()
        if made & answered == answered:
            return list(_unwound(path))[::-1]
        if (made, value) in tried:
            continue
        tried.add((made, value))
        for number in reversed(_next(given, made)):
            after = given[number].after(value)
            if after is not None:
                stack.append((made | 1 << number, after, (given[number], path)))
    return None


def told(calls: Iterable[Call]) -> str:
    """Return a history as text, a line for each call in the order of requests."""
    lines = []
    for call in sorted(calls, key=lambda call: call.sent):
        what = f"read {call.value}" if call.expected is None else f"{call.expected} to {call.value}: {call.answer}"
        lines.append(f"{call.sent:.6f} {call.answered:.6f} {call.client}: {what}")
    return "\n".join(lines)


def _next(calls: Sequence[Call], made: int) -> list[int]:
    """Return the calls that may be the next one: no other one was answered before their request."""
    found, first = list[int](), inf
    for number, call in enumerate(calls):
        if call.sent > first:
            break
        if not made >> number & 1:
            found.append(number)
            first = min(first, call.answered)
    return found


def _unwound(path: Any) -> Iterator[Call]:
    while path is not None:
        call, path = path
        yield call
