"""Runs the simulator, on the code as it is or broken on purpose: this is `make simulate`.

    python mutants/simulate.py [--break NAME | --teeth] [arguments of offsetkeeper.testing.simulator]

`--break` takes a breakage of this folder by its name, or a part of it; the exit code is 1 when the simulator finds it,
and its shortest schedule is printed. `--teeth` tries all that are about rules, ledger, delivery, engines and outputs,
and prints as JSON which the simulator finds.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from breakages import Mutant, find, load_mutants, make_broken

_ROOMS = {
    "core/ledger.py": "",
    "core/rules.py": "",
    "core/pending.py": "",
    "core/plan.py": "",
    "core/bounds.py": "",
    "core/mark.py": "marked",
    "engines/checkpoint_": "quer",
    "engines/foreach_batch": "quer",
    "engines/structured": "quer",
    "engines/quarantine": "quarantine",
    "engines": "",
    "sinks/outputs": "two",
    "sinks/once": "marked",
    "operate/adopt": "adoption",
    "operate/copy": "a copy",
    "operate/reset": "operators",
    "checkpoint/change": "edits",
}
"""Where the simulator is to find a breakage: the beginning of a file's name, and a part of the names of scenarios."""


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
    """Try every breakage of the rooms that the simulator runs; print which are found and which are missed."""
    chosen = [each for each in load_mutants() if _scenarios(each) is not None]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        codes = pool.map(lambda each: run_broken(each, [*arguments, "--json"], quiet=True).returncode, chosen)
        found = {each.name: code for each, code in zip(chosen, codes, strict=True)}
    missed = [name for name, code in found.items() if code != 1]
    print(json.dumps({"tried": len(found), "found": len(found) - len(missed), "missed": missed}, indent=1))
    return 0


def run_broken(mutant: Mutant, arguments: list[str], *, quiet: bool = False) -> subprocess.CompletedProcess[bytes]:
    """Run the simulator on a copy of the package with this breakage."""
    with tempfile.TemporaryDirectory() as folder:
        make_broken(mutant, Path(folder))
        sink = subprocess.DEVNULL if quiet else None
        environment = {**os.environ, "PYTHONPATH": folder}
        if "--scenario" not in arguments:
            arguments = [*arguments, "--scenario", _scenarios(mutant) or ""]
        done = subprocess.run(_command(arguments), env=environment, check=False, stdout=sink, stderr=sink)
        if quiet:
            print(f"{'found ' if done.returncode == 1 else 'MISSED'} {mutant.name}", file=sys.stderr, flush=True)
        return done


def _scenarios(mutant: Mutant) -> str | None:
    """Return what the names of the scenarios have in common that may find it; None where the simulator cannot."""
    file = str(find(mutant.at).file)
    return next((part for room, part in _ROOMS.items() if file.startswith(room)), None)


def _command(arguments: list[str]) -> list[str]:
    return [sys.executable, "-m", "offsetkeeper.testing.simulator", *arguments]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
