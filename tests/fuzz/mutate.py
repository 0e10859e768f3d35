"""Makes wrong inputs of right ones: a small generator, whose seed makes each run the same."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence

SECRET = "Hq7Secret9z"
_NASTY = (
    *("@", ":", "/", "//", ":/", ":///", "://", "?", "#", "&", "=", "%", ",", ";", "[", "]", "{", "}", '"', "'", "\\"),
    *(
        "%e4",
        "%00",
        "%40",
        "%3A",
        "%2F",
        "+",
        "-",
        "-1",
        "0",
        "1e999",
        "-1e999",
        "NaN",
        "Infinity",
        "1.5",
        "null",
        "true",
    ),
    *("\0", "\n", "\r\n", "\t", " ", "\ufeff", "\ud800", "\\ud800", "℀", "漢", "é", "\uff11", "²", "\u2028", "\x7f"),
    *("v0", "v1", "v2", "v9", "-", "[[", "]]", "[a]\n", "''", '"""', "1" * 400, "9" * 19, "2026-01-31", "file", "s3"),
)
_HUGE = ("7" * 5_000, "x" * 140_000, "[" * 2_000, "9" * 5_000 + "=1", "[" * 101 + "]" * 101)


class Mutations:
    """Inputs of one kind.

    Args:
        examples: right ones; a run mixes parts of them.
        seed: of the run.
    """

    def __init__(self, examples: Sequence[str], seed: int) -> None:
        self._examples = examples
        self._random = random.Random(seed)  # noqa: S311 - no secret comes of it

    def take(self, count: int) -> Iterator[str]:
        """Yield the right ones, and then so many that are most likely wrong."""
        yield from self._examples
        for _ in range(count):
            text = self._pick(self._examples)
            for _ in range(self._random.choice((1, 1, 1, 2, 2, 3, 5))):
                text = self._changed(text)
            yield text

    def _changed(self, text: str) -> str:
        at, end = sorted(self._random.randrange(len(text) + 1) for _ in range(2))
        other = self._pick(self._examples)
        char = chr(self._random.randrange(self._random.choice((128, 65_536))))
        changes: tuple[Callable[[], str], ...] = (
            lambda: text[:at] + text[end:],
            lambda: text[:end] + text[at:],
            lambda: text[:at] + self._pick(_NASTY) + text[at:],
            lambda: text[:at] + self._pick(_NASTY) + text[at:],
            lambda: text[:at] + self._pick(_NASTY) + text[min(end, at + 12) :],
            lambda: text[:at] + other[self._random.randrange(len(other) + 1) :],
            lambda: text[:at] + char + text[at + 1 :],
            lambda: self._value(text),
            lambda: text[:at] + self._rare() + text[at:],
        )
        return changes[self._random.randrange(len(changes))]()

    def _value(self, text: str) -> str:
        """Put something else in the place of one number or word."""
        parts = [part for part in _split(text) if part]
        if not parts:
            return self._pick(_NASTY)
        number = self._random.randrange(len(parts))
        return "".join([*parts[:number], self._pick((*_NASTY, SECRET)), *parts[number + 1 :]])

    def _rare(self) -> str:
        """Return what is nested or long; rarely, as it takes its time."""
        if self._random.random() < 0.97:
            return self._pick(_NASTY)
        depth = self._random.choice((90, 95, 99, 100, 101, *range(300, 1_001, 7)))
        return self._random.choice((self._pick(_HUGE), "[" * depth + "]" * depth, '{"a":' * depth + "1" + "}" * depth))

    def _pick(self, texts: Sequence[str]) -> str:
        return texts[self._random.randrange(len(texts))]


def _split(text: str) -> list[str]:
    parts, word = [""], False
    for char in text:
        if char.isalnum() != word or not word:
            parts.append("")
            word = char.isalnum()
        parts[-1] += char
    return parts
