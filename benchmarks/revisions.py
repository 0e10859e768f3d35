"""How long this revision takes to read ranges under Spark, beside another one whose tree has its own `.venv`.

Both read the same ranges of one broker, in turns, each in a session of its own with two cores: a machine that is slower
for a while is slower for both. The first turn warms up and does not count. Figures are those of `reading.py`.

    make bench NAME=revisions ARGS="../other-tree --shapes 8x1000 8x100000"
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import warnings
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any, NamedTuple, Self, cast

from offsetkeeper.testing.kafka import KafkaServer
from reading import PACKED, open_session, readers_of, taken
from shapes import BULK, LARGE, SHAPES, SKEWED, SMALL, WIDE
from tasks import say

QUICK = (SMALL, WIDE, BULK, LARGE, SKEWED)
"""Shapes that are read if none is named."""


class Turn(NamedTuple):
    """What one reading took, in seconds."""

    wall: float
    cpu: float


class Revision:
    """A session of one tree, which reads when it is told to.

    Args:
        tree: of the revision; its `.venv` runs the session.
        brokers: bootstrap servers of the topics.
    """

    def __init__(self, tree: Path, brokers: str) -> None:
        """Start its process."""
        command = [str(tree / ".venv/bin/python"), __file__, "--session", brokers]
        environment = os.environ | {"PYTHONPATH": str(tree / "benchmarks")}
        self._process = subprocess.Popen(
            command, cwd=tree, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """End its process."""
        cast("IO[str]", self._process.stdin).close()
        self._process.wait(60)

    def read(self, reader: str, shape: str) -> Turn:
        """Read a shape once, and return what it took."""
        asked, told = cast("IO[str]", self._process.stdin), cast("IO[str]", self._process.stdout)
        asked.write(json.dumps([reader, shape]) + "\n")
        asked.flush()
        for line in told:
            if line.startswith("took "):
                return Turn(*json.loads(line.removeprefix("took ")))
        msg = "the session of a revision has ended: its error is above"
        raise RuntimeError(msg)


def session(brokers: str) -> None:
    """Read what each line of the input names, and print what it took."""
    warnings.simplefilter("ignore", FutureWarning)
    spark = open_session()
    readers, shapes = readers_of(spark, brokers), {shape.name: shape for shape in SHAPES}
    for line in sys.stdin:
        reader, shape = json.loads(line)
        found = taken(spark, readers[reader], shapes[shape].ranges(), 600)
        print("took " + json.dumps(found), flush=True)
    spark.stop()


def compare(revisions: dict[str, Revision], reader: str, shape: str, rounds: int) -> dict[str, Any]:
    """Return the medians of both, and the ratios of this one to the other."""
    turns: dict[str, list[Turn]] = {name: [] for name in revisions}
    for number in range(rounds + 1):
        for name in sorted(revisions, reverse=bool(number % 2)):
            turns[name].append(revisions[name].read(reader, shape))
            say(f"{shape}, {reader}, turn {number} of {rounds}: {name} {turns[name][-1]}")
    medians = {
        name: Turn(*(statistics.median(each) for each in zip(*some[1:], strict=True))) for name, some in turns.items()
    }
    this, other = medians["this"], medians["other"]
    ratio = {"wall": round(this.wall / other.wall, 2), "cpu": round(this.cpu / other.cpu, 2)}
    return {"ratio": ratio, **{name: found._asdict() for name, found in medians.items()}}


def main() -> None:
    """Measure, and print one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("other", type=Path, nargs="?", help="tree of the other revision, with its own .venv")
    parser.add_argument("--rounds", type=int, default=7, help="turns that count")
    parser.add_argument("--shapes", nargs="*", default=[shape.name for shape in QUICK], help="only these")
    parser.add_argument("--session", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.session:
        session(chosen.session)
        return
    with KafkaServer(settings={"socket.request.max.bytes": str(2**28)}) as server, ExitStack() as stack:
        for shape in SHAPES:
            if shape.name in chosen.shapes:
                say(f"writing {shape.name}")
                shape.fill(server)
        trees = {"this": Path(__file__).parents[1], "other": chosen.other.resolve()}
        revisions = {name: stack.enter_context(Revision(tree, server.bootstrap)) for name, tree in trees.items()}
        found = {f"{r}, {s}": compare(revisions, r, s, chosen.rounds) for s in chosen.shapes for r in PACKED}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
