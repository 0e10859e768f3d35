"""What histories have drawn and reached, alone and in pairs, and what they never had. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

from offsetkeeper import errors
from swarm import draw
from swarm.draw import History
from swarm.faults import HOWS

_FAULTS = [f"fault {where} {how}" for where, hows in HOWS.items() for how in hows]
_ERRORS = sorted(
    name
    for name, each in vars(errors).items()
    if isinstance(each, type) and issubclass(each, errors.OffsetkeeperError) and each is not errors.OffsetkeeperError
)


@dataclass
class Coverage:
    """Counts over histories.

    Attributes:
        histories: how many.
        drawn: features of histories, by how many have them.
        pairs: the same of two features.
        reached: acts that were done, faults that fired, ends of runs, and refusals, by their number.
        verdicts: how histories ended.
    """

    histories: int = 0
    drawn: Counter[str] = field(default_factory=Counter)
    pairs: Counter[tuple[str, str]] = field(default_factory=Counter)
    reached: Counter[str] = field(default_factory=Counter)
    verdicts: Counter[str] = field(default_factory=Counter)

    def add(self, history: History, seen: Counter[str], verdict: str) -> None:
        """Count a history.

        Args:
            history: as it was drawn.
            seen: what it has reached.
            verdict: how it ended.
        """
        features = sorted({*history.features})
        self.histories += 1
        self.drawn.update(features)
        self.pairs.update(combinations(features, 2))
        self.reached += seen
        self.verdicts[verdict.partition(":")[0]] += 1

    def as_dict(self) -> dict[str, Any]:
        """Return all of it as plain values, and what is missing."""
        named = dict(sorted(self.reached.items()))
        ended = {error for error in _ERRORS if self.reached[f"run ends: {error}"] + self.reached[f"refused {error}"]}
        possible = [*dict.fromkeys([*self._features(), *self.drawn])]
        return {
            "histories": self.histories,
            "verdicts": dict(self.verdicts),
            "drawn": dict(sorted(self.drawn.items())),
            "reached": named,
            "pairs": {"drawn": len(self.pairs), "of": len([*combinations(possible, 2)])},
            "never drawn": [each for each in possible if not self.drawn[each]],
            "never reached": [each for each in (*draw.ACTS, *_FAULTS) if not self.reached[each]],
            "errors never seen": sorted({*_ERRORS} - ended),
        }

    def _features(self) -> Iterable[str]:
        yield from (f"store {each}" for each in draw.STORES)
        yield from (f"output {each}" for each in (*draw.OUTPUTS, "Function"))
        yield from dict.fromkeys(draw.GUARANTEES)
        yield from (f"reader {each}" for each in draw.READERS)
        yield from ("start earliest", "start latest", "read_committed", "read_uncommitted")
        yield from draw.CONTENT
        yield from (f"program {each}" for each in draw.PROGRAMS)
        yield from (f"{name}={word}" for name, words in draw.POLICIES.items() for word in words)
        yield from ("2 outputs", "3 outputs", "2 topics", "few rows staged")
        yield from (f"batches of {each}" for each in (2, 3, 5))
        yield from draw.ACTS
