"""Sinks: where a batch's rows go, and which guarantee each can keep.

`Table` writes rows into a table of a database, `DeltaTable` into one of Delta Lake, `IcebergTable` into one of Iceberg,
`Cassandra` into one of Cassandra, `Files` into a folder, `Topic` into Kafka. `Transaction` runs your own SQL in the
transaction of the offsets. With `Idempotent` you declare that writing a batch twice leaves one copy. A plain function
is a `Function`, which cannot be exactly once. `Outputs` combines several sinks. Your own sink implements `Sink`: it is
a `Lander`, a `Writer` or a `Joiner` for a given store.
"""

from __future__ import annotations

from offsetkeeper.sinks.cassandra import Cassandra
from offsetkeeper.sinks.delta import DeltaTable
from offsetkeeper.sinks.files import Files
from offsetkeeper.sinks.functions import Function, Idempotent, Transaction
from offsetkeeper.sinks.iceberg import IcebergTable
from offsetkeeper.sinks.outputs import Outputs
from offsetkeeper.sinks.sink import Joiner, Lander, MarkKey, Seen, Sink, Writer
from offsetkeeper.sinks.table import Table
from offsetkeeper.sinks.topic import Topic

__all__ = [
    "Cassandra",
    "DeltaTable",
    "Files",
    "Function",
    "IcebergTable",
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
