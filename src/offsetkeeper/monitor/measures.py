"""What becomes of a group, of store and of Kafka by what a look found. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from offsetkeeper.core.plan import Plan
from offsetkeeper.monitor.alerts import Measured
from offsetkeeper.monitor.series import anchored
from offsetkeeper.monitor.view import GroupLook, Health
from offsetkeeper.operate.lag import Lag, Sample, speeds, total
from offsetkeeper.operate.outlook import Outlook
from offsetkeeper.operate.status import Point, status, thinned

LOOKS = 720  # kept of each group for the picture: an hour, at one every five seconds
_RHYTHM = 200  # entries, as many as the command `lag` goes by


def with_lags(look: GroupLook, lags: Sequence[Lag], planned: Plan, ahead: Outlook) -> GroupLook:
    """Return a group of which Kafka was asked."""
    now, newest = Sample(look.at_ms, lags), look.entries[:_RHYTHM]
    fast = speeds(now, newest, look.anchors[0] if look.anchors else None)
    every = total(lags, fast)
    point = Point(look.at_ms, every.waiting)
    return replace(
        look,
        lags=lags,
        speeds=fast,
        total=every,
        plan=planned,
        ahead=ahead,
        status=status(look.snapshot, lags, newest, look.at_ms, look.looks),
        points=(*look.points[-LOOKS + 1 :], point),
        looks=thinned(look.looks, point, newest),
        anchors=anchored(look.anchors, now),
    )


def blind(look: GroupLook) -> GroupLook:
    """Return a group of which Kafka could not be asked, with a gap in its picture."""
    return replace(look, points=(*look.points[-LOOKS + 1 :], Point(look.at_ms, None)))


def known(groups: Mapping[str, GroupLook], at_ms: int) -> dict[str, Measured]:
    """Return what is known of each group for the rules of alarms; nothing of one that was not read at `at_ms`."""
    return {
        name: Measured(look.status, look.waiting, look.total.seconds, look.total.retention_used)
        if look.total is not None and look.at_ms == at_ms
        else Measured(None, None, None, None)
        for name, look in groups.items()
    }


def health(before: Health, error: str, at_ms: int) -> Health:
    """Return how store or Kafka are, after a look that found an error or none."""
    up = not error
    return Health(up, before.since_ms if up == before.up else at_ms, error)
