"""What a history tells whoever watches it, and the ledger whose answers are watched."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from offsetkeeper.core.batch import NO_OUTPUTS, Batch, Output
from offsetkeeper.core.ledger import Ledger
from offsetkeeper.core.model import Change, Snapshot
from offsetkeeper.errors import Fenced, OutcomeUnknown, StoreUnavailable, VersionConflict

if TYPE_CHECKING:
    from offsetkeeper.testing.simulator.schedule import Actor
    from offsetkeeper.testing.simulator.store import ModelStore


class Watcher(Protocol):
    """Watches one history; see `Promises`."""

    def applied(self, change: Change, owner_id: str) -> None:
        """Look at a change that takes effect now."""
        ...

    def writing(self, output: str, batch: Batch) -> None:
        """Look at a batch that the current actor is about to write into an output apart."""
        ...

    def landing(self, output: str, target: str) -> None:
        """Look at the target of an output that gets a batch, or a void mark."""
        ...

    def sends(self, change: Change) -> None:
        """Look at a change that is sent, perhaps once more under the same id."""
        ...

    def told(self, store: ModelStore, change: Change, error: Exception | None) -> None:
        """Look at the answer to the sender of a change."""
        ...

    def at_the_end(self, last: Actor) -> None:
        """Look at all that is there after the last owner has worked undisturbed."""
        ...


class CheckedLedger(Ledger):
    """A ledger whose answers are checked against the store: promise (f)."""

    promises: Watcher
    actor: Actor
    model: ModelStore

    def acquire(
        self, reason: str = "", outputs: Mapping[str, Output] = NO_OUTPUTS, partly: tuple[str, ...] = ()
    ) -> Snapshot:
        """See `Ledger.acquire`."""
        self.actor.owner_id, self.actor.fenced = "", False
        found = super().acquire(reason, outputs, partly)
        self.actor.owner_id = self.owner_id
        return found

    def join(self, owner_id: str) -> Snapshot:
        """See `Ledger.join`."""
        found = super().join(owner_id)
        self.actor.owner_id = owner_id
        return found

    def record(self, change: Change) -> None:
        """See `Ledger.record`."""
        self.promises.sends(change)
        try:
            super().record(change)
        except (StoreUnavailable, VersionConflict, OutcomeUnknown, Fenced) as error:
            if change.entry.event != "acquire" or not isinstance(error, VersionConflict):  # then it is repeated
                self.promises.told(self.model, change, error)
            raise
        self.promises.told(self.model, change, None)
