"""Whether a query runs on a checkpoint, as far as its files can tell.

Spark locks nothing. A query that works leaves fresh files; one that waits for data, or for its trigger, leaves none,
and cannot be told from one that was stopped. So this finds many running queries and never proves that there is none.
"""

from __future__ import annotations

import time

from offsetkeeper.checkpoint.contents import Checkpoint
from offsetkeeper.checkpoint.files import Files, Stamp
from offsetkeeper.errors import Fenced

_POLL_S = 0.1


def check_quiet(files: Files, checkpoint: Checkpoint, *, quiet_s: float, look_s: float) -> None:
    """Return if nothing hints at a query that runs.

    Args:
        files: the checkpoint's folder.
        checkpoint: what it holds.
        quiet_s: for how many seconds nothing may have been written, by this machine's clock.
        look_s: for how many seconds to look on.

    Raises:
        Fenced: a file was written lately, or while looking on.
    """
    first = _stamps(files, checkpoint)
    deadline = time.monotonic() + look_s
    while (left := deadline - time.monotonic()) > 0:
        time.sleep(min(_POLL_S, left))
        now = _stamps(files, checkpoint)
        if changed := sorted(name for name in first.keys() | now.keys() if first.get(name) != now.get(name)):
            raise _runs(checkpoint, f"{changed[0]} has changed while it was looked at")
    ages = ((name, max(0.0, time.time() - stamp.at_s)) for name, stamp in first.items())  # clocks are never quite alike
    name, age_s = min(ages, key=_second, default=("", 0.0))
    if name and age_s < quiet_s:
        raise _runs(checkpoint, f"{name} was written {age_s:.0f} s ago, less than {quiet_s:.0f} s")


def _stamps(files: Files, checkpoint: Checkpoint) -> dict[str, Stamp]:
    """A long batch writes state, and nothing else; only then are its many files looked at."""
    under_way = checkpoint.offsets and checkpoint.offsets[-1] not in checkpoint.commits
    folders = ["offsets", "commits", "sources", *(["state"] if under_way else [])]
    return {
        name: stamp for folder in folders for name, stamp in files.stamps(folder).items() if name != checkpoint.barrier
    }


def _runs(checkpoint: Checkpoint, sign: str) -> Fenced:
    return Fenced(
        f"{checkpoint.where}: a query may be running on it: {sign}. Nothing was changed. Stop the query and try again, "
        "or use force if you know that none runs"
    )


def _second(pair: tuple[str, float]) -> float:
    return pair[1]
