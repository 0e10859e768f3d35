"""Which partitions a group reads: topics by name, chosen partitions of them, or topics that match a pattern. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from re import Pattern, compile, escape  # noqa: A004 - no module may be used as one where this is shipped to
from typing import Self

from offsetkeeper.core.offsets import TopicPartition, check_partition, check_topic
from offsetkeeper.errors import SettingsError

Wanted = Sequence[str] | Mapping[str, Sequence[int]] | Pattern[str]
"""Names, partitions by topic name, or a pattern that must match the whole name."""
Excluded = Sequence[str] | Pattern[str]
"""Names, or a pattern that must match the whole name."""

_INTERNAL = "__"  # prefix of Kafka's own topics


@dataclass(frozen=True)  # no slots: the cloudpickle of Spark 3.5 does not fill them
class Topics:
    """The topics that a group reads; `topic in topics` says whether a topic is one of them. Created by `Topics.of`.

    Attributes:
        names: names of the topics, if they are given by name.
        partitions: numbers of the partitions to read, for each topic that is not read completely.
        pattern: pattern of the names, if a pattern finds the topics.
        exclude: pattern of names that are not read although they match.
    """

    names: tuple[str, ...] = ()
    partitions: Mapping[str, frozenset[int]] = field(default_factory=dict)
    pattern: Pattern[str] | None = None
    exclude: Pattern[str] | None = None

    @classmethod
    def of(cls, wanted: Wanted, exclude: Excluded | None = None) -> Self:
        """Return the topics to read; a topic that is named twice is read once.

        Args:
            wanted: names, partitions by name, or a pattern. A pattern never finds a topic whose name begins with `__`.
            exclude: topics that the pattern must not include.

        Raises:
            SettingsError: a value has a wrong type, is empty, or has a wrong name or number; or `exclude` has no
                pattern.
        """
        if isinstance(wanted, Pattern):
            return cls(pattern=_texts(wanted), exclude=None if exclude is None else _excluded(exclude))
        if exclude is not None:
            raise SettingsError("exclude=… needs a pattern of topics, such as topics=re.compile('orders-.*')")
        if isinstance(wanted, str) or not isinstance(wanted, Sequence | Mapping):
            raise SettingsError(
                f"topics={wanted!r}: give a list of names, such as ['orders']; partitions by name, such as "
                "{'orders': [0, 1]}; or a pattern, such as re.compile('orders-.*')"
            )
        names = tuple(dict.fromkeys(check_topic(topic) for topic in wanted))
        if not names:
            raise SettingsError("no topics: give at least one")
        chosen = wanted if isinstance(wanted, Mapping) else {}
        return cls(names, {topic: _numbers(topic, given) for topic, given in chosen.items()})

    def __contains__(self, topic: str) -> bool:
        if self.pattern is None:
            return topic in self.names
        if topic.startswith(_INTERNAL) or (self.exclude is not None and self.exclude.fullmatch(topic)):
            return False
        return self.pattern.fullmatch(topic) is not None

    def covers(self, tp: TopicPartition) -> bool:
        """Whether the partition is read."""
        return tp.topic in self and tp.partition in self.partitions.get(tp.topic, {tp.partition})

    def partitions_of(self, topic: str, there: Iterable[int]) -> tuple[int, ...]:
        """Return the partitions of a topic that are read."""
        return tuple(number for number in there if self.covers(TopicPartition(topic, number)))

    def __str__(self) -> str:
        if self.pattern is not None:
            without = "" if self.exclude is None else f" and not {self.exclude.pattern!r}"
            return f"topics that match {self.pattern.pattern!r}{without}"
        return ", ".join(name + self._chosen(name) for name in self.names)

    def _chosen(self, topic: str) -> str:
        return f" {sorted(self.partitions[topic])}" if topic in self.partitions else ""


def _texts(pattern: Pattern[str]) -> Pattern[str]:
    if not isinstance(pattern.pattern, str):
        raise SettingsError(f"the pattern {pattern.pattern!r} is for bytes: names of topics are text")
    return pattern


def _excluded(exclude: Excluded) -> Pattern[str]:
    if isinstance(exclude, Pattern):
        return _texts(exclude)
    if isinstance(exclude, str) or not isinstance(exclude, Sequence):
        raise SettingsError(f"exclude={exclude!r}: give a list of names, or a pattern such as re.compile('.*-test')")
    return compile("|".join(escape(check_topic(topic)) for topic in exclude) or "(?!)")


def _numbers(topic: str, given: Sequence[int]) -> frozenset[int]:
    if isinstance(given, str) or not isinstance(given, Sequence) or not given:
        raise SettingsError(f"{given!r} are not partitions of {topic}: give a list of numbers, such as [0, 1]")
    return frozenset(check_partition(TopicPartition(topic, number)).partition for number in given)
