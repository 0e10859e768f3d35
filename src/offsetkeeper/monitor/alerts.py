"""When an alarm fires and when it is resolved: rules, as the settings file has them, and a state for each. Pure.

state      and then                                     becomes    told
quiet      the rule's condition holds                   pending    -
pending    it has held for `for_s` (at once where 0)    firing     fired
firing     "fired" was dropped on its way               the same   fired, again
pending    it holds no more                             quiet      -
firing     it holds no more                             quiet      resolved
any        whether it holds cannot be known             the same   -
any        the group is gone with its ledger            the same   gone, once for a group
any        the group is gone, and had no ledger here    quiet      resolved
any        its ledger went back to an older version     the same   back, once for a group
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Literal, NamedTuple

from offsetkeeper.core.duration import duration
from offsetkeeper.core.outside import unknown_setting
from offsetkeeper.errors import SettingsError
from offsetkeeper.operate import words
from offsetkeeper.operate.status import Status

_LIMITS = ("records", "seconds", "retention")
_UNREADABLE = "unreadable"
_KEYS = {"name", "groups", "for", "status", _UNREADABLE, *_LIMITS}


@dataclass(frozen=True, slots=True)
class Rule:
    """When to raise an alarm for a group.

    Attributes:
        name: of the rule, unique.
        groups: names, or patterns such as `shop-*`.
        what: records, seconds (age of the oldest unread), retention (share of its time it has had), status or
            unreadable.
        limit: the alarm is raised above it; of no meaning for a status, and for a group that cannot be read.
        statuses: those that raise it.
        for_s: how long it must hold.
    """

    name: str
    what: str
    limit: float = 0.0
    statuses: frozenset[Status] = frozenset()
    groups: tuple[str, ...] = ("*",)
    for_s: float = 0.0


class Measured(NamedTuple):
    """What rules compare; None if unknown.

    Attributes:
        unreadable: the reason why the group cannot be read; empty if it was read and measured.
        undated: whether the age of some unread records is unknown: the oldest may be older than `seconds`. Those of a
            partition that was added count, and those of one that is gone.
        partial: whether `records` leaves out partitions that are gone, or end before the position.
        kept: whether Kafka keeps the records for ever, whatever their age.
    """

    status: Status | None
    records: int | None
    seconds: float | None
    retention: float | None
    unreadable: str | None = None
    undated: bool = False
    partial: bool = False
    kept: bool = False


class Key(NamedTuple):
    """A rule and a group."""

    rule: str
    group: str


class Alarm(NamedTuple):
    """A condition that holds.

    Attributes:
        since_ms: since when, milliseconds since 1970.
        firing: whether it has held for as long as the rule asks.
        value: the last one that is known.
        told_ms: `at_ms` of the notice that says so; None if there is none, or it was dropped.
    """

    key: Key
    since_ms: int
    firing: bool
    value: float | str
    told_ms: int | None = None


class Notice(NamedTuple):
    """A notice to send: an alarm fired, or was resolved, or a group is gone, or its ledger went back."""

    state: Literal["fired", "resolved", "gone", "back"]
    key: Key
    rule: Rule
    at_ms: int
    value: float | str | None

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain values; `text` says all of it in a line."""
        limit = sorted(self.rule.statuses) if self.rule.what == "status" else self.rule.limit
        return {
            "state": self.state,
            "rule": self.rule.name,
            "group": self.key.group,
            "what": self.rule.what,
            "value": self.value,
            "limit": limit,
            "at_ms": self.at_ms,
            "next": self._to_do,
            "text": f"{self.state}: {self.rule.name}, group {self.key.group}: {self._found}{self._to_do and '. Next: '}"
            f"{self._to_do}",
        }

    @property
    def _to_do(self) -> str:
        """What to do; empty where the notice asks for nothing."""
        if self.state == "back":
            return words.WENT_BACK
        if self.state != "fired" or self.rule.what == _UNREADABLE:
            return ""
        if self.rule.what == "status":
            return words.next_step(Status(str(self.value)), self.key.group)
        return words.plain("`offsetkeeper lag orders` says its status, and what to do", self.key.group)

    @property
    def _found(self) -> str:
        if self.value is None:
            return "the store has its ledger no more" if self.state == "gone" else "it is gone"
        if self.rule.what == _UNREADABLE:
            return f"it cannot be read: {self.value}" if self.value else "it can be read"
        if isinstance(self.value, str):
            return self.value if self.state == "back" else f"status is {self.value}"
        above = "above" if self.value > self.rule.limit else "not above"
        return f"{_shown(self.rule.what, self.value)}, {above} {_limit(self.rule.what, self.rule.limit)}"


