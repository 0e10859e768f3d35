"""Kills pipelines, executors and servers on a cluster, and counts every record: this is `make chaos`.

    python -m kills --seed 7                 the life of this number, and nothing else
    python -m kills --minutes 60 --seed 7    lives from that number on, for so long

A life in which anything is wrong is printed, and its folder is kept. The exit code is 1 then. After a life that fails
itself, as when a server does not come back, none follows. With --json the last line is a document with all counts.
"""

# ruff: noqa: T201 - what it prints is its result

from __future__ import annotations

import argparse
import itertools
import json
import logging
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from kills.cluster import machine
from kills.draw import OUTPUTS, STORES, Drawn, draw
from kills.life import Life
from kills.table import Table


def main(arguments: list[str]) -> int:
    """Run the command; return its exit code."""
    asked = _parser().parse_args(arguments)
    logging.disable(logging.CRITICAL)
    table, began = Table(asked.seed), time.monotonic()
    chosen = {"outputs": asked.output or OUTPUTS, "stores": asked.store or STORES}
    folder = Path(tempfile.mkdtemp(prefix="kills-"))
    with machine(folder) as here:
        for seed in itertools.count(asked.seed):
            drawn = draw(seed, **chosen, programs=asked.programs, acts=asked.acts)
            life = Life(here, drawn, _teller(drawn, verbose=asked.verbose, began=began))
            outcome = life.play()
            table.add(drawn, outcome)
            if outcome.wrong:
                print(drawn, *outcome.notes, f"kept in {life.folder}", sep="\n  ")
            else:
                shutil.rmtree(life.folder, ignore_errors=True)
            sys.stdout.flush()
            if outcome.failed or time.monotonic() - began >= asked.minutes * 60:
                break
    told = table.as_dict(round(time.monotonic() - began))
    print(json.dumps(told) if asked.json else "\n".join(f"{name}: {value}" for name, value in told.items()))
    if not table.wrong:
        shutil.rmtree(folder, ignore_errors=True)
    return int(table.wrong)


def _teller(drawn: Drawn, *, verbose: bool, began: float) -> Callable[[str], object]:
    if verbose:
        print(drawn, flush=True)
    return lambda text: print(f"{time.monotonic() - began:7.1f} s: {text}", flush=True) if verbose else None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="make chaos", description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--seed", type=int, default=1, help="the first life")
    parser.add_argument("--minutes", type=float, default=0, help="how long; by default, one life")
    parser.add_argument("--programs", type=int, default=2, help="how many pipelines run at once")
    parser.add_argument("--acts", type=int, default=25, help="how many acts a life has")
    parser.add_argument("--output", action="append", default=[], choices=OUTPUTS, help="only such outputs")
    parser.add_argument("--store", action="append", default=[], choices=STORES, help="only such stores")
    parser.add_argument("--verbose", action="store_true", help="print each act")
    parser.add_argument("--json", action="store_true", help="print the counts as JSON")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
