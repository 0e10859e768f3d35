"""Checkpoints that older releases of Spark wrote, and queries of those releases on them."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

from checkpoints.queries import Batches, produce
from offsetkeeper.testing.kafka import KafkaServer
from sparks import releases

VERSIONS = ("4.0.1", "4.1.3")  # that wrote them
KINDS = ("plain", "counting", "rocks")
WRITTEN = Path(__file__).with_name("written_by")
TOPIC = "orders"


def line_of(version: str) -> str:
    """Return the release line, which is how `make sparks` names it: 4.0 of 4.0.1."""
    return ".".join(version.split(".")[:2])


def run(version: str, kind: str, checkpoint: Path, brokers: str) -> Batches:
    """Run a query until all is read, by a Spark of this release line; return what `Queries.run` does."""
    line = line_of(version)
    lines = releases.run(line, WRITTEN / "query.py", kind, str(checkpoint), brokers, TOPIC, releases.jars(line))
    batches = json.loads(lines[-1])
    return {int(number): [tuple(row) for row in rows] for number, rows in batches.items()}


def main() -> None:
    """Write the checkpoints of `written_by` anew."""
    with KafkaServer() as server:
        server.create_topic(TOPIC, 2)
        produce(server, TOPIC, 6)
        for version in VERSIONS:
            for kind in KINDS:
                path = WRITTEN / version / kind
                shutil.rmtree(path, ignore_errors=True)
                sys.stdout.write(f"{version} {kind} {run(version, kind, path, server.bootstrap)}\n")


if __name__ == "__main__":
    main()
