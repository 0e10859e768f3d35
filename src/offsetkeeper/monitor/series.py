"""Which looks a group's speed is measured from. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from offsetkeeper.operate.throughput import Look

_FAR_MS = 60_000


def anchored(anchors: Sequence[Look], look: Look) -> tuple[Look, ...]:
    """Return the looks that speed will be measured from: two, a minute or more apart, as lags are many.

    Speed over two looks in a row would be that of the batch which happened to end between them.

    Args:
        anchors: so far, oldest first.
        look: the newest.
    """
    if anchors and look.at_ms - anchors[-1].at_ms < _FAR_MS:
        return tuple(anchors)
    return (*anchors[-1:], look)
