"""How a limit on the records of one batch is shared among partitions: fairly, and so that none starves. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from offsetkeeper.core.model import TopicPartition
from offsetkeeper.errors import SettingsError


def share(backlogs: Mapping[TopicPartition, int], limit: int | None, turn: int = 0) -> dict[TopicPartition, int]:
    """Return how many offsets each partition may give to the batch; those that give none are left out.

    Small backlogs are taken whole, what they leave is shared equally among the larger ones, and where fewer offsets
    than partitions remain, `turn` decides who goes first.

    Args:
        backlogs: offsets waiting in each partition. Name those that have none too: the turns go round all partitions.
        limit: the most offsets in the batch, at least 1, or None for all.
        turn: the number of the batch; the next batch begins with the partitions this one left out.

    Raises:
        SettingsError: the limit is below 1.
    """
    if limit is not None and limit < 1:
        raise SettingsError(f"{limit!r} is no limit for a batch: use a number from 1 on, or None for no limit")
    waiting = {tp: size for tp, size in backlogs.items() if size > 0}
    if limit is None or sum(waiting.values()) <= limit:
        return waiting
    shares: dict[TopicPartition, int] = {}
    left = limit
    by_size = sorted(waiting, key=lambda tp: (waiting[tp], tp))
    for done, tp in enumerate(by_size):
        equal = left // (len(by_size) - done)
        if waiting[tp] > equal:
            return shares | _spread(by_size[done:], left, _turned(sorted(backlogs), turn * left))
        shares[tp] = waiting[tp]
        left -= waiting[tp]
    return shares


def _spread(large: list[TopicPartition], left: int, order: list[TopicPartition]) -> dict[TopicPartition, int]:
    """Share equally among partitions that all have more waiting; the first ones in `order` get what remains."""
    equal, over = divmod(left, len(large))
    larger = set(large)
    favoured = set([tp for tp in order if tp in larger][:over])
    return {tp: equal + (tp in favoured) for tp in large if equal or tp in favoured}


def _turned(order: list[TopicPartition], by: int) -> list[TopicPartition]:
    first = by % len(order)
    return order[first:] + order[:first]
