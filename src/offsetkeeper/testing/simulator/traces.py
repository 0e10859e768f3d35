"""Histories that are judged by their traces alone: what `offsetkeeper check-trace` would find, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from offsetkeeper.core import trace
from offsetkeeper.core.batch import Batch
from offsetkeeper.core.model import Change
from offsetkeeper.operate.traces import check_lines
from offsetkeeper.testing.simulator.promises import Promises
from offsetkeeper.testing.simulator.schedule import Actor, Violation
from offsetkeeper.testing.simulator.watcher import Watcher

if TYPE_CHECKING:
    from offsetkeeper.testing.simulator.store import ModelStore
    from offsetkeeper.testing.simulator.world import World

_asked: list[bool] = []


@contextmanager
def judged_by_traces() -> Iterator[None]:
    """Judge histories by their traces while the block runs, and not by the promises."""
    _asked.append(True)
    try:
        yield
    finally:
        _asked.pop()


def watcher(world: World) -> Watcher:
    """Return what watches a history."""
    return Unwatched() if _asked else Promises(world)


@contextmanager
def judged() -> Iterator[None]:
    """Check the trace of a history at its end, if that is asked for.

    Raises:
        Violation: a rule is broken.
    """
    if not _asked:
        yield
        return
    with lines_of() as lines:
        yield
    for found in check_lines(lines).broken:
        raise Violation(f"({found.rule}) {found.what}")


@contextmanager
def lines_of() -> Iterator[list[dict[str, Any]]]:
    """Lend the lines of a trace, as a file would have them. The number of a line is its time: actors have no clock."""
    lines: list[dict[str, Any]] = []

    def take(line: dict[str, Any]) -> None:
        times = {name: len(lines) for name in ("at_ms", "asked_ms") if name in line}
        lines.append(json.loads(json.dumps({**line, **times})))

    with trace.taken(take):
        yield lines


class Unwatched:
    """Looks at nothing; see `Watcher`."""

    def applied(self, change: Change, owner_id: str) -> None:
        """See `Watcher.applied`."""

    def writing(self, output: str, batch: Batch) -> None:
        """See `Watcher.writing`."""

    def landing(self, output: str, target: str) -> None:
        """See `Watcher.landing`."""

    def sends(self, change: Change) -> None:
        """See `Watcher.sends`."""

    def told(self, store: ModelStore, change: Change, error: Exception | None) -> None:
        """See `Watcher.told`."""

    def at_the_end(self, last: Actor) -> None:
        """See `Watcher.at_the_end`."""
