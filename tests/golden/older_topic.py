"""What a program of an older release does with a `Topic`: it prints the mark that it finds, and writes the next batch.

Run with the package of that release in PYTHONPATH; brokers, topic and group are three lines of the input.
"""

from __future__ import annotations

import sys

import pyarrow as pa

from offsetkeeper.core.mark import OutputMark
from offsetkeeper.kafka.transactions import Saying
from offsetkeeper.sinks import MarkKey, Topic
from offsetkeeper.sinks.topic import task


def main() -> None:
    """Print the mark; then land a row with the mark of the next batch, as `Topic` does."""
    brokers, topic, group = sys.stdin.read().splitlines()
    slot = Topic(brokers, topic)._slot(MarkKey(group, ""))
    found = OutputMark.parse(slot.said() or "")
    after = OutputMark(found.sequence + 1, "older", "0" * 16)
    saying = Saying(str(found), after.sequence, str(after))
    task.land(slot, saying, topic, [pa.record_batch({"value": [b"older"]})])
    sys.stdout.write(str(found))


if __name__ == "__main__":
    main()
