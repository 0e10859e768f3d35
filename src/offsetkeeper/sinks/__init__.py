"""Sinks: where a batch's rows go, and which guarantee each can keep.

`Table` writes rows into a table of a database, `DeltaTable` into one of Delta Lake, `Cassandra` into one of Cassandra,
`Files` into a folder, `Topic` into Kafka. `Transaction` runs SQL of your own with the offsets, `Idempotent` takes your
word that writing twice leaves one copy, and a plain function is a `Function`, which cannot be exactly once. `Outputs`
is several. A sink of your own is a `Sink`, which is a `Lander`, a `Writer` or a `Joiner` beside a store.
"""

from __future__ import annotations

from offsetkeeper.sinks.cassandra import Cassandra
from offsetkeeper.sinks.delta import DeltaTable
from offsetkeeper.sinks.files import Files
from offsetkeeper.sinks.functions import Function, Idempotent, Transaction
from offsetkeeper.sinks.outputs import Outputs
from offsetkeeper.sinks.sink import Joiner, Lander, MarkKey, Seen, Sink, Writer
from offsetkeeper.sinks.table import Table
from offsetkeeper.sinks.topic import Topic

__all__ = [
    "Cassandra",
    "DeltaTable",
    "Files",
    "Function",
    "Idempotent",
    "Joiner",
    "Lander",
    "MarkKey",
    "Outputs",
    "Seen",
    "Sink",
    "Table",
    "Topic",
    "Transaction",
    "Writer",
]
