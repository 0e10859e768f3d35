"""A history, drawn from one number. Pure.

Swarm testing (Groce and others, 2012): each history first draws which features it has at all. With all of them switched
on, each is rare and few pairs meet; with some of them off, the others meet often.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

from swarm.records import SHAPES

HAPPENINGS = (
    "a transaction is aborted",
    "a transaction stays open",
    "the transaction ends",
    "a partition is added",
    "the topic is made again",
    "retention deletes",
    "the program changes",
    "the checkpoint is deleted",
)
RUNS = ("run", "run with a fault", "run that dies", "query", "query that dies")
DAMAGES = (
    "the output is restored",
    "the output is restored in a run",
    "the output is rolled back",
    "the older program runs",
    "the store is restored",
    "rows are deleted",
    "the output is emptied",
    "the mark is deleted",
)
_OFTEN = {"run": 2, "run with a fault": 3, "run that dies": 3}
OPERATORS = ("reset", "undo", "rewind", "forget", "copy", "adopt")
ACTS = ("records come", *HAPPENINGS, *RUNS, "a backup is made", *DAMAGES, *OPERATORS)
"""What may happen, in the words of a history. It goes in rounds: something happens, records come, a run, operators."""

OUTPUTS = ("SQLite", "SQLite with the offsets", "Files", "Delta", "Iceberg")
UNMARKED = ("SQLite", "Function")
"""Outputs that can be written after the offsets."""
ON = 0.4
"""How likely a feature is switched on."""
SLOW = 0.3
"""How likely one may be that costs ten seconds each time."""
FURTHER = ("Topic", "PostgreSQL", "PostgreSQL with the offsets", "MariaDB", "MariaDB with the offsets")
SERVERS = ("postgresql", "mariadb")
STORES = ("sqlite", "folder", "memory", "kafka")
GUARANTEES = ("exactly_once", "exactly_once", "exactly_once", "at_least_once", "at_most_once")
READERS = ("auto", "packed", "packed, python", "connector")
CONTENT = ("null values", "empty values", "null keys", "odd times", "headers", "compaction", "poison")
PROGRAMS = ("skips", "copies", *SHAPES)
POLICIES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "recreated": ("stop", "beginning", "beginning"),
        "below_beginning": ("stop", "beginning", "beginning"),
        "beyond_end": ("stop", "beginning"),
        "pending": ("own", "finish", "drop"),
    }
)


class Step(NamedTuple):
    """An act of a history.

    Attributes:
        what: of `ACTS`.
        number: from which it draws all that it needs, so that leaving out another act does not change it.
    """

    what: str
    number: int

    def chance(self) -> random.Random:
        """Return what it draws from."""
        return random.Random(self.number)  # noqa: S311 - no secret


@dataclass(frozen=True)
class History:
    """What is tried.

    Attributes:
        seed: from which it is drawn.
        store, outputs, guarantee, reader, start: of the pipeline.
        partitions: of each topic; there are as many topics as numbers.
        content: kinds of records, of `CONTENT`.
        program: what the program does, of `PROGRAMS`.
        policies: that differ from the default.
        max_records: of a batch; None for no limit.
        isolation: of the reader.
        staged: whether few rows are staged too.
        steps: what happens.
    """

    seed: int
    store: str
    outputs: tuple[str, ...]
    guarantee: str
    reader: str
    start: str
    partitions: tuple[int, ...]
    content: frozenset[str]
    program: frozenset[str]
    policies: tuple[tuple[str, str], ...]
    max_records: int | None
    isolation: str
    staged: bool
    steps: tuple[Step, ...]

    @property
    def quarantines(self) -> bool:
        """Whether records that fail go into the dead letters."""
        return "poison" in self.content and self.guarantee != "at_most_once"

    @property
    def features(self) -> list[str]:
        """What it has, in words: single features of the coverage."""
        found = [f"store {self.store}", *(f"output {each}" for each in self.outputs), self.guarantee]
        found += [f"reader {self.reader}", f"start {self.start}", self.isolation]
        found += [*sorted(self.content), *(f"program {each}" for each in sorted(self.program))]
        found += [f"{name}={word}" for name, word in self.policies]
        found += [f"{len(self.outputs)} outputs"] if len(self.outputs) > 1 else []
        found += [f"{len(self.partitions)} topics"] if len(self.partitions) > 1 else []
        found += [f"batches of {self.max_records}"] if self.max_records else []
        found += ["few rows staged"] if self.staged else []
        return [*found, *sorted({step.what for step in self.steps})]

    def __str__(self) -> str:
        acts = ", ".join(step.what for step in self.steps)
        return f"history {self.seed}: {'; '.join(self.features[: -len({s.what for s in self.steps}) or None])}: {acts}"


def draw(seed: int, outputs: Iterable[str] = OUTPUTS, stores: Iterable[str] = STORES) -> History:
    """Return the history of a number.

    Args:
        seed: the number.
        outputs: kinds of outputs to choose from.
        stores: kinds of stores to choose from.
    """
    chance = random.Random(f"swarm {seed}")  # noqa: S311 - no secret
    guarantee = chance.choice(GUARANTEES)
    kinds = [*outputs, *(["Function"] if guarantee != "exactly_once" else [])]
    if guarantee == "at_most_once":
        kinds = [each for each in kinds if each in UNMARKED]
    store = chance.choice([each for each in stores for _ in range(1 if each == "kafka" else 2)])
    chosen = chance.sample(kinds, k=min(len(kinds), chance.choice((1, 1, 1, 2, 2, 3))))
    chosen = [each if _fits(each, store) else each.partition(" with")[0] for each in chosen]
    slow, slower = chance.random() < SLOW, chance.random() < SLOW
    content = _some(chance, CONTENT) - (set() if slow else {"poison"})
    on = frozenset(act for act in ACTS if chance.random() < ON)
    on -= set() if slower else {"query", "query that dies"}
    if "poison" in content and guarantee != "at_most_once":
        on -= {"query", "query that dies"}  # of which the checkpoint fixes the batches: no quarantine can cut them
    on -= _impossible(store, chosen, on)
    steps = [Step(what, chance.getrandbits(32)) for what in _acts(chance, on)]
    return History(
        seed=seed,
        store=store,
        outputs=tuple(dict.fromkeys(chosen)),
        guarantee=guarantee,
        reader=chance.choice(READERS),
        start=chance.choice(("earliest", "earliest", "latest")),
        partitions=tuple(chance.choice((1, 2, 3)) for _ in range(chance.choice((1, 1, 2)))),
        content=content,
        program=_some(chance, PROGRAMS),
        policies=tuple((name, chance.choice(words)) for name, words in POLICIES.items() if chance.random() < 0.6),
        max_records=chance.choice((None, None, 2, 3, 5)),
        isolation=chance.choice(("read_committed", "read_committed", "read_uncommitted")),
        staged=chance.random() < 0.3,
        steps=tuple(steps),
    )


def _fits(output: str, store: str) -> bool:
    """Whether there is such an output with this store."""
    kind, _, joined = output.partition(" with")
    return not joined or kind.lower() == store


def _impossible(store: str, outputs: list[str], on: frozenset[str]) -> set[str]:
    """Return the acts that store and outputs do not have."""
    found: set[str] = set() if store in {"sqlite", "folder"} else {"the store is restored"}
    databases = any(each.startswith(("SQLite", "PostgreSQL", "MariaDB")) for each in outputs)
    found |= set() if "copy" in on else {"the older program runs"}
    found |= set() if "Delta" in outputs else {"the output is rolled back"}
    return found | (set() if databases else {"the mark is deleted"})


def _acts(chance: random.Random, on: frozenset[str]) -> Iterator[str]:
    """Yield acts in rounds, of those that are switched on."""
    yield from ("records come", "run")
    runs = [each for each in RUNS for _ in range(_OFTEN.get(each, 1)) if each in on] or ["run"]
    for _ in range(chance.randrange(2, 6)):
        if any("restored" in each or "rolled" in each for each in on) and chance.random() < 0.6:
            yield "a backup is made"
        yield from _few(chance, HAPPENINGS, on)
        if chance.random() < 0.8:
            yield "records come"
        yield chance.choice(runs)
        yield from _few(chance, DAMAGES, on)
        yield from _few(chance, OPERATORS, on)


def _few(chance: random.Random, those: Iterable[str], on: frozenset[str]) -> list[str]:
    """Return none, one or two of those that are switched on."""
    found = [each for each in those if each in on]
    return chance.choices(found, k=chance.choice((0, 1, 1, 2))) if found else []


def _some(chance: random.Random, those: Iterable[Any]) -> frozenset[Any]:
    return frozenset(each for each in those if chance.random() < 0.3)
