"""Tries schedules: all of them up to a bound, or at random; and makes the schedule of a failure short."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from offsetkeeper.testing.simulator.ending import settle
from offsetkeeper.testing.simulator.schedule import Option, Violation
from offsetkeeper.testing.simulator.traces import judged, watcher
from offsetkeeper.testing.simulator.world import Scenario, World

Path = tuple[int, ...]


class Known(BaseException):
    """The state was visited before, with as much left to go wrong: what follows is known."""


@dataclass
class Tally:
    """The result of an exploration.

    Attributes:
        histories: from the first step to the end, or to a state that was known.
        decisions: steps at which there was a choice.
        states: distinct ones at these steps.
        depth: the most decisions in one history.
        seconds: of one core.
        complete: whether nothing is left to try within the bound.
    """

    histories: int = 0
    decisions: int = 0
    states: int = 0
    depth: int = 0
    seconds: float = 0.0
    complete: bool = True

    def __add__(self, other: Tally) -> Tally:
        return Tally(
            self.histories + other.histories,
            self.decisions + other.decisions,
            self.states + other.states,
            max(self.depth, other.depth),
            self.seconds + other.seconds,
            self.complete and other.complete,
        )


@dataclass
class Failure:
    """A broken promise, and how to see it again.

    Attributes:
        scenario: that it was found in.
        path: the number of the option at each decision.
        promise: the message.
        steps: what happened, for people.
        preemptions, faults: the budget that the path needs.
    """

    scenario: str
    path: Path
    promise: str
    steps: list[str]
    preemptions: int
    faults: int

    def __str__(self) -> str:
        lines = "\n".join(f"  {number:3} {step}" for number, step in enumerate(self.steps, 1))
        return f"{self.promise}\nin the scenario {self.scenario!r}, after\n{lines}"


@dataclass
class _Walk:
    """Chooses along a path, and then as `then` says."""

    prefix: Path
    then: Callable[[World, list[Option]], int]
    world: World | None = None
    chosen: list[int] = field(default_factory=list)

    def __call__(self, options: list[Option]) -> int:
        number = len(self.chosen)
        if number < len(self.prefix):
            pick = self.prefix[number] if self.prefix[number] < len(options) else 0
        else:
            assert self.world is not None  # noqa: S101 - it is set before the first step
            pick = self.then(self.world, options)
        self.chosen.append(pick)
        return pick


def exhaust(
    scenario: Scenario, *, preemptions: int, faults: int, seconds: float = float("inf")
) -> tuple[Tally, Failure | None]:
    """Try every schedule within the bound, each state once; stop at the first failure.

    Args:
        scenario: what is tried.
        preemptions: how often an actor that could go on is passed over, at most.
        faults: how often something goes wrong, at most.
        seconds: after which it ends, incomplete.
    """
    tally, seen = Tally(), dict[int, set[tuple[int, int]]]()
    stack: list[Path] = [()]
    begun = time.process_time()
    while stack:
        walk: _Walk

        def then(world: World, options: list[Option]) -> int:
            if _known(world, seen):
                raise Known
            tally.states += 1
            here = tuple(walk.chosen)  # noqa: B023 - called within this turn of the loop
            stack.extend((*here, number) for number in range(1, len(options)))
            return 0

        walk = _Walk(stack.pop(), then)
        failure = _history(scenario, walk, preemptions, faults, tally, seen)
        if failure is not None or time.process_time() - begun > seconds:
            tally.complete = not stack
            tally.seconds = time.process_time() - begun
            return tally, failure
    tally.seconds = time.process_time() - begun
    return tally, None


def wander(
    chosen: Sequence[Scenario],
    *,
    seed: object,
    histories: int | None = None,
    seconds: float = float("inf"),
    faults: int = 8,
) -> tuple[Tally, Failure | None]:
    """Try schedules at random, until so many histories or seconds are over; stop at the first failure.

    Args:
        chosen: the scenarios, tried in turn.
        seed: the same seed tries the same histories.
        histories: how many; without, as many as the seconds allow.
        seconds: of one core.
        faults: how often something goes wrong in one history, at most.
    """
    tally, seen, begun = Tally(), set[int](), time.process_time()
    failure: Failure | None = None
    number = 0
    while failure is None and (histories is None or number < histories) and time.process_time() - begun < seconds:
        chance = random.Random(f"{seed} {number}")  # noqa: S311 - no secret
        calm = chance.choice((0.5, 0.8, 0.95))

        def then(world: World, options: list[Option]) -> int:
            seen.add(world.digest())
            if chance.random() < calm:  # noqa: B023 - called within this turn of the loop
                return 0
            return chance.randrange(len(options) - (len(options) > 1))  # noqa: B023 - not that all are killed

        walk = _Walk((), then)
        scenario = chosen[number % len(chosen)]
        failure = _history(scenario, walk, preemptions=99, faults=chance.randrange(faults + 1), tally=tally, seen=None)
        number += 1
    tally.states, tally.seconds = len(seen), time.process_time() - begun
    return tally, failure


def shrink(scenario: Scenario, failure: Failure, tries: int = 800) -> Failure:
    """Return a failure of the same promise whose schedule has as few special steps as can be found."""
    best, letter = failure, failure.promise[:3]
    changed = True
    while changed and tries > 0:
        changed = False
        for number in reversed(range(len(best.path))):
            for path in _shorter(best.path, number):
                tries -= 1
                found = replay(scenario, path, best.preemptions, best.faults)
                if found is not None and found.promise.startswith(letter) and _weight(found) < _weight(best):
                    best, changed = found, True
                    break
            if changed or tries <= 0:
                break
    return best


def replay(scenario: Scenario, path: Path, preemptions: int, faults: int) -> Failure | None:
    """Repeat a history, and return how it fails, if it does."""
    walk = _Walk(path, lambda _world, _options: 0)
    return _history(scenario, walk, preemptions, faults, Tally(), None)


def _history(
    scenario: Scenario,
    walk: _Walk,
    preemptions: int,
    faults: int,
    tally: Tally,
    seen: dict[int, set[tuple[int, int]]] | None,
) -> Failure | None:
    world = World(scenario, walk, watcher, preemptions=preemptions, faults=faults)
    walk.world = world
    tally.histories += 1
    try:
        with judged():
            world.run()
            if seen is None or not _known(world, seen):
                settle(world)
    except Known:
        pass
    except Violation as broken:
        steps = [str(option) for option in world.schedule.path]
        return Failure(scenario.name, tuple(walk.chosen), str(broken), steps, preemptions, faults)
    finally:
        world.schedule.close()
        tally.decisions += len(walk.chosen)
        tally.depth = max(tally.depth, len(walk.chosen))
    return None


def _known(world: World, seen: dict[int, set[tuple[int, int]]]) -> bool:
    """Whether the state was visited with at least this budget; note it otherwise."""
    digest, budget = world.digest(), world.schedule.budget
    left = (budget.preemptions, budget.faults)
    visits = seen.setdefault(digest, set())
    if any(p >= left[0] and f >= left[1] for p, f in visits):
        return True
    visits.add(left)
    return False


def _shorter(path: Path, number: int) -> Iterable[Path]:
    if path[number]:
        yield (*path[:number], 0, *path[number + 1 :])
        yield from ((*path[:number], less, *path[number + 1 :]) for less in range(1, path[number]))
    yield (*path[:number], *path[number + 1 :])
    yield path[:number]


def _weight(failure: Failure) -> tuple[int, int]:
    return sum(number > 0 for number in failure.path), len(failure.steps)
