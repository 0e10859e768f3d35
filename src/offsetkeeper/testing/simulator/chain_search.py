"""Tries chains of acts: at random, or all short ones; and makes one that breaks a promise short."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any, NamedTuple

from offsetkeeper.core.model import Guarantee
from offsetkeeper.testing.simulator.chains import ACTS, CUT, DROPS, EVENTS, LEADS, Chain, Step
from offsetkeeper.testing.simulator.schedule import Violation
from offsetkeeper.testing.simulator.world import GOING_ON, Scenario

# A policy would read a cluster from its beginning at each return.
_POLICIES = replace(GOING_ON, elsewhere="stop", cut="common")
_MOST_ACTS = 6
_KILLED = -1  # the last option
_MIDDLE = (8, 12, 14, 17)  # choices of a run: before it begins its first batch, and after that, a landing and a mark
_SHORT = (
    Step("run"),
    Step(DROPS),
    *(Step("run", faults=((number, _KILLED),)) for number in _MIDDLE),
    *(Step(name) for name in (*EVENTS, LEADS)),
    *(Step(name, which) for name in ("reset to the earliest", "reset to the latest", "undo") for which in (0, 2)),
    *(Step("reset to an offset", which, 1) for which in (0, 1)),
    Step("shift", 1, 1),
    Step("rewind", 0, 1),
    Step("forget", 0),
    Step("forget", 2),
    Step("copy"),
)


class Broken(NamedTuple):
    """A chain after which the rows are not as the previews have promised."""

    scenario: str
    steps: tuple[Step, ...]
    promise: str

    def __str__(self) -> str:
        lines = "\n".join(f"  {number:3} {step}" for number, step in enumerate(self.steps, 1))
        return f"{self.promise}\nin the scenario {self.scenario!r}, after\n{lines}"


def groups() -> list[Scenario]:
    """Return the groups whose chains are tried: kinds of outputs, where they begin, and how much history they keep."""
    kinds: Mapping[str, tuple[Guarantee, Mapping[str, str]]] = {
        "in the transaction": (Guarantee.EXACTLY_ONCE, {"": "joined"}),
        "marked": (Guarantee.EXACTLY_ONCE, {"": "marked"}),
        "two marked": (Guarantee.EXACTLY_ONCE, {"one": "marked", "two": "marked"}),
        "of both kinds": (Guarantee.EXACTLY_ONCE, {"one": "joined", "two": "marked"}),
        "keyed": (Guarantee.EXACTLY_ONCE, {"": "keyed"}),
        "marked and keyed": (Guarantee.EXACTLY_ONCE, {"one": "marked", "two": "keyed"}),
        "at least once": (Guarantee.AT_LEAST_ONCE, {"": "apart"}),
    }
    casts: Mapping[str, Mapping[str, Any]] = {
        "from the earliest": {},
        "from the latest": {"start": "latest"},
        "with a short history": {"history": 6},
    }
    return [
        Scenario(f"{name}, {cast}", guarantee, outputs, {}, policies=_POLICIES, leader_epochs=True, **how)
        for cast, how in casts.items()
        for name, (guarantee, outputs) in kinds.items()
    ]


def tried(scenario: Scenario, steps: Sequence[Step]) -> Broken | None:
    """Run a chain, and return how a promise was broken, if one was."""
    try:
        Chain(scenario).run(steps)
    except Violation as broken:
        return Broken(scenario.name, tuple(steps), str(broken))
    return None


def drawn(chance: random.Random) -> tuple[Step, ...]:
    """Draw a chain: up to six acts, with runs and events between them."""
    steps = []
    for _ in range(chance.randrange(1, _MOST_ACTS + 1)):
        steps += [Step("records arrive")] * chance.choice((0, 0, 1, 2))
        steps += [_run(chance)] * chance.choice((0, 1, 1, 1))
        steps += [Step(_event(chance)) for _ in range(chance.choice((0, 0, 1)))]
        steps += [_run(chance)] * chance.choice((0, 1))
        what = chance.choice([*ACTS])
        beside = -1 if what == "copy" else chance.choice((-1, -1, chance.randrange(25)))  # docs: stop the program first
        steps.append(Step(what, chance.choice((0, 0, 1, 2, 3)), chance.randrange(5), beside=beside))
    if all(step.what != "forget" for step in steps):  # it does not ask whether the log was cut
        for _ in range(chance.choice((0, 1, 2))):
            steps.insert(chance.randrange(len(steps) + 1), Step(CUT))
    return tuple(steps)


def wander_chains(seed: object, chains: int, chosen: Sequence[Scenario] = ()) -> Broken | None:
    """Try chains at random, and return the first one that breaks a promise, made short."""
    every = chosen or groups()
    chances = (random.Random(f"{seed} {number}") for number in range(chains))  # noqa: S311 - no secret
    return _first_broken((every[number % len(every)], drawn(chance)) for number, chance in enumerate(chances))


def exhaust_chains(scenario: Scenario, length: int) -> Broken | None:
    """Try every chain of so many steps from a small choice, after a run that has caught up."""
    return _first_broken((scenario, (Step("run"), *steps)) for steps in product(_SHORT, repeat=length))


def shortened(broken: Broken, scenario: Scenario) -> Broken:
    """Return a chain that breaks a promise, with as few steps as can be found by leaving some out."""
    letter = broken.promise[:3]
    number = 0
    while number < len(broken.steps):
        for step in (None, *_simpler(broken.steps[number])):
            less = broken.steps[:number] + (() if step is None else (step,)) + broken.steps[number + 1 :]
            found = tried(scenario, less)
            if found is not None and found.promise.startswith(letter):
                broken, number = found, 0
                break
        else:
            number += 1
    return broken


def _simpler(step: Step) -> list[Step]:
    fewer = [step._replace(faults=step.faults[:n] + step.faults[n + 1 :]) for n in range(len(step.faults))]
    return fewer + ([step._replace(beside=-1)] if step.beside >= 0 else [])


def _first_broken(chains: Iterable[tuple[Scenario, tuple[Step, ...]]]) -> Broken | None:
    found = ((scenario, tried(scenario, steps)) for scenario, steps in chains)
    return next((shortened(broken, scenario) for scenario, broken in found if broken is not None), None)


def _run(chance: random.Random) -> Step:
    number = chance.choice((0, 1, 1, 2))
    faults = [(chance.randrange(40), chance.choice((_KILLED, chance.randrange(1, 8)))) for _ in range(number)]
    return Step(chance.choice(("run", "run", "run", DROPS)), faults=tuple(sorted(dict(faults).items())))


def _event(chance: random.Random) -> str:
    return chance.choice((*EVENTS, "records arrive", "retention deletes", LEADS))
