"""A checkpoint as a store that is only read, wherever it lies."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from offsetkeeper.checkpoint.contents import read_checkpoint
from offsetkeeper.checkpoint.files import Files
from offsetkeeper.stores.checkpoint import CheckpointStore


@contextmanager
def as_store(files: Files) -> Iterator[CheckpointStore]:
    """Lend what a checkpoint has processed, as it is now: to be copied to a store, or compared with one.

    Raises:
        SettingsError: there is no checkpoint, or it may not be read.
        StoreUnavailable: it could not be read.
    """
    logs = read_checkpoint(files).logs
    with tempfile.TemporaryDirectory() as folder:
        for name, content in logs.items():
            path = Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        store = CheckpointStore(f"checkpoint://{quote(folder)}")
        store.address = files.address
        yield store
