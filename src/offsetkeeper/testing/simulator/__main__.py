"""The command: `python -m offsetkeeper.testing.simulator`, which is `make simulate`."""

from __future__ import annotations

import argparse
import json
import logging
import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext
from itertools import product

from offsetkeeper.testing.simulator.explore import Failure, Tally, exhaust, replay, shrink, wander
from offsetkeeper.testing.simulator.scenarios import scenarios
from offsetkeeper.testing.simulator.traces import judged_by_traces
from offsetkeeper.testing.simulator.world import Scenario

_BOUNDS = ((1, 0), (2, 0), (0, 1), (3, 0), (1, 1))  # preemptions and faults, the quick ones first
_OWNERS = 2  # of a scenario that can be exhausted
_CHUNK_S = 5.0
_CHUNK = 10_000  # histories


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command, and return its exit code: 0 without a broken promise, 1 with one."""
    asked = _parser().parse_args(arguments)
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)  # the schedule tells what is broken
    try:
        with judged_by_traces() if asked.traces else nullcontext():
            return _run(asked)
    finally:
        logging.disable(before)


def _run(asked: argparse.Namespace) -> int:
    if asked.list:
        print("\n".join(scenarios()))  # noqa: T201 - the command's answer
        return 0
    every = scenarios()
    chosen = [each for each in every.values() if asked.scenario in each.name]
    if not chosen:
        print(f"No scenario has {asked.scenario!r} in its name: see --list", file=sys.stderr)  # noqa: T201
        return 2
    if asked.replay:
        return _told(Tally(), _replay(asked.replay), as_json=asked.json)
    seconds = asked.minutes * 60 if asked.minutes is not None else asked.seconds
    if asked.exhaust:
        tally, failure = _exhaust(_short(chosen), *asked.exhaust)
    elif asked.histories is not None:
        tally, failure = _wander(chosen, asked.seed, asked.histories)
    else:
        tally, failure = _try(chosen, asked.seed, seconds)
    if failure is not None:
        failure = shrink(every[failure.scenario], failure)
    return _told(tally, failure, as_json=asked.json)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="make simulate", description="Tries schedules of runs, faults and operators against what is promised."
    )
    parser.add_argument("--seconds", type=float, default=60, help="how long to try (default 60)")
    parser.add_argument("--minutes", type=float, help="how long to try, in minutes")
    parser.add_argument("--histories", type=int, help="try so many random histories, however long that takes")
    parser.add_argument("--seed", type=int, default=1, help="of the random histories (default 1)")
    parser.add_argument("--scenario", default="", help="try only scenarios with this text in their names")
    parser.add_argument(
        "--exhaust", type=int, nargs=2, metavar=("PREEMPTIONS", "FAULTS"), help="try every schedule up to this bound"
    )
    parser.add_argument("--traces", action="store_true", help="judge by what check-trace finds, not by the promises")
    parser.add_argument("--replay", help="repeat one history, as a failure prints it")
    parser.add_argument("--list", action="store_true", help="print the names of the scenarios")
    parser.add_argument("--json", action="store_true", help="print the result as one line of JSON")
    return parser


def _try(chosen: Sequence[Scenario], seed: int, seconds: float) -> tuple[Tally, Failure | None]:
    """Try all short schedules as far as half of the time goes, then random ones."""
    begun, total = time.process_time(), Tally()
    for (preemptions, faults), scenario in product(_BOUNDS, _short(chosen)):
        left = seconds / 2 - (time.process_time() - begun)
        if left <= 0:
            break
        found, failure = exhaust(scenario, preemptions=preemptions, faults=faults, seconds=min(left, seconds / 10))
        total += found
        if failure is not None:
            return total, failure
    number = 0
    while (left := seconds - (time.process_time() - begun)) > 0:
        found, failure = wander(chosen, seed=f"{seed}.{number}", seconds=min(left, _CHUNK_S))
        total, number = total + found, number + 1
        if failure is not None:
            return total, failure
    return total, None


def _wander(chosen: Sequence[Scenario], seed: int, histories: int) -> tuple[Tally, Failure | None]:
    """Try so many random histories, in chunks: the states that were seen are forgotten between them."""
    total = Tally()
    for number, done in enumerate(range(0, histories, _CHUNK)):
        found, failure = wander(chosen, seed=f"{seed}.{number}", histories=min(_CHUNK, histories - done))
        total += found
        print(f"{total.histories} histories, {total.seconds:.0f} s", file=sys.stderr, flush=True)  # noqa: T201
        if failure is not None:
            return total, failure
    return total, None


def _short(chosen: Sequence[Scenario]) -> list[Scenario]:
    """Return those that are short enough to be exhausted: two owners, and at most one event."""
    return [each for each in chosen if len(each.actors) == _OWNERS and len(each.events) <= 1]


def _exhaust(chosen: Sequence[Scenario], preemptions: int, faults: int) -> tuple[Tally, Failure | None]:
    total = Tally()
    for scenario in chosen:
        found, failure = exhaust(scenario, preemptions=preemptions, faults=faults)
        total += found
        print(f"{scenario.name}: {found.states} states, {found.seconds:.0f} s", file=sys.stderr, flush=True)  # noqa: T201
        if failure is not None:
            return total, failure
    return total, None


def _replay(text: str) -> Failure | None:
    name, budget, path = text.split("|")
    preemptions, faults = map(int, budget.split(","))
    special = {int(number): int(option) for number, option in (each.split(":") for each in path.split(",") if each)}
    numbers = tuple(special.get(number, 0) for number in range(max(special, default=-1) + 1))
    return replay(scenarios()[name], numbers, preemptions, faults)


def _told(tally: Tally, failure: Failure | None, *, as_json: bool) -> int:
    result: dict[str, object] = {
        "histories": tally.histories,
        "decisions": tally.decisions,
        "states": tally.states,
        "depth": tally.depth,
        "violations": int(failure is not None),
        "per_second": round(tally.decisions / tally.seconds) if tally.seconds else 0,
    }
    if failure is not None:
        special = ",".join(f"{number}:{option}" for number, option in enumerate(failure.path) if option)
        again = f"{failure.scenario}|{failure.preemptions},{failure.faults}|{special}"
        print(f"{failure}\nSee it again: make simulate ARGS='--replay \"{again}\"'", file=sys.stderr)  # noqa: T201
        result |= {"promise": failure.promise, "replay": again}
    print(json.dumps(result) if as_json else _in_words(result))  # noqa: T201 - the command's answer
    return int(failure is not None)


def _in_words(result: dict[str, object]) -> str:
    return ", ".join(f"{value} {name}" for name, value in result.items() if name not in {"promise", "replay"})


if __name__ == "__main__":
    sys.exit(main())
