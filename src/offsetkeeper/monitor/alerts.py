"""When an alarm fires and when it is resolved: rules, and a state for each rule and group. Pure.

state      and then                                     becomes    told
quiet      the rule's condition holds                   pending    -
pending    it has held for `for_s` (at once where 0)    firing     fired
pending    it holds no more                             quiet      -
firing     it holds no more, or the group is gone       quiet      resolved
any        whether it holds cannot be known             the same   -
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, Literal, NamedTuple

from offsetkeeper.monitor.alert_rules import Rule
from offsetkeeper.operate.status import Status


class Measured(NamedTuple):
    """What rules ask of a group; None where it is not known."""

    status: Status | None
    records: int | None
    seconds: float | None
    retention: float | None


class Key(NamedTuple):
    """Which rule, for which group."""

    rule: str
    group: str


class Alarm(NamedTuple):
    """A condition that holds: since when, and whether that was told."""

    key: Key
    since_ms: int
    firing: bool
    value: float | str


class Notice(NamedTuple):
    """What is to be told: an alarm fired, or was resolved."""

    state: Literal["fired", "resolved"]
    key: Key
    rule: Rule
    at_ms: int
    value: float | str | None

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain values; `text` says all of it in a sentence."""
        limit = sorted(self.rule.statuses) if self.rule.what == "status" else self.rule.limit
        found = f"{self.rule.what} is {_short(self.value)}" if self.value is not None else "it is gone"
        return {
            "state": self.state,
            "rule": self.rule.name,
            "group": self.key.group,
            "what": self.rule.what,
            "value": self.value,
            "limit": limit,
            "at_ms": self.at_ms,
            "text": f"{self.state}: {self.rule.name}, group {self.key.group}: {found}",
        }


Alarms = Mapping[Key, Alarm]


def step(
    alarms: Alarms, rules: Sequence[Rule], measured: Mapping[str, Measured], now_ms: int
) -> tuple[dict[Key, Alarm], list[Notice]]:
    """Return the alarms after a look, and what is to be told because of it.

    Args:
        alarms: as they were, pending and firing.
        rules: all rules.
        measured: every group there is, by name.
        now_ms: milliseconds since 1970.
    """
    after: dict[Key, Alarm] = {}
    notices: list[Notice] = []
    for rule in rules:
        for group, key in ((name, Key(rule.name, name)) for name in _groups(rule, alarms, measured)):
            before, value = alarms.get(key), _value(rule, measured.get(group))
            holds = None if group in measured and value is None else _holds(rule, value)
            alarm = before if holds is None else _next(rule, key, before, value, now_ms) if holds else None
            if alarm is not None:
                after[key] = alarm
            was, now = before is not None and before.firing, alarm is not None and alarm.firing
            if was != now:
                notices.append(Notice("fired" if now else "resolved", key, rule, now_ms, value))
    return after, notices


def unmatched(rules: Sequence[Rule], groups: Collection[str]) -> list[tuple[str, str]]:
    """Return the names and patterns that fit no group, each after the name of its rule; `*` is none of them."""
    asked = [(rule.name, pattern) for rule in rules for pattern in rule.groups if pattern != "*"]
    return [(rule, pattern) for rule, pattern in asked if not any(fnmatchcase(name, pattern) for name in groups)]


def _next(rule: Rule, key: Key, before: Alarm | None, value: float | str | None, now_ms: int) -> Alarm:
    since_ms = now_ms if before is None else before.since_ms
    firing = (before is not None and before.firing) or now_ms - since_ms >= rule.for_s * 1000
    return Alarm(key, since_ms, firing, "" if value is None else value)


def _groups(rule: Rule, alarms: Alarms, measured: Mapping[str, Measured]) -> list[str]:
    gone = {key.group for key in alarms if key.rule == rule.name} - measured.keys()
    chosen = {name for name in measured if any(fnmatchcase(name, pattern) for pattern in rule.groups)}
    return sorted(chosen | gone)


def _value(rule: Rule, found: Measured | None) -> float | str | None:
    value = None if found is None else getattr(found, rule.what)
    return str(value) if isinstance(value, Status) else value


def _holds(rule: Rule, value: float | str | None) -> bool:
    if value is None or isinstance(value, str):
        return value in rule.statuses
    return value > rule.limit


def _short(value: float | str | None) -> str:
    return f"{value:,.6g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)
