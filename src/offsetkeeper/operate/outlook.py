"""What the next start does with a group: first with its pending batch, then from which positions. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from offsetkeeper.core.model import Batch, Guarantee, Positions, Snapshot, query_batches
from offsetkeeper.core.pending import Fate, after, dropped, fate
from offsetkeeper.core.plan import Policies
from offsetkeeper.errors import StartRefused


@dataclass(frozen=True, slots=True)
class Outlook:
    """What the next start does first.

    Attributes:
        pending: the batch that was begun and not committed, if there is one.
        fate: what the start does with it; None without one, and where the start is refused.
        why: the same as a sentence.
        positions: the stored positions for the time after.
    """

    pending: Batch | None
    fate: Fate | None
    why: str
    positions: Positions

    @property
    def refused(self) -> bool:
        """Whether the pending batch forbids a start."""
        return self.pending is not None and self.fate is None


def outlook(snapshot: Snapshot, problems: Sequence[str], guarantee: Guarantee, policies: Policies) -> Outlook:
    """Return what the next start does first.

    Args:
        snapshot: of the ledger.
        problems: of `core.pending.unreadable`, for the pending batch.
        guarantee: asked for by that start.
        policies: of that start.
    """
    pending, positions = snapshot.pending, snapshot.positions
    if pending is None:
        return Outlook(None, None, "", positions)
    query = next(iter(query_batches(after(pending, {}))), None)
    outputs = {*pending.written, *pending.lands_in}
    try:
        what = fate(pending, positions, problems, guarantee, policies, outputs, query)
    except StartRefused as error:
        return Outlook(pending, None, str(error), positions)
    told = {
        Fate.FINISH: "a start finishes it first, with the same ranges under the same id",
        Fate.WAIT: f"only query {query} finishes it, from its own checkpoint",
        Fate.COUNT: "a start counts it as done, as it may have been written",
        Fate.DROP: f"a start drops it: {dropped(pending, problems)}",
    }
    done = what in {Fate.FINISH, Fate.COUNT}
    return Outlook(pending, what, told[what], after(pending, positions) if done else positions)
