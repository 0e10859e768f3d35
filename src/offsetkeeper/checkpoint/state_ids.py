"""The ids of state versions: each commit has the ids that the next batch starts from."""

from __future__ import annotations

import re

from offsetkeeper.checkpoint.contents import Checkpoint

_FILE = re.compile(r"(state/\d{1,9}/\d{1,9})/(?:[^/]+/)?(\d{1,19})_([^/.]+)\.(?:delta|snapshot|changelog|zip)")


def lost_ids(found: Checkpoint, batch: int) -> list[str]:
    """Return the state partitions whose version in the commit of a batch is missing, sorted.

    Raises:
        CorruptStore: the commit is damaged.
    """
    named = found.commit(batch).get("stateUniqueIds") if f"commits/{batch}" in found.logs else None
    there = (_FILE.fullmatch(name) for name in found.state if name not in found.empty)
    have = {(match[1], int(match[2]), match[3]) for match in there if match}
    lost = set()
    for operator, partitions in named.items() if isinstance(named, dict) else ():
        for partition, ids in enumerate(partitions if isinstance(partitions, list) else ()):
            place = f"state/{operator}/{partition}"
            names = [each for each in ids if isinstance(each, str)] if isinstance(ids, list) else []
            if any((place, batch + 1, each) not in have for each in names):
                lost.add(place)
    return sorted(lost)
