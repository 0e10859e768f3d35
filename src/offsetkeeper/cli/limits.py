"""When `lag` ends with exit code 1: by the status of a group, by its age, by its records."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

import typer

from offsetkeeper.cli.output import seconds
from offsetkeeper.core.duration import read_duration
from offsetkeeper.errors import SettingsError
from offsetkeeper.operate.lag import Total
from offsetkeeper.operate.status import Status

_USUAL = frozenset({Status.LOSING_DATA, Status.REFUSED})

MaxAge = Annotated[
    str, typer.Option(help="Exit code 1 where the oldest unread or held back record is older, such as 5m or PT5M.")
]
MaxLag = Annotated[int | None, typer.Option(min=0, help="Exit code 1 where more records are unread or held back.")]
FailOn = Annotated[
    str, typer.Option(help="Exit code 1 at these statuses, such as stopped,stalled; without it losing data,refused.")
]


@dataclass(frozen=True, slots=True)
class Limits:
    """What is too much.

    Attributes:
        max_age_s: seconds that the oldest unread record may be old, or None.
        max_records: offsets that may be unread, or None.
        fail_on: the statuses that are none to sleep on.
    """

    max_age_s: float | None = None
    max_records: int | None = None
    fail_on: frozenset[Status] = _USUAL

    @classmethod
    def of(cls, max_age: str, max_lag: int | None, fail_on: str) -> Limits:
        """Return the limits that the command line gives.

        Raises:
            SettingsError: one is no time span, or no status.
        """
        return cls(read_duration(max_age, "--max-age") if max_age else None, max_lag, _statuses(fail_on))

    def problems(self, name: str, status: Status, of: Total) -> Iterator[str]:
        """Yield a sentence for each limit that a group is beyond. What is not known is beyond a limit that is set."""
        if status in self.fail_on:
            yield f"{name} is {status}"
        if self.max_records is not None and (of.waiting is None or of.waiting + of.held_back > self.max_records):
            held = f", {of.held_back} of them held back by open transactions" if of.held_back else ""
            found = "not known how far" if of.waiting is None else f"{of.waiting + of.held_back} records"
            yield f"{name} is {found} behind{held}, and {self.max_records} are allowed"
        if self.max_age_s is not None:
            yield from self._too_old(name, of, self.max_age_s)

    def _too_old(self, name: str, of: Total, most_s: float) -> Iterator[str]:
        """Yield a sentence where the oldest record is too old, be it unread or held back: both are late."""
        unknown = (of.waiting != 0 and of.seconds is None) or (of.held_back and of.held_back_s is None)
        oldest_s = max(of.seconds or 0.0, of.held_back_s or 0.0)
        if unknown or oldest_s > most_s:
            found = seconds(oldest_s) if oldest_s > most_s else "not known"
            yield f"{name}: the age of the oldest unread record is {found}, and {seconds(most_s)} are allowed"


def _statuses(text: str) -> frozenset[Status]:
    words = [word.strip().replace("-", " ") for word in text.split(",") if word.strip()]
    if unknown := sorted({*words} - {*Status}):
        raise SettingsError(f"--fail-on {unknown[0]!r} is no status; known are {', '.join(Status)}")
    return frozenset(map(Status, words)) if words else _USUAL