Alarms = Mapping[Key, Alarm]


def read_rules(raw: Iterable[Any], where: str) -> tuple[Rule, ...]:
    """Return the rules in the `[[alerts.rules]]` of a settings file.

    Raises:
        SettingsError: one of them is wrong; the message names it.
    """
    rules = tuple(_read_rule(each, f"{where}, rule {number}") for number, each in enumerate(raw, 1))
    names = [rule.name for rule in rules]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise SettingsError(f"{where}: two rules are named {twice!r}; give each a name of its own")
    return rules


def step(
    alarms: Alarms,
    rules: Sequence[Rule],
    measured: Mapping[str, Measured],
    now_ms: int,
    gone: Collection[str] = (),
) -> tuple[dict[Key, Alarm], list[Notice]]:
    """Return the alarms after a poll, and what to tell because of it.

    Args:
        alarms: as they were, pending and firing.
        rules: all rules.
        measured: every group there is, by name.
        now_ms: milliseconds since 1970.
        gone: groups that are gone from the store with their ledgers: nobody knows whether a condition holds.
    """
    after: dict[Key, Alarm] = {}
    notices: list[Notice] = []
    for rule in rules:
        for group, key in ((name, Key(rule.name, name)) for name in _groups(rule, alarms, measured)):
            before = alarms.get(key)
            value = _value(rule, measured.get(group), before)
            unknown = value is None and (group in measured or group in gone)
            holds = None if unknown else bool(value) if rule.what == _UNREADABLE else _holds(rule, value)
            alarm = before if holds is None else _next(rule, key, before, value, now_ms) if holds else None
            if alarm is not None and alarm.firing and alarm.told_ms is None:
                notices.append(Notice("fired", key, rule, now_ms, alarm.value))
                alarm = alarm._replace(told_ms=now_ms)
            if alarm is not None:
                after[key] = alarm
            elif before is not None and before.firing:
                notices.append(Notice("resolved", key, rule, now_ms, value))
    return after, notices


def untold(alarms: Alarms, dropped: Iterable[Notice]) -> dict[Key, Alarm]:
    """Return the alarms, so that the next step tells those again whose notice was dropped on its way.

    Args:
        alarms: as they are.
        dropped: any notices; one that a later one has replaced changes nothing.
    """
    lost = {(each.key, each.at_ms) for each in dropped if each.state == "fired"}
    return {key: each._replace(told_ms=None) if (key, each.told_ms) in lost else each for key, each in alarms.items()}


def vanished(rules: Sequence[Rule], groups: Iterable[str], now_ms: int) -> list[Notice]:
    """Return what to tell of groups that are gone with their ledgers: once for each, by the first rule that is for it.

    Args:
        rules: all rules.
        groups: names of those that were there at the poll before.
        now_ms: milliseconds since 1970.
    """
    first = _first_rules(rules, groups)
    return [Notice("gone", Key(rule.name, name), rule, now_ms, None) for name, rule in first.items()]


def went_back(rules: Sequence[Rule], groups: Mapping[str, str], now_ms: int) -> list[Notice]:
    """Return what to tell of groups whose ledgers went back: once for each, by the first rule that is for it.

    Args:
        rules: all rules.
        groups: what is known of each, in words, by name.
        now_ms: milliseconds since 1970.
    """
    first = _first_rules(rules, groups)
    return [Notice("back", Key(rule.name, name), rule, now_ms, groups[name]) for name, rule in first.items()]


