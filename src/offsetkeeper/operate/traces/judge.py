"""What is checked in traces, rule by rule, and what was found."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from offsetkeeper.operate.traces.lines import Line

RULES = {
    "table": "A change is one that the table of rules allows in that state.",
    "owner": "Only the owner of a group changes it, but for an operator.",
    "version": "Each version of a ledger is made once, and follows the one before.",
    "position": "A position goes back only with a new generation, and none disappears. A commit keeps ids.",
    "continuity": "A commit starts where its partitions stand, and moves them to the end of its ranges.",
    "identity": "A batch id has one set of ranges, and sequences never fall.",
    "dropped": "A batch is only dropped by an abandon, a reset that moves it, an adoption or a copy.",
    "unsettled": "A dropped batch that may still land is settled before the next one.",
    "answer": "What a store calls stored is stored, and what it calls not stored is not.",
    "begun": "A batch is begun before it is written, and written with the ranges that it was begun with.",
    "fenced": "A run writes no output after the store has told it that the group is another's.",
    "once": "An output that has a batch does not get it again.",
    "noted": "The next output is written after the ledger has noted the one before.",
    "first": "At most once: a batch is committed before it is written, and written once.",
    "complete": "What is committed, or noted as written, is in the output.",
    "void": "A batch that is given up can never land.",
    "mark": "A mark is of the batch that lands, and rises.",
    "kept": "No batch lands over rows that the ledger knows, and the output has lost.",
    "history": "The history in the store has the changes of the trace.",
}
"""The rules by name. docs/proof.md has the promises that they are a reading of."""


class Finding(NamedTuple):
    """A broken rule, or what else a reader of the trace should know.

    Attributes:
        rule: name of the rule; empty if none is broken.
        what: what happened.
        lines: the lines that show it: file and number.
    """

    rule: str
    what: str
    lines: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        return {"rule": self.rule, "what": self.what, "lines": [*self.lines]}


@dataclass(slots=True)
class Judge:
    """Counts what is checked, and keeps what is broken.

    Attributes:
        checked: how often each rule was asked.
        broken: the broken rules, in the order in which they were found.
        notes: what is no broken rule, such as a store that was restored.
    """

    checked: Counter[str] = field(default_factory=Counter)
    broken: list[Finding] = field(default_factory=list)
    notes: list[Finding] = field(default_factory=list)

    def holds(self, rule: str, what: str, *lines: Line, ok: bool) -> bool:
        """Note that a rule was asked, and whether it holds; return that."""
        self.checked[rule] += 1
        found = Finding(rule, what, tuple(line.where for line in lines))
        if not ok and found not in self.broken:
            self.broken.append(found)
        return ok

    def note(self, what: str, *lines: Line) -> None:
        """Note what is no broken rule."""
        found = Finding("", what, tuple(line.where for line in lines))
        if found not in self.notes:
            self.notes.append(found)
