"""Limits that make `lag` end with exit code 1: the status, the age and the records of a group."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Annotated

import typer

from offsetkeeper.cli.output import seconds
from offsetkeeper.core.duration import read_duration
from offsetkeeper.errors import SettingsError
from offsetkeeper.operate.lag import Total
from offsetkeeper.operate.status import ALARMING, Status

MaxAge = Annotated[
    str,
    typer.Option(help="Exit code 1 if the oldest unread or held back record is older than this, such as 5m or PT5M."),
]
MaxLag = Annotated[
    int | None, typer.Option(min=0, help="Exit code 1 if more records than this are unread or held back.")
]
FailOn = Annotated[
    str,
    typer.Option(
        help="Exit code 1 at these statuses, such as stopped,stalled. Default: losing data,refused,topic gone."
    ),
]


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits.

    Attributes:
        max_age_s: the highest age of the oldest unread record in seconds, or None.
        max_records: the most unread offsets, or None.
        fail_on: the statuses that give exit code 1.
    """

    max_age_s: float | None = None
    max_records: int | None = None
    fail_on: frozenset[Status] = ALARMING

    @classmethod
    def of(cls, max_age: str, max_lag: int | None, fail_on: str) -> Limits:
        """Return the limits of the command line.

        Raises:
            SettingsError: a value is not a time span, or not a status.
        """
        return cls(read_duration(max_age, "--max-age") if max_age else None, max_lag, _statuses(fail_on))

    def problems(self, name: str, status: Status, of: Total, *, ledger: bool = True) -> Iterator[str]:
        """Yield a sentence for each limit that a group exceeds. An unknown value exceeds any limit that is set.

        Args:
            name: name of the group.
            status: its status.
            of: the sum of its lags.
            ledger: whether it has a ledger. A group of other programs may leave partitions without a commit, and
                `forget` takes none of its positions out whose partitions are gone.
        """
        of = of if ledger else replace(of, without_commit=0, undated_new=0, gone=0)
        if status in self.fail_on:
            yield f"the status of {name} is: {status}"
        if self.max_records is not None:
            yield from self._too_many(name, of, self.max_records)
        if self.max_age_s is not None:
            yield from self._too_old(name, of, self.max_age_s)

    def _too_many(self, name: str, of: Total, most: int) -> Iterator[str]:
        """Yield a sentence if too many records are unread. Held back ones count, and those no run has begun to read."""
        found = None if of.waiting is None else of.waiting + of.held_back + of.without_commit
        if found is None or found > most or of.gone:
            held = f", {of.held_back} of them held back by open transactions" if of.held_back else ""
            new = f", {of.without_commit} of them in partitions without a commit" if of.without_commit else ""
            number = "an unknown number of" if found is None else f"at least {found}" if of.gone else found
            yield f"{name} is {number} records behind{held}{new}{_gone(of)}; --max-lag allows {most}"

    def _too_old(self, name: str, of: Total, most_s: float) -> Iterator[str]:
        """Yield a sentence if the oldest record is too old. Unread and held back records both count."""
        unknown = of.undated or of.beyond or of.waiting is None or of.undated_new or of.gone
        oldest_s = max(of.seconds or 0.0, of.held_back_s or 0.0)
        if unknown or oldest_s > most_s:
            new = ", as partitions without a commit have records" if of.undated_new else ""
            why = ", as times are in the future" if of.ahead else new or _gone(of)
            found = seconds(oldest_s) if oldest_s > most_s else f"not known{why}"
            yield f"{name}: the age of the oldest unread record is {found}; --max-age allows {seconds(most_s)}"


def _gone(of: Total) -> str:
    """Return that partitions are gone, with what was unread of them, and how a group gets rid of them."""
    there = f"{of.gone} partition{' is' if of.gone == 1 else 's are'}"
    return (
        f", as {there} not in Kafka any more: `offsetkeeper forget` takes out what is gone for good" if of.gone else ""
    )


def _statuses(text: str) -> frozenset[Status]:
    words = [word.strip().replace("-", " ") for word in text.split(",") if word.strip()]
    if unknown := sorted({*words} - {*Status}):
        raise SettingsError(f"--fail-on: {unknown[0]!r} is not a status; use {', '.join(Status)}")
    return frozenset(map(Status, words)) if words else ALARMING
