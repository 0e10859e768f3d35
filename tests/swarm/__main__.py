"""Draws histories and tries them: this is `make swarm`.

    python -m swarm --seed 7                 the history of this number, and nothing else
    python -m swarm --minutes 10 --seed 7    histories from that number on, for so long
    python -m swarm --histories 20           so many

A history that fails is printed with its acts, and the shortest one that fails in the same way. The exit code is 1 then.
With --json the last line is a document with all counts.
"""

# ruff: noqa: T201 - what it prints is its result

from __future__ import annotations

import argparse
import itertools
import json
import logging
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from fixtures import archives
from fixtures.spark import session
from offsetkeeper.testing.kafka import KafkaServer
from offsetkeeper.testing.mariadb import MariaDBServer
from offsetkeeper.testing.postgresql import PostgreSQLServer
from swarm.coverage import Coverage
from swarm.draw import FURTHER, OUTPUTS, SERVERS, STORES, draw
from swarm.trial import Machine, Result, shortened

COMPACTS_SOON = {"log.cleaner.backoff.ms": "100"}


def main(arguments: list[str]) -> int:
    """Run the command; return its exit code."""
    asked = _parser().parse_args(arguments)
    logging.disable(logging.CRITICAL)
    coverage, broken, began = Coverage(), list[Result](), time.monotonic()
    with machine({*asked.store, *(each.partition(" ")[0].lower() for each in asked.output)}) as here:
        for seed in itertools.count(asked.seed):
            history = draw(seed, (*OUTPUTS, *asked.output), (*STORES, *asked.store))
            result = here.tried(history)
            coverage.add(history, result.seen, result.verdict)
            if result.finding:
                kinds = [f"--output '{each}'" for each in asked.output] + [f"--store {each}" for each in asked.store]
                print(result, " ".join(["  again with --seed", str(seed), *kinds]), sep="\n")
                broken.append(result)
                if not asked.long:
                    print(f"the shortest one that was found:\n{shortened(result, here.tried)}")
            elif asked.verbose or not (asked.minutes or asked.histories):
                print(result)
            sys.stdout.flush()
            if time.monotonic() - began >= asked.minutes * 60 and coverage.histories >= asked.histories:
                break
    told: dict[str, Any] = {"seconds": round(time.monotonic() - began), "first seed": asked.seed, **coverage.as_dict()}
    told["findings"] = [{"seed": each.history.seed, **each.finding._asdict()} for each in broken if each.finding]
    print(json.dumps(told) if asked.json else _summary(told))
    return bool(broken)


@contextmanager
def machine(servers: Collection[str]) -> Iterator[Machine]:
    """Lend a broker, a session of Spark, and servers of databases."""
    archives.use()
    made: dict[str, Callable[[], str]] = {}
    with (
        ExitStack() as opened,
        tempfile.TemporaryDirectory(prefix="swarm-") as name,
        KafkaServer(settings=COMPACTS_SOON) as kafka,
        session(Path(name, "warehouse")) as spark,
    ):
        if "postgresql" in servers:
            made["postgresql"] = _databases(opened.enter_context(PostgreSQLServer(fsync=False)))
        if "mariadb" in servers:
            made["mariadb"] = _databases(opened.enter_context(MariaDBServer(fsync=False)))
        yield Machine(spark, kafka, Path(name), made)


def _databases(server: PostgreSQLServer | MariaDBServer) -> Callable[[], str]:
    return lambda: server.url(server.create_database())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="make swarm", description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--seed", type=int, default=1, help="the first history")
    parser.add_argument("--minutes", type=float, default=0, help="how long; by default, one history")
    parser.add_argument("--histories", type=int, default=0, help="how many, at least")
    parser.add_argument("--output", action="append", default=[], choices=FURTHER, help="a further kind of output")
    parser.add_argument("--store", action="append", default=[], choices=SERVERS, help="a further kind of store")
    parser.add_argument("--long", action="store_true", help="do not shorten what fails")
    parser.add_argument("--verbose", action="store_true", help="print each history")
    parser.add_argument("--json", action="store_true", help="print the counts as JSON")
    return parser


def _summary(told: dict[str, Any]) -> str:
    shown = (
        "histories",
        "seconds",
        "verdicts",
        "reached",
        "pairs",
        "never drawn",
        "never reached",
        "errors never seen",
    )
    return "\n".join(f"{name}: {told[name]}" for name in shown)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
