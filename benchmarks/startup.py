"""How long `import offsetkeeper`, what a job imports, and `offsetkeeper --help` take, in new processes.

    python benchmarks/startup.py [--rounds 10]

Python alone takes turns with them: the rest is offsetkeeper's own. Time, and CPU of the process, which other work on
the machine does not stretch. The files are compiled before, as they are where pip has installed them.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

COMMANDS = {
    "python": [sys.executable, "-c", "pass"],
    "import": [sys.executable, "-c", "import offsetkeeper"],
    "job": [sys.executable, "-c", "from offsetkeeper import Pipeline"],
    "help": [str(Path(sys.executable).with_name("offsetkeeper")), "--help"],
    "lag_help": [str(Path(sys.executable).with_name("offsetkeeper")), "lag", "--help"],
}
_WITHOUT = "PYTHONDONTWRITEBYTECODE"  # with it each process would compile all files again


def seconds(command: list[str]) -> tuple[float, float]:
    """Return how long a process took, and its CPU."""
    environment = {name: value for name, value in os.environ.items() if name != _WITHOUT}
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment)
    took, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return took, after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def main() -> None:
    """Measure and print one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    rounds = parser.parse_args().rounds
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in COMMANDS}
    for number in range(rounds + 1):
        for name, command in COMMANDS.items():
            took = seconds(command)
            if number:  # the first one compiles
                times[name].append(took)
    found: dict[str, float] = {}
    for name, values in times.items():
        found[f"{name}_s"], found[f"{name}_cpu_s"] = (
            round(statistics.median(each), 3) for each in zip(*values, strict=True)
        )
    print(json.dumps({"benchmark": "startup", "rounds": rounds, **found}))


if __name__ == "__main__":
    main()
