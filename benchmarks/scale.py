"""What grows with the number of partitions of one group, and how fast: plan, load, commit, lag, history and page.

    python benchmarks/scale.py [--partitions 1000 5000 20000] [--rounds 5]

One real broker with topics of 1,000 partitions, and a ledger in SQLite. Each partition has three records; the group has
read one of each. `slope` is the milliseconds that each further thousand of partitions costs, from the smallest to the
largest number. The page is asked of `offsetkeeper serve`, a process of its own, once it has looked. The broker needs
three open files for each partition, and a byte of disk for each: take care of both.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

from lag import CALM, GROUP, LargeServer, fill
from monitor import Served, Site
from offsetkeeper import Pipeline
from offsetkeeper.core.ledger import Ledger
from offsetkeeper.core.model import OffsetRange, Position, TopicPartition
from offsetkeeper.stores import open_store
from offsetkeeper.testing.kafka import KafkaServer

_EACH = 1_000  # partitions of a topic
_SHOWN = 20  # entries of the history, as `offsetkeeper history` shows


def partitions(count: int) -> list[TopicPartition]:
    """Return so many partitions, of topics with 1,000 each at most."""
    return [TopicPartition(f"scale-{count}-{number // _EACH}", number % _EACH) for number in range(count)]


def median_ms(act: Callable[[], object], rounds: int) -> float:
    """Return how long a call takes, after one that does not count."""
    took = []
    for _ in range(rounds + 1):
        began = time.perf_counter()
        act()
        took.append((time.perf_counter() - began) * 1000)
    return round(statistics.median(took[1:]), 1)


def measure(server: KafkaServer, folder: str, count: int, rounds: int) -> dict[str, float]:
    """Return the milliseconds of each call for a group of so many partitions."""
    chosen = partitions(count)
    fill(server, chosen)
    url = f"sqlite:///{folder}/{count}.db"
    store = open_store(url)
    ledger = Ledger(store, GROUP)
    ledger.acquire()
    ledger.place({tp: Position(1) for tp in chosen})
    names = sorted({tp.topic for tp in chosen})
    pipeline = Pipeline(group=GROUP, topics=names, store=url, brokers=server.bootstrap)

    def commit() -> None:
        at = ledger.snapshot.positions
        batch = ledger.batch([OffsetRange(*tp, at[tp].offset, at[tp].offset + 1) for tp in chosen])
        ledger.begin(batch)
        ledger.commit(batch)

    found = {
        "plan": median_ms(pipeline.plan, rounds),
        "lag": median_ms(pipeline.lag, rounds),
        "load": median_ms(lambda: store.load(GROUP), rounds),
        "begin and commit": median_ms(commit, rounds),
        "history": median_ms(lambda: store.history(GROUP, _SHOWN), rounds),
    }
    ledger.release()
    served = Served(Site(server, url, 1, count), 2.0, "")
    try:
        for name, path in (("page", f"/groups/{GROUP}"), ("page of groups", "/"), ("metrics", "/metrics")):
            took = [served.ask(path) for _ in range(rounds + 1)][1:]
            found[name] = round(statistics.median(ms for ms, _ in took), 1)
            found[f"{name}, MB"] = round(took[-1][1] / 1e6, 2)
    finally:
        served.close()
    print(json.dumps({str(count): found}), file=sys.stderr)
    return found


def slopes(found: dict[int, dict[str, float]]) -> dict[str, float]:
    """Return what each further thousand of partitions costs."""
    least, most = min(found), max(found)
    between = (most - least) / 1000 or 1
    return {name: round((found[most][name] - found[least][name]) / between, 2) for name in found[least]}


def main() -> None:
    """Measure and print one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--partitions", type=int, nargs="+", default=[1_000, 5_000, 20_000])
    parser.add_argument("--rounds", type=int, default=5)
    chosen = parser.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    found: dict[int, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for count in sorted(chosen.partitions):
            with LargeServer(settings=CALM) as server:  # one of its own, as those before would cost it something
                found[count] = measure(server, folder, count, chosen.rounds)
    shown: dict[str, Any] = {str(count): each for count, each in found.items()}
    print(json.dumps({"benchmark": "scale", "load": os.getloadavg()[1], "ms": shown, "slope": slopes(found)}))


if __name__ == "__main__":
    main()
