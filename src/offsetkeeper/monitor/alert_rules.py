"""The rules of alarms, as the settings file has them. Pure."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from offsetkeeper.errors import SettingsError
from offsetkeeper.operate.status import Status

_LIMITS = ("records", "seconds", "retention")
_KEYS = {"name", "groups", "for", "status", *_LIMITS}


@dataclass(frozen=True, slots=True)
class Rule:
    """When to raise an alarm for a group.

    Attributes:
        name: of the rule, unique.
        groups: names, or patterns such as `shop-*`.
        what: records, seconds (age of the oldest unread), retention (share of its time it has had) or status.
        limit: the alarm is raised above it; of no meaning for a status.
        statuses: those that raise it.
        for_s: how long it must hold.
    """

    name: str
    what: str
    limit: float = 0.0
    statuses: frozenset[Status] = frozenset()
    groups: tuple[str, ...] = ("*",)
    for_s: float = 0.0


def read_rules(raw: Iterable[Any], where: str) -> tuple[Rule, ...]:
    """Return the rules that a settings file's `[[alerts.rules]]` are.

    Raises:
        SettingsError: one of them is wrong; the message names it.
    """
    rules = tuple(_read_rule(each, f"{where}, rule {number}") for number, each in enumerate(raw, 1))
    names = [rule.name for rule in rules]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise SettingsError(f"{where}: two rules are named {twice!r}; give each a name of its own")
    return rules


def _read_rule(raw: Any, where: str) -> Rule:
    if not isinstance(raw, dict) or not isinstance(raw.get("name"), str) or not raw["name"]:
        raise SettingsError(f'{where}: give it a name, as name = "far behind"')
    if unknown := sorted(raw.keys() - _KEYS):
        raise SettingsError(f"{where} has an unknown setting {unknown[0]!r}; known are {', '.join(sorted(_KEYS))}")
    asked = sorted(raw.keys() & {*_LIMITS, "status"})
    if len(asked) != 1:
        raise SettingsError(f"{where}: give exactly one of records, seconds, retention and status")
    groups = _texts(raw.get("groups", "*"), f"{where}: groups")
    for_s = _number(raw.get("for", 0), f"{where}: for")
    if asked == ["status"]:
        return Rule(raw["name"], "status", 0.0, _statuses(raw["status"], where), groups, for_s)
    return Rule(raw["name"], asked[0], _number(raw[asked[0]], f"{where}: {asked[0]}"), frozenset(), groups, for_s)


def _statuses(raw: Any, where: str) -> frozenset[Status]:
    words = _texts(raw, f"{where}: status")
    if unknown := sorted({*words} - {*Status}):
        raise SettingsError(f"{where}: {unknown[0]!r} is no status; known are {', '.join(Status)}")
    return frozenset(Status(word) for word in words)


def _texts(raw: Any, what: str) -> tuple[str, ...]:
    texts = [raw] if isinstance(raw, str) else raw
    if not isinstance(texts, list) or not texts or not all(isinstance(each, str) for each in texts):
        raise SettingsError(f"{what} must be text, or a list of texts")
    return tuple(texts)


def _number(raw: Any, what: str) -> float:
    if isinstance(raw, bool) or not isinstance(raw, int | float) or not 0 <= raw <= sys.float_info.max:
        raise SettingsError(f"{what} must be a number, 0 or more")
    return float(raw)
