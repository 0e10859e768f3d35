"""Accepts the mark of an output as it is, where it and the ledger do not fit: by an operator's word, with a preview."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from offsetkeeper.core.ledger import Ledger
from offsetkeeper.core.mark import named
from offsetkeeper.core.model import Snapshot
from offsetkeeper.core.plain import plain
from offsetkeeper.errors import Refused


@dataclass(frozen=True, slots=True)
class Adoption:
    """What it changes in a ledger.

    Attributes:
        group: the consumer group.
        version: of the ledger that it was made for.
        output: its name; empty where it is the only one.
        sequence: of the batch in the output's mark; 0 without a mark.
        committed: the last batch that the ledger has committed into the output.
        came_to: the last batch that the ledger knows.
        drops: id of the pending batch, where that could not land any more.
    """

    group: str
    version: int
    output: str
    sequence: int
    committed: int
    came_to: int
    drops: str | None

    @property
    def changes(self) -> bool:
        """Whether it changes anything."""
        return self.sequence != self.committed or self.sequence > self.came_to or self.drops is not None

    @property
    def lines(self) -> list[str]:
        """What it changes, in sentences."""
        name = named(self.output)
        found = [
            f"{self.group}: the ledger has batch {self.committed} as the last in {name}; that becomes {self.sequence}"
        ]
        if self.sequence > self.came_to:
            found.append(f"the next batch is {self.sequence + 1}; it was to be {self.came_to + 1}")
        if self.drops is not None:
            found.append(
                f"batch {self.drops} was begun and not committed: it is dropped, and its records are read again"
            )
        found.append("positions stay where they are: what the output lacks or has twice is for a reset to mend")
        return found

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain values."""
        return plain(self)


def plan_adoption(snapshot: Snapshot, output: str, sequence: int) -> Adoption:
    """Return what it would change; nothing is changed.

    Args:
        snapshot: the ledger.
        output: its name; empty where it is the only one.
        sequence: of the batch in the output's mark, as the refused start says it; 0 where there is no mark.

    Raises:
        Refused: the ledger has never committed into an output of that name, and there are others.
    """
    known = sorted({*snapshot.landed, *(snapshot.pending.lands_in if snapshot.pending else ())})
    if known and output not in known:
        raise Refused(
            f"group {snapshot.group!r} has no output {output!r} that keeps a mark, only {', '.join(map(repr, known))}: "
            "name one by --output"
        )
    pending = snapshot.pending
    drops = pending.id if pending is not None and sequence >= pending.sequence else None
    committed = snapshot.landed.get(output, 0)
    return Adoption(snapshot.group, snapshot.version, output, sequence, committed, snapshot.sequence, drops)


def apply_adoption(ledger: Ledger, plan: Adoption, reason: str, *, force: bool = False) -> None:
    """Do what a plan says, of the ledger as it was loaded for it.

    Raises:
        Fenced: a run holds the group, and `force` is not set.
        VersionConflict: somebody changed the ledger at this very moment; nothing was changed.
    """
    if plan.changes:
        said = f"mark {plan.sequence} of {named(plan.output)} is adopted"
        ledger.adopt(plan.output, plan.sequence, f"{said} {reason}".strip(), force=force)
