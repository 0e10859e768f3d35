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
GROUPS = (("4.0.1", CORE), ("4.1.3", CORE), ("4.3.0", CORE), ("4.3.0", NEW), ("4.3.0", SHAPES))
KINDS: dict[str, tuple[str, ...]] = {}  # by the release that wrote them
for _version, _kinds in GROUPS:
    KINDS[_version] = (*KINDS.get(_version, ()), *_kinds)
WRITTEN = Path(__file__).with_name("written_by")
TOPIC, OTHER = "orders", "payments"


def line_of(version: str) -> str:
    """Return the release line, which is how `make sparks` names it: 4.0 of 4.0.1."""
    return ".".join(version.split(".")[:2])


def run(version: str, brokers: str, *queries: tuple[str, Path]) -> list[Batches]:
    """Run queries, each a kind and its checkpoint, by a Spark of this release line; return what `Queries.run` does."""
    line, asked = line_of(version), [f"{kind}={checkpoint}" for kind, checkpoint in queries]
    lines = releases.run(line, WRITTEN / "query.py", brokers, TOPIC, OTHER, releases.jars(line), *asked)
    return [{int(n): [tuple(row) for row in rows] for n, rows in each.items()} for each in json.loads(lines[-1])]


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
            queries = [(kind, WRITTEN / version / kind) for kind in KINDS[version]]
            for _, path in queries:
                shutil.rmtree(path, ignore_errors=True)
            for (kind, _), found in zip(queries, run(version, server.bootstrap, *queries), strict=True):
                sys.stdout.write(f"{version} {kind} {found}\n")


if __name__ == "__main__":
    main()
