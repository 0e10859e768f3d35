"""The topics and partitions of a query, as options of Spark's Kafka connector. Pure.

Source: Spark's "Structured Streaming + Kafka Integration Guide".
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from offsetkeeper.errors import SettingsError

if TYPE_CHECKING:
    from re import Pattern

    from offsetkeeper.core.topics import Topics
    from offsetkeeper.readers.streaming import StreamStart


def query_options(start: StreamStart) -> dict[str, str]:
    """Return the options that say which topics a query reads, and how large its batches are.

    Raises:
        SettingsError: the connector cannot do what is asked for.
    """
    return _topics(start) | _limits(start)


def _topics(start: StreamStart) -> dict[str, str]:
    topics = start.topics
    if topics.pattern is not None:
        if start.new_topics != "beginning":
            raise _cannot(f"begin a new topic at the {start.new_topics!r}, as Policies(new_topics=…) says")
        return {"subscribePattern": java_pattern(topics)}
    if topics.partitions:
        return {"assign": json.dumps({topic: sorted(numbers) for topic, numbers in topics.partitions.items()})}
    return {"subscribe": ",".join(topics.names)}


def _limits(start: StreamStart) -> dict[str, str]:
    limits = start.limits
    for name in ("max_bytes", "max_records_per_topic"):
        if getattr(limits, name):
            raise _cannot(f"keep to {name}")
    options = {"maxOffsetsPerTrigger": limits.max_records, "minOffsetsPerTrigger": limits.min_records}
    found = {name: str(value) for name, value in options.items() if value is not None}
    return found if limits.max_delay_s is None else found | {"maxTriggerDelay": f"{limits.max_delay_s * 1000:.0f}ms"}


def java_pattern(topics: Topics) -> str:
    """Return the pattern of topics as a regular expression of Java.

    Raises:
        SettingsError: it has what Java writes otherwise.
    """
    assert topics.pattern is not None  # noqa: S101 - the caller looks
    without = "" if topics.exclude is None else f"(?!{_java(topics.exclude)}$)"
    return f"(?!__){without}{_java(topics.pattern)}"


def _java(pattern: Pattern[str]) -> str:
    if "(?P" in pattern.pattern or pattern.flags & ~(re.UNICODE | re.IGNORECASE):
        raise _cannot(f"take the pattern {pattern.pattern!r}: use no named groups, and no flag but re.IGNORECASE")
    return f"(?{'i' if pattern.flags & re.IGNORECASE else ''}:{pattern.pattern})"


def _cannot(what: str) -> SettingsError:
    return SettingsError(f"Spark's Kafka connector cannot {what}. Use reader='packed'")
