"""What stalls an older run while a newer one works, and what may go wrong for it then."""

from __future__ import annotations

import threading
from collections.abc import Callable

from engines.lab import LIMIT_S
from offsetkeeper import open_store
from offsetkeeper.core.model import Change
from offsetkeeper.core.store import TransactionalStore
from offsetkeeper.errors import OutcomeUnknown, StoreUnavailable
from structured.dying import DyingStore

Hook = Callable[[str], None]


class Stall:
    """A step at which a run waits, once, until it is told to go on.

    Args:
        step: its name.
        error: what happens to the run at this step when it goes on, if anything does.

    Attributes:
        reached: set when the run waits.
        go: to be set.
    """

    def __init__(self, step: str, error: Exception | None = None) -> None:
        self.reached, self.go = threading.Event(), threading.Event()
        self._step, self._error = step, error

    def at(self, step: str) -> None:
        """Take a step."""
        if step != self._step or self.reached.is_set():
            return
        self.reached.set()
        assert self.go.wait(LIMIT_S), f"nobody told the run to go on {step}"
        if self._error is not None:
            raise self._error


class SteppedStore(DyingStore):
    """A store that takes the steps of a `DyingStore`, before and after each of its calls, and does not die."""

    def __init__(self, url: str, hook: Hook) -> None:
        store = open_store(url)
        assert isinstance(store, TransactionalStore)
        super().__init__(store, "")
        self._hook = hook

    def at(self, step: str) -> None:
        """Take a step."""
        self._hook(step)


class WatchedStore(SteppedStore):
    """A store that tells when it was kept out by somebody's lock.

    Attributes:
        kept_out: set by then.
    """

    def __init__(self, url: str) -> None:
        super().__init__(url, lambda _: None)
        self.kept_out = threading.Event()

    def apply(self, change: Change) -> None:
        """See `Store.apply`."""
        try:
            super().apply(change)
        except StoreUnavailable:
            self.kept_out.set()
            raise


def lost() -> OutcomeUnknown:
    """Return what a store raises after it has done as it was told, where its answer is lost."""
    return OutcomeUnknown("the reply was lost")


def failed() -> RuntimeError:
    """Return what an output raises."""
    return RuntimeError("the output is away")
