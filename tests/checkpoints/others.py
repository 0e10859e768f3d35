"""Checkpoints that other releases of Spark wrote, and queries of those releases on them."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from checkpoints.queries import Batches, produce
from offsetkeeper.testing.kafka import KafkaServer
from sparks import releases

CORE = ("plain", "counting", "rocks")
NEW = ("ids_unused", "offsets_v2", "named", "sink", "sink_rocks", "realtime", "realtime_rocks")  # since 4.2 or 4.3
SHAPES = ("windowed", "distinct", "changelog", "join", "union", "thrice")
KINDS = {"4.0.1": CORE, "4.1.3": CORE, "4.3.0": (*CORE, *NEW, *SHAPES)}  # by the release that wrote them
WRITTEN = Path(__file__).with_name("written_by")
TOPIC, OTHER = "orders", "payments"


def line_of(version: str) -> str:
    """Return the release line, which is how `make sparks` names it: 4.0 of 4.0.1."""
    return ".".join(version.split(".")[:2])


def run(version: str, kind: str, checkpoint: Path, brokers: str) -> Batches:
    """Run a query until all is read, by a Spark of this release line; return what `Queries.run` does."""
    line = line_of(version)
    lines = releases.run(line, WRITTEN / "query.py", kind, str(checkpoint), brokers, TOPIC, OTHER, releases.jars(line))
    batches = json.loads(lines[-1])
    return {int(number): [tuple(row) for row in rows] for number, rows in batches.items()}


@contextmanager
def broker_of_both() -> Iterator[KafkaServer]:
    """Run a broker that has what the queries have read: of each partition six records, and three of the other topic."""
    with KafkaServer() as server:
        for topic, count in ((TOPIC, 6), (OTHER, 3)):
            server.create_topic(topic, 2)
            produce(server, topic, count)
        yield server


def main() -> None:
    """Write the checkpoints of `written_by` anew: all, or those of the versions that are named."""
    with broker_of_both() as server:
        for version in sys.argv[1:] or KINDS:
            for kind in KINDS[version]:
                path = WRITTEN / version / kind
                shutil.rmtree(path, ignore_errors=True)
                sys.stdout.write(f"{version} {kind} {run(version, kind, path, server.bootstrap)}\n")


if __name__ == "__main__":
    main()
