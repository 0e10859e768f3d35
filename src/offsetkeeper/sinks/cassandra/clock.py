"""The clocks of this driver and of the cluster: rows are ordered by write times, so they must agree roughly."""

from __future__ import annotations

import logging
from datetime import UTC, datetime

from offsetkeeper.core import environment
from offsetkeeper.errors import Refused
from offsetkeeper.sinks.cassandra.session import Session

log = logging.getLogger("offsetkeeper")
_MOST_SKEW_MS = 60_000  # rows of others from that time may be hidden, or hide ours
_NOW = "SELECT toUnixTimestamp(now()) FROM system.local"


def clock_ahead(session: Session) -> int:
    """Return the microseconds by which a server's clock is ahead of this one; 0 if it is not.

    Raises:
        Refused: the clocks are too far apart.
        SinkError: the cluster could not be reached.
    """
    before = environment.now_ms()
    server = int(session.rows(_NOW, ())[0][0])
    after = environment.now_ms()
    if max(before - server, server - after) > _MOST_SKEW_MS:
        raise Refused(
            f"{session.place.address}: the clock of this driver is at {_text(after)}, the server's at {_text(server)}. "
            "Cassandra orders writes by time, so rows would hide those of others, or be hidden. Nothing was written: "
            "set both by NTP"
        )
    return max(0, server - after) * 1000


def tell_ahead(session: Session, keyspace: str, newest: int) -> None:
    """Say in the log if a run with a wrong clock has used write times that are yet to come.

    Args:
        session: session with the cluster.
        keyspace: keyspace of the marks.
        newest: newest write time of its marks, in microseconds.
    """
    ahead_ms = newest // 1000 - environment.now_ms()
    if ahead_ms > _MOST_SKEW_MS:
        log.warning(
            "%s: the write times of keyspace %s are %d s ahead of the clock, as a run with a wrong clock leaves them. "
            "This run begins above them. Until then, what other programs write to the same keys is hidden",
            *(session.place.address, keyspace, ahead_ms // 1000),
        )


def _text(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(sep=" ", timespec="seconds")
