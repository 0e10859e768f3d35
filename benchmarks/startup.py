"""How long `import offsetkeeper` and `offsetkeeper --help` take, in new processes.

    python benchmarks/startup.py [--rounds 10]

Python alone takes turns with them: the rest is offsetkeeper's own.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

COMMANDS = {
    "python": [sys.executable, "-c", "pass"],
    "import": [sys.executable, "-c", "import offsetkeeper"],
    "help": [str(Path(sys.executable).with_name("offsetkeeper")), "--help"],
}


def seconds(command: list[str]) -> float:
    """Return how long a process took."""
    began = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def main() -> None:
    """Measure and print one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    rounds = parser.parse_args().rounds
    times: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(rounds):
        for name, command in COMMANDS.items():
            times[name].append(seconds(command))
    found = {f"{name}_s": round(statistics.median(values), 3) for name, values in times.items()}
    print(json.dumps({"benchmark": "startup", "rounds": rounds, **found, "limit_s": 0.3}))


if __name__ == "__main__":
    main()
