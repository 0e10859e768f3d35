"""Asks Kafka for the input of a plan: the partitions to read, and their bounds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from types import MappingProxyType
from typing import Literal, NamedTuple, Protocol, TypeVar

from offsetkeeper.core.batch import Batch, after
from offsetkeeper.core.bounds import Bounds, Standing, cut_text, standing_of, unreadable
from offsetkeeper.core.cluster import Cluster, TopicDescription, first_ms
from offsetkeeper.core.identity import is_elsewhere, is_recreated
from offsetkeeper.core.model import Snapshot
from offsetkeeper.core.offsets import (
    Position,
    Positions,
    TopicPartition,
    check_offset,
    check_partition,
    digest_of,
    topics_of,
)
from offsetkeeper.core.plan import FirstOffsets, Plan, Policies, plan
from offsetkeeper.core.query_rows import check_kept
from offsetkeeper.core.retry import retry
from offsetkeeper.core.topics import Topics
from offsetkeeper.errors import RangeGone, SettingsError, UnknownTopic, listed


class _Known(Protocol):
    """The answer of Kafka for a topic or a partition."""

    @property
    def topic_id(self) -> str | None: ...

    @property
    def cluster_id(self) -> str | None: ...


T = TypeVar("T", bound=_Known)
Doubted = Mapping[TopicPartition, str | None]
"""Answers that were doubted, and stayed: the id of a topic that was made again; None where a partition was left out."""
_NONE: Doubted = MappingProxyType({})
_DOUBT_S = 5.0
Start = Literal["earliest", "latest"] | datetime | Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class Subscription:
    """The topics that a pipeline reads, and where it starts.

    Attributes:
        topics: the topics to read.
        start: where to start a topic without stored positions: "earliest", "latest", the first record at or after a
            time, or offsets by partition (a partition that is left out starts at its beginning).
        policies: what to do if a stored position cannot be resumed.

    Raises:
        SettingsError: a name, an offset or the start is wrong.
    """

    topics: Topics
    start: Start = "earliest"
    policies: Policies = field(default_factory=Policies)

    def __post_init__(self) -> None:
        """Refuse invalid values."""
        if not isinstance(self.policies, Policies):
            raise SettingsError(f"policies={self.policies!r}: write Policies(removed='stop'), for example")
        if isinstance(self.start, Mapping):
            check_offsets(self.start, self.topics)
        elif isinstance(self.start, datetime):
            if self.start.tzinfo is None:
                raise SettingsError(f"start={self.start!r} has no time zone: write datetime(…, tzinfo=UTC)")
        elif not isinstance(self.start, str) or self.start not in {"earliest", "latest"}:
            raise SettingsError(f"start={self.start!r}: use 'earliest', 'latest', a datetime, or offsets by partition")

    @property
    def start_name(self) -> str:
        """The start as a short text, for the plan."""
        return "offsets given" if isinstance(self.start, Mapping) else str(self.start)


class Unreadable(NamedTuple):
    """What Kafka says of a batch that was begun.

    Attributes:
        reasons: for each range that cannot be read again, why.
        doubted: the answers that were doubted, and stayed; see `whole`.
    """

    reasons: list[str]
    doubted: Doubted


def check_offsets(offsets: Mapping[TopicPartition, int], topics: Topics) -> dict[TopicPartition, int]:
    """Return offsets by partition, with each key as a `TopicPartition`.

    Raises:
        SettingsError: not a mapping, or a key is not a (topic, partition) of these topics, or a value is not an offset.
    """
    if not isinstance(offsets, Mapping):
        raise SettingsError(f"{offsets!r} is not a mapping of offsets: write {{TopicPartition('topic', 0): 42}}")
    checked = {}
    for key, offset in offsets.items():
        if not isinstance(key, tuple) or len(key) != 2:  # noqa: PLR2004 - a pair
            raise SettingsError(f"{key!r} is not a partition: write TopicPartition('topic', 0)")
        tp = check_partition(TopicPartition(*key))
        if not topics.covers(tp):
            what = "partition" if tp.topic in topics else "topic"
            raise SettingsError(f"an offset is given for {tp}, but the pipeline does not read this {what}")
        checked[tp] = check_offset(offset)
    return checked


def ask_plan(
    cluster: Cluster,
    subscription: Subscription,
    ledger: Snapshot,
    given: Mapping[TopicPartition, int] | None = None,
    doubted: Doubted | None = None,
) -> Plan:
    """Ask Kafka for the topics' partitions, ids and bounds, and compare the stored positions with them; see `plan`.

    Args:
        cluster: Kafka.
        subscription: topics, where they start, and policies.
        ledger: ledger of the group.
        given: offsets that the user gives.
        doubted: see `whole`; None asks once.

    Raises:
        UnknownTopic: a topic or a chosen partition does not exist and has no stored position; or no topic exists.
        BrokerUnavailable, NotAuthorized: Kafka could not be asked.
        SettingsError: Kafka does not hold a given offset, or a topic has a name whose positions are not kept.
    """
    topics = subscription.topics
    known = {tp: at for tp, at in ledger.positions.items() if tp.topic in topics}
    positions = {tp: at for tp, at in known.items() if topics.covers(tp)}
    bounds = whole(lambda: _bounds(cluster, topics, positions), positions, doubted)
    for topic in sorted({tp.topic for tp in bounds}):
        check_kept(TopicPartition(topic, 0))
    bounds = cluster.with_cuts(positions, cluster.with_open_transactions(positions, bounds))
    return plan(
        ledger.group,
        positions,
        bounds,
        subscription.policies,
        FirstOffsets(
            subscription.start_name,
            _first(cluster, subscription.start, known, bounds),
            topics.pattern is not None,
            given or {},
            digest_of(given or {}) in ledger.given,
        ),
        missing=ledger.missing,
        others={tp: at for tp, at in known.items() if tp not in positions},
    )


def unreadable_ranges(
    cluster: Cluster, batch: Batch, positions: Positions, doubted: Doubted | None = None
) -> Unreadable:
    """Ask Kafka which ranges of a batch cannot be read again.

    Args:
        cluster: Kafka.
        batch: the batch that was begun.
        positions: the ledger's positions.
        doubted: see `whole`; None asks once.

    Raises:
        BrokerUnavailable, NotAuthorized: Kafka could not be asked.
    """
    begun = batch.partitions
    ends = {tp: at for tp, at in after(batch, positions).items() if tp in begun}
    asked = topics_of(ends)
    bounds = whole(lambda: cluster.bounds_of_topics(asked), ends, doubted)
    stays = doubtful(ends, bounds)
    bounds = cluster.with_cuts(ends, cluster.with_open_transactions(ends, bounds))
    return Unreadable(unreadable(batch.ranges, positions, bounds), stays)


def led_since(cluster: Cluster, positions: Positions, told: Callable[[int], str]) -> dict[TopicPartition, Bounds]:
    """Check that no log was cut before a position; return the bounds of partitions with another leader epoch.

    A partition with the same leader epoch had no election since, so its log was not cut.

    Args:
        cluster: Kafka.
        positions: positions with their leader epochs.
        told: returns the end of the error's text, from the offset of a position.

    Raises:
        RangeGone: a log was cut.
        UnknownTopic, BrokerUnavailable, NotAuthorized: see `Cluster`.
    """
    epochs = cluster.leader_epochs(positions) if positions else {}
    anew = {tp: at for tp, at in positions.items() if at.leader_epoch != epochs[tp]}
    bounds = cluster.with_cuts(anew, cluster.bounds(anew)) if anew else {}
    for tp, here in sorted(bounds.items()):
        if standing_of(anew[tp], here) is Standing.CUT:
            raise RangeGone(f"partition {tp}: its log {cut_text(here)}, {told(anew[tp].offset)}")
    return bounds


def whole(
    ask: Callable[[], Mapping[TopicPartition, T]], known: Positions, doubted: Doubted | None = _NONE
) -> Mapping[TopicPartition, T]:
    """Return an answer of Kafka, and ask again for some seconds while it contradicts what is known.

    A broker that has just started, or lags behind, may not know a topic or a partition for a moment, or have the id of
    a topic that was made again meanwhile.

    Args:
        ask: asks Kafka.
        known: positions of partitions that were there before.
        doubted: answers that stayed when they were doubted before: no time is spent on the same again. None asks once.

    Raises:
        UnknownTopic, BrokerUnavailable, NotAuthorized: see `Cluster`.
    """
    if doubted is None:
        return ask()
    found = dict[TopicPartition, T]()

    def once(_: float) -> None:
        found.clear()
        found.update(ask())
        new = [tp for tp, answer in doubtful(known, found).items() if doubted.get(tp, "") != answer]
        if new:
            where = listed(sorted(map(str, new)), ", ")
            raise _Doubtful(f"Kafka leaves out, or has another topic id now than before: {where}")

    with suppress(_Doubtful):
        retry(UnknownTopic, _DOUBT_S if any(doubted.get(tp, "") is not None for tp in known) else 0, once)
    return found


def described(cluster: Cluster, known: Positions) -> Mapping[TopicPartition, TopicDescription]:
    """Return the topics of partitions with positions; Kafka is asked again while it contradicts these, see `whole`."""
    topics = topics_of(known)

    def ask() -> dict[TopicPartition, TopicDescription]:
        found = cluster.describe(topics)
        return {tp: found[tp.topic] for tp in known if tp.topic in found}

    return whole(ask, known)


def doubtful(known: Positions, found: Mapping[TopicPartition, _Known]) -> dict[TopicPartition, str | None]:
    """Return what an answer says against positions: another id of a topic, or None where a partition is left out.

    Ids of topics in another cluster say nothing.
    """
    return {
        tp: None if here is None else here.topic_id
        for tp, at in known.items()
        if (here := found.get(tp)) is None
        or (is_recreated(at.topic_id, here.topic_id) and not is_elsewhere(at.cluster_id, here.cluster_id))
    }


class _Doubtful(UnknownTopic):
    """An answer contradicts what is known."""


def _bounds(cluster: Cluster, topics: Topics, stored: Positions) -> dict[TopicPartition, Bounds]:
    known = {tp.topic for tp in stored}
    found = cluster.find(topics, known)
    missing = [topic for topic in topics.names if topic not in found and topic not in known]
    if missing or not found:
        remedy = (
            "The group has read it before. Correct the brokers' address; or, if it was deleted for good, take its "
            "positions out with offsetkeeper forget"
        )
        raise UnknownTopic(
            f"no such topic at {cluster.brokers}: {', '.join(missing) or topics}. "
            f"{'Create it, or correct the name' if missing or not known else remedy}"
        )
    chosen = (TopicPartition(topic, number) for topic, numbers in topics.partitions.items() for number in numbers)
    lacking = [tp for tp in sorted(chosen) if tp not in stored and tp.partition not in _partitions(found, tp.topic)]
    if lacking:
        raise UnknownTopic(f"no such partition at {cluster.brokers}: {', '.join(map(str, lacking))}")
    return cluster.bounds_of(found.values())


def _partitions(found: Mapping[str, TopicDescription], topic: str) -> tuple[int, ...]:
    return found[topic].partitions if topic in found else ()


def _first(
    cluster: Cluster, start: Start, positions: Positions, bounds: Mapping[TopicPartition, Bounds]
) -> dict[TopicPartition, int]:
    known = {tp.topic for tp in positions}
    fresh = [tp for tp in bounds if tp.topic not in known]
    if not fresh or start == "earliest":
        return {}
    if start == "latest":
        return {tp: bounds[tp].end for tp in fresh}
    if isinstance(start, datetime):
        return cluster.offsets_for_times(fresh, first_ms(start))
    return {tp: _within(tp, start[tp], bounds[tp]) for tp in fresh if tp in start}


def _within(tp: TopicPartition, offset: int, here: Bounds) -> int:
    if standing_of(Position(offset), here) is not Standing.WITHIN:
        raise SettingsError(
            f"start: offset {offset} of {tp} is outside the offsets that Kafka holds, {here.beginning} to {here.end}"
        )
    return offset