def unmatched(rules: Sequence[Rule], groups: Collection[str]) -> list[tuple[str, str]]:
    """Return the names and patterns that match no group, each after the name of its rule; never `*`."""
    asked = [(rule.name, pattern) for rule in rules for pattern in rule.groups if pattern != "*"]
    return [(rule, pattern) for rule, pattern in asked if not any(fnmatchcase(name, pattern) for name in groups)]


def _first_rules(rules: Sequence[Rule], groups: Iterable[str]) -> dict[str, Rule]:
    """Return the first rule that is for each group, if there is one."""
    return {name: rule for name in sorted(groups) for rule in reversed(rules) if _is_for(rule, name)}


def _next(rule: Rule, key: Key, before: Alarm | None, value: float | str | None, now_ms: int) -> Alarm:
    known = before or Alarm(key, now_ms, firing=False, value="")
    firing = known.firing or now_ms - known.since_ms >= rule.for_s * 1000
    return known._replace(firing=firing, value="" if value is None else value)


def _groups(rule: Rule, alarms: Alarms, measured: Mapping[str, Measured]) -> list[str]:
    gone = {key.group for key in alarms if key.rule == rule.name} - measured.keys()
    return sorted({name for name in measured if _is_for(rule, name)} | gone)


def _is_for(rule: Rule, group: str) -> bool:
    return any(fnmatchcase(group, pattern) for pattern in rule.groups)


def _value(rule: Rule, found: Measured | None, before: Alarm | None) -> float | str | None:
    """Return what the rule compares; None if unknown. An age that is not known may be the one that raised the alarm."""
    value = None if found is None else getattr(found, rule.what)
    by_retention = rule.what == "retention" or (before is not None and before.value == Status.LOSING_DATA)
    if found is None or _holds(rule, value):
        unknown = False
    elif rule.what == "seconds":
        unknown = found.undated
    elif by_retention:
        unknown = found.undated and not found.kept
    else:
        unknown = found.partial and rule.what == "records"
    if unknown:
        return None
    return str(value) if isinstance(value, Status) else value


def _holds(rule: Rule, value: float | str | None) -> bool:
    if value is None or isinstance(value, str):
        return value in rule.statuses
    return value > rule.limit


def _shown(what: str, value: float) -> str:
    match what:
        case "seconds":
            return f"the oldest unread record is {duration(value)} old"
        case "retention":
            return f"an unread record has had {value:.0%} of its time in Kafka"
        case _:
            return f"{value:,} record{'' if value == 1 else 's'} unread"


def _limit(what: str, limit: float) -> str:
    return duration(limit) if what == "seconds" else f"{limit:.0%}" if what == "retention" else f"{limit:,.10g}"


def _read_rule(raw: Any, where: str) -> Rule:
    if not isinstance(raw, dict) or not isinstance(raw.get("name"), str) or not raw["name"]:
        raise SettingsError(f'{where}: give it a name, as name = "far behind"')
    if error := unknown_setting(where, raw, sorted(_KEYS)):
        raise error
    asked = sorted(raw.keys() & {*_LIMITS, "status", _UNREADABLE})
    if len(asked) != 1:
        raise SettingsError(f"{where}: give exactly one of records, seconds, retention, status and unreadable")
    groups = _texts(raw.get("groups", "*"), f"{where}: groups")
    for_s = _number(raw.get("for", 0), f"{where}: for")
    if asked == ["status"]:
        return Rule(raw["name"], "status", 0.0, _statuses(raw["status"], where), groups, for_s)
    if asked == [_UNREADABLE]:
        if raw[_UNREADABLE] is not True:
            raise SettingsError(f"{where}: unreadable must be true")
        return Rule(raw["name"], _UNREADABLE, 0.0, frozenset(), groups, for_s)
    limit = _number(raw[asked[0]], f"{where}: {asked[0]}")
    if asked == ["retention"] and limit >= 1:
        raise SettingsError(f"{where}: retention is a share of the time below 1, such as 0.8 for 80 %")
    return Rule(raw["name"], asked[0], limit, frozenset(), groups, for_s)


def _statuses(raw: Any, where: str) -> frozenset[Status]:
    words = _texts(raw, f"{where}: status")
    if {*words} - {*Status}:
        raise SettingsError(f"{where} has an unknown status. Known statuses: {', '.join(Status)}")
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
