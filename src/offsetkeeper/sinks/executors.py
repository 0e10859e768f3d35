"""Our errors that executors raised: Spark gives the driver only their text."""

from __future__ import annotations

import re

from offsetkeeper.errors import (
    MissingExtra,
    OffsetkeeperError,
    Refused,
    RowMismatch,
    SettingsError,
    SinkError,
    SinkMismatch,
)

_KINDS: dict[str, type[OffsetkeeperError]] = {
    each.__name__: each for each in (SinkError, SinkMismatch, RowMismatch, Refused, SettingsError, MissingExtra)
}
_OURS = re.compile(rf"offsetkeeper\.errors\.({'|'.join(_KINDS)}): ([^\r\n]*)")


def sink_error(error: Exception) -> OffsetkeeperError | None:
    """Return the error that a sink's task has raised on an executor, from what Spark raises; None if it is not ours."""
    ours = _OURS.search(str(error))
    return None if ours is None else _KINDS[ours[1]](ours[2])
