"""Waits for the disk. Executors get the code of this module together with the job."""

from __future__ import annotations

import os
from collections.abc import Iterable


def sync(paths: Iterable[str]) -> None:
    """Wait until these files, and their entries in their folders, are on the disk."""
    files = list(paths)
    for path in dict.fromkeys([*files, *map(os.path.dirname, files)]):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def with_folders(paths: Iterable[str], root: str) -> list[str]:
    """Return the paths and their folders below a table's one, as partitions have folders that may be new."""
    found = dict.fromkeys(paths)
    for path in [*found]:
        folder = os.path.dirname(path)  # noqa: PTH120 - as text
        while len(folder) > len(root) > 0:
            found[folder] = None
            folder = os.path.dirname(folder)  # noqa: PTH120 - as text
    return [*found]
