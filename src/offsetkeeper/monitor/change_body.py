"""Reads the body of a request for a change: each field by name and type, without guessing. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any

from offsetkeeper.core.offsets import MAX_OFFSET, TopicPartition, check_offset, check_partition
from offsetkeeper.core.outside import unknown_setting
from offsetkeeper.errors import SettingsError
from offsetkeeper.operate.reset import Shift, Target
from offsetkeeper.operate.scope import Scope

TARGETS = ("to", "shift", "offsets")
SCOPE = ("topics", "partitions")
_TIME = "use earliest, latest, an offset, or a time such as 2026-01-31T12:00:00+00:00"


def check_fields(body: Mapping[str, Any], known: Collection[str]) -> None:
    """Check that a body has only known fields: a misspelled field would be ignored, and another change made.

    Raises:
        SettingsError: it has one.
    """
    if error := unknown_setting("the request", body, known):
        raise error


def flag(body: Mapping[str, Any], name: str) -> bool:
    """Return a field that is true or false; false where it is absent.

    Raises:
        SettingsError: it is something else, such as the text "false".
    """
    value = body.get(name, False)
    if not isinstance(value, bool):
        raise SettingsError(f"{name} must be true or false, not a text or a number")
    return value


def text(body: Mapping[str, Any], name: str) -> str:
    """Return a field that is text; empty where it is absent.

    Raises:
        SettingsError: it is something else.
    """
    value = body.get(name, "")
    if not isinstance(value, str):
        raise SettingsError(f"{name} must be a text")
    return value


def version(body: Mapping[str, Any]) -> int:
    """Return the version of the ledger to go back to.

    Raises:
        SettingsError: there is none.
    """
    if type(body.get("version")) is not int:
        raise SettingsError("give the version to go back to, as a number")
    return int(body["version"])


def scope(body: Mapping[str, Any]) -> Scope:
    """Return the topics and partitions in a body, and whether it says all topics.

    Raises:
        SettingsError: they are not lists of them.
    """
    topics, pairs = body.get("topics", []), body.get("partitions", [])
    if not isinstance(topics, list) or not all(isinstance(each, str) for each in topics):
        raise SettingsError("topics must be a list of names")
    if not isinstance(pairs, list) or not all(isinstance(each, list) and len(each) == 2 for each in pairs):  # noqa: PLR2004
        raise SettingsError("partitions must be a list of [topic, partition]")
    partitions = {check_partition(TopicPartition(*pair)) for pair in pairs}
    return Scope(partitions, set(topics), flag(body, "all_topics"))


def target(body: Mapping[str, Any]) -> Target | Shift:
    """Return the target of a reset.

    Raises:
        SettingsError: not exactly one target is given, or it cannot be one.
    """
    given = [name for name in TARGETS if body.get(name) is not None]
    if len(given) != 1:
        raise SettingsError("give exactly one of to, shift and offsets")
    value = body[given[0]]
    if given == ["shift"]:
        if type(value) is not int or abs(value) > MAX_OFFSET:
            raise SettingsError("shift must be a number of offsets, negative to go back")
        return Shift(value)
    if given == ["offsets"]:
        return _offsets(value)
    return _to(value)


def _to(value: Any) -> str | int | datetime:
    if type(value) is int:
        return check_offset(value)
    if not isinstance(value, str):
        raise SettingsError(f"to must be a text or a number: {_TIME}")
    if value in {"earliest", "latest"}:
        return value
    try:
        return datetime.fromisoformat(value)
    except ValueError:
        raise SettingsError(f"to is not a target: {_TIME}") from None


def _offsets(value: Any) -> dict[TopicPartition, int]:
    found: dict[TopicPartition, int] = {}
    for topic, partition, at in _triples(value):
        tp = TopicPartition(topic, partition)
        if tp in found:
            raise SettingsError(f"offsets has {tp} twice")
        found[tp] = check_offset(at)
    return found


def _triples(value: Any) -> list[tuple[str, int, int]]:
    if not isinstance(value, list) or not all(isinstance(each, list) and len(each) == 3 for each in value):  # noqa: PLR2004
        raise SettingsError("offsets must be a list of [topic, partition, offset]")
    return [(*check_partition(TopicPartition(topic, partition)), at) for topic, partition, at in value]
