"""Accepts the mark of an output that does not match the ledger: an operator decides this, after a preview."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from offsetkeeper.core.ledger import Ledger
from offsetkeeper.core.mark import named
from offsetkeeper.core.model import MAX_SEQUENCE, Snapshot, check_sequence
from offsetkeeper.core.plain import plain
from offsetkeeper.errors import Refused


@dataclass(frozen=True, slots=True)
class Adoption:
    """The changes that an adoption makes in a ledger.

    Attributes:
        group: the consumer group.
        version: version of the ledger that the plan was made for.
        output: name of the output; empty if the pipeline has only one.
        sequence: sequence of the batch in the output's mark; 0 if there is no mark.
        recorded: the newest batch that the output has, as the ledger says.
        came_to: the last batch that the ledger knows.
        drops: id of the pending batch, if it could no longer be written.
        repeats: id of the pending batch, if it is written into the output again.
        forgets: id of the batch that a reset has dropped, if the ledger forgets that the output has it.
        others: the outputs that the ledger knows, if it does not know this one.
        target: identity of the output's target that the ledger forgets; empty if it knows none. See `Landed`.
    """

    group: str
    version: int
    output: str
    sequence: int
    recorded: int
    came_to: int
    drops: str | None
    repeats: str | None = None
    forgets: str | None = None
    others: tuple[str, ...] = ()
    target: str = ""

    @property
    def changes(self) -> bool:
        """Whether the adoption changes anything."""
        return self.sequence != self.recorded or self.renumbers or self.drops is not None or bool(self.target)

    @property
    def renumbers(self) -> bool:
        """Whether the next batch gets another number than the one that would follow."""
        return self.sequence > self.came_to or self.came_to >= MAX_SEQUENCE

    @property
    def lines(self) -> list[str]:
        """The changes, as sentences."""
        name, found = named(self.output), []
        if not self.version and self.changes:
            found.append(f"the store has no group {self.group!r} yet, so check the name: this adoption makes it")
        if self.sequence != self.recorded:
            found.append(
                f"{self.group}: the ledger says that {name} has batch {self.recorded}; "
                f"it will say batch {self.sequence}"
            )
        if self.target:
            found.append(
                f"the ledger forgets the target that it knows of {name}, {self.target}: "
                "it accepts the one that is there"
            )
        if self.others:
            found.append(
                f"the ledger has committed nothing into {name} so far, only into {_listed(self.others)}: check the name"
            )
        if self.renumbers:
            found.append(f"the next batch gets the number {self.sequence + 1} instead of {self.came_to + 1}")
        if self.drops is not None:
            found.append(
                f"batch {self.drops} was begun and not committed: it is dropped. If all outputs have it by their "
                "marks, its records count as done; otherwise they are read again"
            )
        if self.repeats is not None:
            found.append(f"batch {self.repeats}, which is pending, is written into {name} again")
        if self.forgets is not None:
            found.append(
                f"the ledger forgets that {name} has batch {self.forgets}, which a reset dropped: the next start asks "
                "the mark, and reads the batch again unless all outputs have it"
            )
        found.append("positions do not change: if the output lacks records or has them twice, reset the positions")
        return found

    def as_dict(self) -> dict[str, Any]:
        """Return the plan as plain values."""
        return plain(self)


def plan_adoption(snapshot: Snapshot, output: str, sequence: int) -> Adoption:
    """Return what an adoption would change; nothing changes.

    Args:
        snapshot: the ledger.
        output: name of the output; empty if the pipeline has only one.
        sequence: sequence of the batch in the output's mark, as the refused start prints it; 0 if there is no mark.

    Raises:
        SettingsError: no batch can have this sequence.
        Refused: the ledger has never committed into an output of this name, only into others, and it is not older than
            the mark: then it cannot have lost the name.
    """
    check_sequence(sequence)
    known = sorted({*snapshot.landed, *(snapshot.pending.lands_in if snapshot.pending else ())})
    others = () if output in known else tuple(known)
    if others and sequence <= snapshot.sequence:
        raise Refused(
            f"group {snapshot.group!r} has no output {output!r} that keeps a mark, only {_listed(others)}: "
            "give one of them with --output"
        )
    pending = snapshot.pending
    passed = pending is not None and (sequence >= pending.sequence or snapshot.sequence >= MAX_SEQUENCE)
    drops = pending.id if pending is not None and passed else None
    recorded, target = snapshot.landed_in(output)
    repeats = pending.id if pending is not None and not drops and recorded == pending.sequence else None
    unsettled = snapshot.unsettled
    noted = unsettled is not None and output in unsettled.written and sequence <= unsettled.sequence
    return Adoption(
        snapshot.group,
        snapshot.version,
        output,
        sequence,
        recorded,
        snapshot.sequence,
        drops,
        repeats,
        unsettled.id if unsettled is not None and noted else None,
        others,
        target,
    )


def apply_adoption(ledger: Ledger, plan: Adoption, reason: str, *, force: bool = False) -> None:
    """Execute a plan on the ledger as it was loaded for the plan.

    Raises:
        Fenced: a run holds the group, and `force` is not set.
        VersionConflict: another writer changed the ledger at the same time; nothing was changed.
    """
    if plan.changes:
        said = f"mark {plan.sequence} of {named(plan.output)} is adopted"
        ledger.adopt(plan.output, plan.sequence, f"{said} {reason}".strip(), force=force)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names))
