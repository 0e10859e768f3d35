"""What the next start does first: with a batch that was begun or dropped, and from which positions it goes on. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from offsetkeeper.core.batch import Batch, after
from offsetkeeper.core.mark import Landing
from offsetkeeper.core.model import Guarantee, Snapshot
from offsetkeeper.core.offsets import OffsetRange, Positions
from offsetkeeper.core.pending import Fate, Situation, at_start, told
from offsetkeeper.core.plan import Policies
from offsetkeeper.errors import OffsetkeeperError, StartRefused, listed


@dataclass(frozen=True, slots=True)
class Outlook:
    """The first actions of the next start.

    Attributes:
        pending: the pending batch (begun, not committed), if there is one.
        fate: what the start does with it; None without a pending batch, and if the start is refused.
        why: the fate as a sentence.
        positions: the stored positions after that.
        unsettled: the batch that a reset has dropped, if no start has asked its outputs since.
    """

    pending: Batch | None
    fate: Fate | None
    why: str
    positions: Positions
    unsettled: Batch | None = None

    @property
    def counts(self) -> tuple[OffsetRange, ...]:
        """The ranges of the dropped batch that count as done if all its outputs have it; the others are read again."""
        return () if self.unsettled is None else self.unsettled.counts(self.positions)

    @property
    def settling(self) -> str:
        """What the start does with the dropped batch, as sentences; empty without one."""
        if self.unsettled is None:
            return ""
        asks = "the next start asks its outputs whether they have it. "
        if not self.counts:
            return f"{asks}Whatever they answer, it reads from the stored positions"
        return (
            f"{asks}If all have it, these ranges count as done, and are not read again: {listed(self.counts, ', ')}. "
            "If not, it reads from the stored positions, as the plan shows it"
        )

    @property
    def refused(self) -> bool:
        """Whether the start is refused because of the pending batch."""
        return self.pending is not None and self.fate is None


def outlook(
    snapshot: Snapshot, problems: Sequence[str], guarantee: Guarantee, policies: Policies, reads: Sequence[str] = ()
) -> Outlook:
    """Return the first actions of the next start. No batch is pending while one is unsettled.

    Args:
        snapshot: the group's ledger.
        problems: the result of `core.bounds.unreadable` for the pending batch.
        guarantee: the guarantee of that start.
        policies: the policies of that start.
        reads: the topics that it reads; empty if they are not known. Its outputs are not known.
    """
    pending, positions = snapshot.pending, snapshot.positions
    if pending is None:
        return Outlook(None, None, "", positions, snapshot.unsettled)
    query = None if pending.query is None else pending.query.query
    outputs = sorted({*pending.written, *pending.lands_in})
    began = pending.program
    program = began._replace(topics=tuple(reads)) if began and reads else None
    found = Situation(pending, positions, problems, guarantee, policies, outputs, query=query, program=program)
    try:
        fate = at_start(found)
    except StartRefused as error:
        return Outlook(pending, None, f"{_unknown(found)}{error}", positions)
    done = fate in {Fate.FINISH, Fate.COUNT}
    return Outlook(pending, fate, told(fate, found), after(pending, positions) if done else positions)


def _unknown(found: Situation) -> str:
    """Return why it is unknown whether the start is refused; empty if it is known."""
    absent = replace(found, landings=dict.fromkeys(found.batch.lands_in, Landing.ABSENT))
    try:
        at_start(absent)
    except OffsetkeeperError:
        return ""
    done = "If all have the batch, it counts as done. " if found.batch.query is None else ""
    return (
        f"what the start does is unknown until it asks the outputs. {done}If none has the batch, it is dropped; else "
        "the start is refused: "
    )
