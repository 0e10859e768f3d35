"""Whether anything grows with the age of a group: thousands of commits, the last against the first, and bytes on disk.

    python benchmarks/age.py [--commits 10000] [STORE…]

The history is kept at its usual 1,000 entries, so what is compared begins once it is full. Sizes are told where the
store is files of this machine, or tells them.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable
from typing import Any

from commit import committer, milliseconds, partitions
from places import PLACES

_FULL = 1_000
_SAMPLE = 200


def measure(name: str, open_place: Callable[[], Any], commits: int) -> dict[str, float]:
    """Return the median milliseconds of the first and the last commits and loads, and the sizes then."""
    parts = partitions(10)
    with open_place() as place:
        ledger, commit = committer(place.url, parts)
        times, sizes, loads = [], [], []
        for number in range(1, commits + 1):
            times.append(milliseconds(commit, parts, number))
            if number in (_FULL + _SAMPLE, commits):
                loads.append(statistics.median(milliseconds(ledger.load) for _ in range(20)))
                sizes.append(place.size())
                print(f"{name}: {number} commits", file=sys.stderr)
        ledger.store.close()
    first, last = statistics.median(times[_FULL : _FULL + _SAMPLE]), statistics.median(times[-_SAMPLE:])
    found = {"first_ms": first, "last_ms": last, "ratio": last / first, "load_ratio": loads[-1] / loads[0]}
    if sizes[0]:
        found |= {"bytes": sizes[-1], "bytes_ratio": sizes[-1] / sizes[0]}
    return {"commits": commits, **{key: round(value, 2) for key, value in found.items()}}


def main() -> None:
    """Measure the stores asked for and print one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("stores", nargs="*", help=f"some of {', '.join(PLACES)}; all by default")
    parser.add_argument("--commits", type=int, default=10_000)
    arguments = parser.parse_args()
    wanted = arguments.stores or list(PLACES)
    stores = {name: measure(name, PLACES[name], arguments.commits) for name in wanted}
    print(json.dumps({"benchmark": "age", "stores": stores}))


if __name__ == "__main__":
    main()
