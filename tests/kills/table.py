"""The table of `make chaos`: what lives have drawn, what was done, and what was counted. Pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kills.draw import Drawn, never
from kills.judge import recoveries, summary

if TYPE_CHECKING:
    from kills.life import Outcome

_KILLED = (" killed", "standby promoted")  # the primary dies first


@dataclass
class Table:
    """Counts over lives.

    Attributes:
        first: the first seed.
        lives: as they were drawn.
        drawn: features of pipelines, by how many have them.
        counts: what was counted.
        done: acts by kind.
        ends: of drivers.
        seconds: by kind of act, until each pipeline went on.
    """

    first: int
    lives: list[Drawn] = field(default_factory=list)
    drawn: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    done: Counter[str] = field(default_factory=Counter)
    ends: Counter[str] = field(default_factory=Counter)
    seconds: dict[str, list[float]] = field(default_factory=dict)
    findings: list[str] = field(default_factory=list)

    def add(self, drawn: Drawn, outcome: Outcome) -> None:
        """Count a life."""
        self.lives.append(drawn)
        verdict = outcome.verdict
        for program in drawn.programs:
            self.drawn.update(program.features)
        for name in ("records", "rows", "lost", "doubled", "wrong"):
            self.counts[name] += getattr(verdict, name)
        self.counts["stuck"] += outcome.stuck
        self.counts["failed"] += outcome.failed
        self.counts["broken rules of traces"] += outcome.broken
        self.counts["batches"] += sum(map(len, outcome.batches))
        self.done += outcome.done
        self.ends += outcome.ends
        for what, those in recoveries(outcome.over, outcome.batches).items():
            self.seconds.setdefault(what, []).extend(those)
        self.findings += [f"seed {drawn.seed}: {note}" for note in outcome.notes]

    @property
    def wrong(self) -> bool:
        """Whether anything is."""
        return bool(self.findings)

    def as_dict(self, seconds: int) -> dict[str, Any]:
        """Return all of it as plain values.

        Args:
            seconds: that it took.
        """
        acts = {what: number for what, number in sorted(self.done.items()) if ":" not in what}
        servers = {what: number for what, number in sorted(self.done.items()) if ":" in what}
        kills = {what: number for what, number in acts.items() if what.endswith(_KILLED)}
        return {
            "first seed": self.first,
            "lives": len(self.lives),
            "pipelines": sum(len(life.programs) for life in self.lives),
            "seconds": seconds,
            "kills": sum(kills.values()),
            "kills by kind": kills,
            "other acts": {what: number for what, number in acts.items() if what not in kills},
            "acts by server": servers,
            **{
                name: self.counts[name]
                for name in ("batches", "records", "rows", "lost", "doubled", "wrong", "stuck", "failed")
            },
            "broken rules of traces": self.counts["broken rules of traces"],
            "drivers ended by": dict(sorted(self.ends.items())),
            "seconds until all went on": summary(self.seconds),
            "drawn": dict(sorted(self.drawn.items())),
            "never": never(self.lives),
            "findings": self.findings,
        }
