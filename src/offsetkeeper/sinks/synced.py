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
