"""Outages of store and Kafka, told once each: while one of them is away, no rule of an alarm can be judged. Pure."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from offsetkeeper.monitor.view import View

_LONG_MS = 60_000
_NAMES = {"store": "the store", "kafka": "Kafka"}


class Outage(NamedTuple):
    """A notice that the store or Kafka is away, or answers again.

    Attributes:
        state: which of both.
        part: the store, or Kafka.
        at_ms: when that was found, milliseconds since 1970.
        error: why it does not answer; empty where it answers.
    """

    state: Literal["away", "answers"]
    part: Literal["store", "kafka"]
    at_ms: int
    error: str

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain values with the fields of other notices; `text` says all of it in a line."""
        name = _NAMES[self.part]
        none = " or has no offsets of any topic" * (self.part == "kafka")  # as where no partition has a leader
        away = f"{name} is away{none}, so no group is measured and no other alarm can come: {self.error}"
        return {
            "state": self.state,
            "rule": None,
            "group": None,
            "what": self.part,
            "value": self.error or None,
            "limit": None,
            "at_ms": self.at_ms,
            "next": "",
            "text": f"{self.state}: {away if self.state == 'away' else f'{name} answers again'}",
        }


class Outages:
    """Tells each outage that lasts for a minute, and its end."""

    def __init__(self) -> None:
        self._told: set[str] = set()

    def of(self, view: View) -> list[Outage]:
        """Return what a new view says that was not told yet."""
        notices: list[Outage] = []
        parts: tuple[Literal["store", "kafka"], ...] = ("store", "kafka")
        for part in parts:
            found = view.store if part == "store" else view.kafka
            if found.up and part in self._told:
                self._told.discard(part)
                notices.append(Outage("answers", part, view.at_ms, ""))
            elif not found.up and part not in self._told and view.at_ms - found.since_ms >= _LONG_MS:
                self._told.add(part)
                notices.append(Outage("away", part, view.at_ms, found.error))
        return notices
