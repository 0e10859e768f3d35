"""Runs the simulator, on the code as it is or broken on purpose: this is `make simulate`.

    python mutants/simulate.py [--break NAME | --teeth] [arguments of offsetkeeper.testing.simulator]

`--break` takes a breakage of this folder by its name, or a part of it; the exit code is 1 when the simulator finds it,
and its shortest schedule is printed. `--teeth` tries all that are about rules, ledger, delivery, engines and outputs,
each in the scenario that its list names, and prints as JSON which are not found, and why others cannot be.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from breakages import Mutant, find, load_mutants, make_broken

_ROOMS = (
    "core/bounds.py",
    "core/ledger.py",
    "core/pending.py",
    "core/mark.py",
    "core/plan.py",
    "core/rules.py",
    "engines/",
    "sinks/once.py",
    "sinks/outputs.py",
)
"""Whose breakages the simulator is to find: how the names of their files begin."""


def main(arguments: list[str]) -> int:
    """Run the command, and return its exit code."""
    if "--teeth" in arguments:
        arguments.remove("--teeth")
        return teeth(arguments)
    if "--break" not in arguments:
        return subprocess.run(_command(arguments), check=False).returncode
    at = arguments.index("--break")
    name = arguments[at + 1]
    del arguments[at : at + 2]
    named = [each for each in load_mutants() if name in each.name]
    chosen = [each for each in named if each.name == name] or named
    if len(chosen) != 1:
        print(f"{len(chosen)} breakages have {name!r} in their names: {[each.name for each in chosen]}")
        return 2
    return run_broken(chosen[0], arguments).returncode


def teeth(arguments: list[str]) -> int:
    """Try every breakage of the rooms that the simulator runs, each in its scenario; 1 where one is not found."""
    every = [each for each in load_mutants() if simulated(each)]
    chosen = [each for each in every if not each.no_scenario]
    bound = arguments or ["--histories", "20000"]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        codes = pool.map(lambda each: run_broken(each, [*bound, "--json"], quiet=True).returncode, chosen)
        missed = [each.name for each, code in zip(chosen, codes, strict=True) if code != 1]
    reasons = Counter(each.no_scenario for each in every if each.no_scenario)
    told = {"tried": len(chosen), "found": len(chosen) - len(missed), "missed": missed, "not tried": reasons}
    print(json.dumps(told, indent=1))
    return bool(missed)


def simulated(mutant: Mutant) -> bool:
    """Whether it is in a room whose breakages the simulator is to find."""
    return str(find(mutant.at).file).startswith(_ROOMS)


def run_broken(mutant: Mutant, arguments: list[str], *, quiet: bool = False) -> subprocess.CompletedProcess[bytes]:
    """Run the simulator on a copy of the package with this breakage."""
    with tempfile.TemporaryDirectory() as folder:
        make_broken(mutant, Path(folder))
        sink = subprocess.DEVNULL if quiet else None
        environment = {**os.environ, "PYTHONPATH": folder}
        if "--scenario" not in arguments:
            arguments = [*arguments, "--scenario", mutant.scenario]
        done = subprocess.run(_command(arguments), env=environment, check=False, stdout=sink, stderr=sink)
        if quiet:
            print(f"{'found ' if done.returncode == 1 else 'MISSED'} {mutant.name}", file=sys.stderr, flush=True)
        return done


def _command(arguments: list[str]) -> list[str]:
    return [sys.executable, "-m", "offsetkeeper.testing.simulator", *arguments]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
