"""Which samples a group's speed is measured from. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from offsetkeeper.operate.lag import Sample

_FAR_MS = 60_000


def anchored(anchors: Sequence[Sample], sample: Sample) -> tuple[Sample, ...]:
    """Return the samples that speed will be measured from: two, a minute or more apart, as lags are many.

    Speed over two samples in a row would be that of the batch which happened to end between them.

    Args:
        anchors: so far, oldest first.
        sample: the newest.
    """
    if anchors and sample.at_ms - anchors[-1].at_ms < _FAR_MS:
        return tuple(anchors)
    return (*anchors[-1:], sample)
