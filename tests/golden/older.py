"""What a program of an older release does in a store: it prints the ledger, finishes the pending batch, and goes on.

Run with the package of that release in PYTHONPATH; the URL of the store and the group are two lines of the input.
"""

from __future__ import annotations

import json
import sys

from offsetkeeper.core.ledger import Ledger
from offsetkeeper.core.model import OffsetRange  # type: ignore[attr-defined]  # where release 0.2 has it
from offsetkeeper.operate.json_view import entry_fields, ledger_fields  # type: ignore[attr-defined]
from offsetkeeper.stores import open_store


def main() -> None:
    """Print the ledger and the events of its history as one line of JSON; then commit two batches."""
    url, group = sys.stdin.read().splitlines()
    ledger = Ledger(open_store(url), group, name="older release")
    found = ledger.load()
    history = [entry_fields(entry) for entry in ledger.history(100)]
    ledger.acquire("older")
    assert ledger.snapshot.pending is not None
    ledger.commit(ledger.snapshot.pending)
    tp, at = min(ledger.snapshot.positions.items())
    ledger.begin(ledger.batch([OffsetRange(*tp, at.offset, at.offset + 3)]), ["table"])
    ledger.commit(ledger.batch([OffsetRange(*tp, at.offset, at.offset + 3)]))
    ledger.release("older")
    sys.stdout.write(json.dumps({"ledger": ledger_fields(found, {}), "history": history}))


if __name__ == "__main__":
    main()
