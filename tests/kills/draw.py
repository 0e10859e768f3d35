"""A life of several pipelines on one cluster, drawn from one number. Pure."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

from swarm.records import SHAPES

OUTPUTS = (
    *("SQLite", "SQLite with the offsets", "PostgreSQL", "PostgreSQL with the offsets"),
    *("MariaDB", "MariaDB with the offsets", "Topic", "Files", "Delta", "Iceberg", "Cassandra", "Function"),
)
STORES = ("sqlite", "folder", "postgresql", "standby", "mariadb", "redis", "kafka", "zookeeper")
"""`standby` is a PostgreSQL with a synchronous standby, which may be promoted."""
READERS = ("packed", "packed, python")
ENGINES = ("run", "start")
PROMOTED = "standby promoted"
ACTS: Mapping[str, int] = MappingProxyType(
    {
        "executor killed": 10,
        "executor stopped": 2,
        "Python worker killed": 5,
        "worker killed": 3,
        "worker stopped": 1,
        "driver killed": 2,
        "driver's JVM killed": 1,
        "driver stopped": 1,
        "driver replaced": 1,
        "server killed": 3,
        "server stopped": 2,
        "server refuses": 2,
        "server silent": 2,
        "request cut": 2,
        "answer cut": 2,
        PROMOTED: 2,
    }
)
"""What is done, and how often in relation to the others. A driver that is replaced is stopped meanwhile."""
_ALWAYS, _ON, _SETTLED = {"executor killed", "server killed"}, 0.7, 0.6


class Act(NamedTuple):
    """What is done.

    Attributes:
        what: of `ACTS`.
        number: which of those that it can be done to, counted on from the first again if they are fewer.
        after_s: seconds after the act before.
        lasts_s: seconds until it is over, if it lasts.
        settled: whether all pipelines have gone on before, if they do within a minute.
    """

    what: str
    number: int
    after_s: float
    lasts_s: float
    settled: bool


class Program(NamedTuple):
    """A pipeline of a life.

    Attributes:
        store: of `STORES`.
        outputs: of `OUTPUTS`.
        engine: `run` or `start`.
        reader: of `READERS`.
        shape: what its frames have, of `swarm.records.SHAPES`.
        max_records: of a batch.
    """

    store: str
    outputs: tuple[str, ...]
    engine: str
    reader: str
    shape: frozenset[str]
    max_records: int

    @property
    def features(self) -> list[str]:
        """What it has, in words."""
        found = [f"store {self.store}", *(f"output {each}" for each in self.outputs), f"engine {self.engine}"]
        return [*found, f"reader {self.reader}", *(f"frame {each}" for each in sorted(self.shape))]


@dataclass(frozen=True)
class Drawn:
    """A life.

    Attributes:
        seed: from which it is drawn.
        programs: the pipelines, which run at once.
        acts: what is done to them, in order.
    """

    seed: int
    programs: tuple[Program, ...]
    acts: tuple[Act, ...]

    def __str__(self) -> str:
        programs = "; ".join(", ".join(each.features) for each in self.programs)
        return f"life {self.seed}: {programs}: {', '.join(act.what for act in self.acts)}"


def draw(
    seed: int,
    *,
    outputs: Collection[str] = OUTPUTS,
    stores: Collection[str] = STORES,
    programs: int = 2,
    acts: int = 25,
) -> Drawn:
    """Return the life of a number.

    Args:
        seed: the number.
        outputs: kinds to choose from.
        stores: the same.
        programs: how many run at once.
        acts: how many are done.
    """
    chance = random.Random(f"kills {seed}")  # noqa: S311 - no secret
    found = tuple(_program(chance, outputs, stores) for _ in range(programs))
    on = {act for act in ACTS if act in _ALWAYS or chance.random() < _ON}
    if all(each.store != "standby" for each in found):
        on.discard(PROMOTED)
    weights = {act: weight for act, weight in ACTS.items() if act in on}
    whats = chance.choices([*weights], [*weights.values()], k=acts)
    if PROMOTED in whats:  # there is one standby
        first = whats.index(PROMOTED)
        whats = [each for n, each in enumerate(whats) if each != PROMOTED or n == first]
    return Drawn(seed, found, tuple(_act(chance, each) for each in whats))


def _act(chance: random.Random, what: str) -> Act:
    after_s, lasts_s = chance.uniform(0, 3), chance.uniform(0.2, 6)
    return Act(what, chance.randrange(1000), after_s, lasts_s, settled=chance.random() < _SETTLED)


def _program(chance: random.Random, outputs: Collection[str], stores: Collection[str]) -> Program:
    store = chance.choice([*stores])
    possible = [each for each in outputs if fits(each, store)]
    wanted = chance.choice((1, 1, 2, 3))
    return Program(
        store=store,
        outputs=tuple(chance.sample(possible, min(wanted, len(possible)))),
        engine=chance.choice((*ENGINES, "run")),
        reader=chance.choice(READERS),
        shape=frozenset(each for each in SHAPES if chance.random() < 0.25),
        max_records=chance.choice((100, 300, 1000)),
    )


def fits(output: str, store: str) -> bool:
    """Whether there is such an output with this store."""
    kind, _, joined = output.partition(" with")
    return not joined or kind.lower() == store.replace("standby", "postgresql")


def never(lives: Iterable[Drawn]) -> list[str]:
    """Return what none of these lives has."""
    lives = [*lives]
    had = {each for life in lives for program in life.programs for each in program.features}
    had |= {act.what for life in lives for act in life.acts}
    possible = [f"store {each}" for each in STORES] + [f"output {each}" for each in OUTPUTS]
    possible += [f"engine {each}" for each in ENGINES] + [f"reader {each}" for each in READERS]
    return [each for each in (*possible, *(f"frame {each}" for each in SHAPES), *ACTS) if each not in had]
