"""The offsets that Kafka holds of a partition, and where a position is relative to them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

from offsetkeeper.core.identity import is_elsewhere, is_recreated
from offsetkeeper.core.offsets import OffsetRange, Position, Positions, TopicPartition

NO_LEADER_EPOCHS: dict[TopicPartition, int] = {}


class Bounds(NamedTuple):
    """The offsets that Kafka holds of a partition.

    Attributes:
        beginning: offset of the first record.
        end: offset after the last record; with read_committed the last stable offset, where an open transaction begins.
        topic_id: Kafka's id of the topic, or None if unknown.
        log_end: offset after the last record, also with open transactions; None if it was not asked for.
        cluster_id: Kafka's id of the cluster, or None if unknown.
        leader_epoch: one more with each election of the partition's leader; None if unknown.
        common: offset up to which the log is the one that was read, if it was cut since then, and its leader knows
            records after that only from others; -1 if it was cut at an unknown offset; None if it is not known to
            be cut.
    """

    beginning: int
    end: int
    topic_id: str | None = None
    log_end: int | None = None
    cluster_id: str | None = None
    leader_epoch: int | None = None
    common: int | None = None

    @property
    def held_back(self) -> int:
        """Offsets that cannot be read because of an open transaction; 0 if `log_end` was not asked for."""
        return 0 if self.log_end is None else max(0, self.log_end - self.end)

    @property
    def others_from(self) -> int | None:
        """Offset from which a log that was cut has other records, or the beginning if unknown; None if it is whole."""
        return self.beginning if self.common == -1 else self.common


class Standing(StrEnum):
    """Where a position is, relative to the offsets that Kafka holds of its partition."""

    WITHIN = "within"
    """Reading can resume at the position; it may be the end."""
    CUT = "cut"
    """An election made a replica the leader that lacked records before the position: others have their offsets."""
    BELOW_BEGINNING = "below the beginning"
    """Retention or a deletion has removed records from the position on."""
    BEYOND_END = "beyond the end"
    """The partition ends before the position."""
    ELSEWHERE = "another cluster"
    """The brokers are of another cluster than before: the position belongs to a topic there."""
    RECREATED = "recreated"
    """The topic was deleted and created again since: the position belongs to other records."""
    GONE = "gone"
    """The partition does not exist in Kafka."""
    UNKNOWN = "unknown"
    """There is no position."""


def standing_of(position: Position | None, bounds: Bounds | None) -> Standing:
    """Return where a position is, relative to the bounds.

    Args:
        position: the position; None if none is stored.
        bounds: bounds of its partition; None if the partition does not exist in Kafka.
    """
    if bounds is None or position is None:
        return Standing.GONE if bounds is None else Standing.UNKNOWN
    if is_elsewhere(position.cluster_id, bounds.cluster_id):
        return Standing.ELSEWHERE
    if is_recreated(position.topic_id, bounds.topic_id):
        return Standing.RECREATED
    if bounds.common is not None and position.offset > bounds.common:
        return Standing.CUT
    if position.offset < bounds.beginning:
        return Standing.BELOW_BEGINNING
    return Standing.WITHIN if position.offset <= bounds.end else Standing.BEYOND_END


def unreadable(
    ranges: Sequence[OffsetRange], positions: Positions, bounds: Mapping[TopicPartition, Bounds]
) -> list[str]:
    """Return a reason for each range that Kafka no longer holds completely.

    Args:
        ranges: ranges of a batch.
        positions: the ledger's positions, for the topic ids.
        bounds: the offsets that Kafka holds of the topics in the ranges.
    """
    wanted = ((r, positions.get(r.topic_partition), bounds.get(r.topic_partition)) for r in ranges)
    return [f"'{r}' cannot be read: {why}" for r, at, here in wanted if (why := _missing(r, at, here))]


def _missing(wanted: OffsetRange, position: Position | None, here: Bounds | None) -> str:
    known = position or Position(0)
    start, end = (standing_of(known._replace(offset=offset), here) for offset in (wanted.start, wanted.end))
    if here is None:
        return "the partition no longer exists in Kafka"
    if start is Standing.ELSEWHERE:
        return f"it is of the Kafka cluster {known.cluster_id}, and the brokers are of {here.cluster_id} now"
    if start is Standing.RECREATED:
        return "the topic was deleted and created again"
    if Standing.CUT in {start, end}:
        return f"its log {cut_text(here)}"
    return "" if start is end is Standing.WITHIN else f"Kafka holds {here.beginning} to {here.end}"


def seen_at(offset: int, here: Bounds, stored: Position | None) -> Position:
    """Return the position at an offset of a partition as Kafka has it now, with all that is known of its topic."""
    known = stored or Position(offset)
    return Position(offset, here.topic_id or known.topic_id, here.cluster_id or known.cluster_id, here.leader_epoch)


def cut_text(here: Bounds) -> str:
    """Return where a log was cut, as the end of a sentence."""
    where = "" if here.common is None or here.common < 0 else f" at offset {here.common}"
    return f"was cut{where} by the election of a leader that lacked records"


def led_anew(positions: Positions, bounds: Mapping[TopicPartition, Bounds]) -> dict[TopicPartition, Position]:
    """Return the positions of which it must be asked whether the log was cut: their partition has another leader epoch.

    Positions of another topic or cluster are left out, and those before the beginning: their records are gone anyway.
    """
    return {
        tp: at
        for tp, at in positions.items()
        if (here := bounds.get(tp)) is not None
        and None not in {at.leader_epoch, here.leader_epoch}
        and at.leader_epoch != here.leader_epoch
        and standing_of(at, here) in {Standing.WITHIN, Standing.BEYOND_END}
    }


def known_ids(positions: Mapping[TopicPartition, Position | Bounds]) -> dict[str, str]:
    """Return the ids of topics, as far as known."""
    return {tp.topic: at.topic_id for tp, at in positions.items() if at.topic_id is not None}


def known_epochs(positions: Mapping[TopicPartition, Position | Bounds]) -> dict[TopicPartition, int]:
    """Return the leader epochs, as far as known."""
    return {tp: at.leader_epoch for tp, at in positions.items() if at.leader_epoch is not None}


def known_cluster(positions: Iterable[Position]) -> str | None:
    """Return the id of the cluster that positions belong to; None if none of them knows it."""
    return next((at.cluster_id for at in positions if at.cluster_id is not None), None)


def is_another(known: Position, now: Position) -> bool:
    """Whether two positions of a partition belong to different topics: one made again, or in another cluster."""
    return is_elsewhere(known.cluster_id, now.cluster_id) or is_recreated(known.topic_id, now.topic_id)
