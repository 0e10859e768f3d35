"""The outputs of the demo. Each kind creates its location, opens its sink, and reads the result with its own client."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from offsetkeeper.demo import orders, poison
from offsetkeeper.demo.orders import Order
from offsetkeeper.demo.poison import Letter
from offsetkeeper.operate.holds import held_in, held_in_topic
from offsetkeeper.sinks.sink import MarkKey

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from offsetkeeper.core.batch import Batch
    from offsetkeeper.sinks import Sink
    from offsetkeeper.sinks.held import Held

_TOPIC = "orders.out"
_CATALOG, _NAMESPACE = "lake", "shop"
_PARTITIONS = 3


class Output(NamedTuple):
    """A kind of output.

    Attributes:
        place: returns the location, from the store's URL, the brokers and a folder.
        make: creates the output there.
        open: returns the sink for it.
        process: turns the records of a batch into its frame.
        read: returns the orders in it.
        held: returns the batches of which its metadata tell; None if they tell of none.
    """

    place: Callable[[str, str, str], str]
    make: Callable[[str], object]
    open: Callable[[str], Sink]
    process: Callable[[DataFrame, Batch], DataFrame]
    read: Callable[[str], Iterable[Order]]
    held: Callable[[str], Held] | None = None


def _make_table(url: str) -> None:
    with closing(_connect(url)) as connection:
        connection.execute(orders.CREATE)
        connection.commit()


def _open_table(url: str) -> Sink:
    from offsetkeeper.sinks import Table  # noqa: PLC0415 - a driver loads only what it needs

    return Table(url, orders.TABLE)


def _read_table(url: str) -> list[Order]:
    with closing(_connect(url)) as connection:
        return [Order(*row) for row in connection.execute(orders.SELECT)]


def make_letters(url: str) -> None:
    """Create the table of dead letters in the store's database."""
    kinds = poison.SQLITE if url.startswith("sqlite:") else poison.POSTGRESQL
    with closing(_connect(url)) as connection:
        connection.execute(poison.CREATE.format_map(kinds))
        connection.commit()


def read_letters(url: str) -> list[Letter]:
    """Return all dead letters."""
    with closing(_connect(url)) as connection:
        rows = connection.execute(poison.SELECT).fetchall()
    return [Letter(topic, part, offset, bytes(key), bytes(value)) for topic, part, offset, key, value in rows]


def _connect(url: str) -> Any:
    if url.startswith("sqlite:"):
        return sqlite3.connect(url.removeprefix("sqlite:///"))
    import psycopg  # noqa: PLC0415 - only this store needs it

    return psycopg.connect(url)


def _make_topic(brokers: str) -> None:
    from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]  # noqa: PLC0415 - as above

    admin = AdminClient({"bootstrap.servers": brokers})
    admin.create_topics([NewTopic(_TOPIC, _PARTITIONS)])[_TOPIC].result(60)


def _open_topic(brokers: str) -> Sink:
    from offsetkeeper.sinks import Topic  # noqa: PLC0415 - as above

    return Topic(brokers, _TOPIC)


def _as_values(frame: DataFrame, batch: Batch) -> DataFrame:
    names = ", ".join(Order._fields)
    return orders.checked(frame, batch).selectExpr("cast(id as string) as key", f"to_json(struct({names})) as value")


def _read_topic(brokers: str) -> Iterable[Order]:
    """Read all partitions to their ends, with a consumer that sees only committed records."""
    from confluent_kafka import Consumer, TopicPartition  # noqa: PLC0415 - as above

    consumer = Consumer({"bootstrap.servers": brokers, "group.id": "count", "enable.partition.eof": True})
    parts = [TopicPartition(_TOPIC, number, 0) for number in range(_PARTITIONS)]
    consumer.assign(parts)
    left = {part.partition for part in parts}
    while left:
        message = consumer.poll(60)
        if message is None:
            raise TimeoutError(f"topic {_TOPIC} could not be read to its end")
        if message.error() is not None:
            left.discard(message.partition())
        else:
            yield Order(**json.loads(message.value() or b""))
    consumer.close()


def _open_files(folder: str) -> Sink:
    from offsetkeeper.sinks import Files  # noqa: PLC0415 - as above

    return Files(folder)


def _read_files(folder: str) -> Iterable[Order]:
    from pyarrow import dataset  # noqa: PLC0415 - as above

    found = dataset.dataset(folder, format="parquet", partitioning="hive")
    return [Order(**row) for row in found.to_table(columns=list(Order._fields)).to_pylist()]


def _make_delta(folder: str) -> None:
    import pyarrow as pa  # noqa: PLC0415 - as above
    from deltalake import DeltaTable  # noqa: PLC0415 - as above

    kinds = (pa.string(), pa.int32(), pa.int64(), pa.int64(), pa.int64(), pa.string())
    DeltaTable.create(folder, pa.schema(list(zip(Order._fields, kinds, strict=True))))


def _open_delta(folder: str) -> Sink:
    from offsetkeeper.sinks import DeltaTable  # noqa: PLC0415 - as above

    return DeltaTable(folder)


def _read_delta(folder: str) -> Iterable[Order]:
    from deltalake import DeltaTable  # noqa: PLC0415 - as above

    return [Order(**row) for row in DeltaTable(folder).to_pyarrow_table(columns=list(Order._fields)).to_pylist()]


def _lake(folder: str) -> dict[str, str]:
    """Return the properties of a catalog of Iceberg in a folder."""
    return {"uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/warehouse"}


def _make_iceberg(folder: str) -> None:
    import pyarrow as pa  # noqa: PLC0415 - as above
    from pyiceberg.catalog.sql import SqlCatalog  # noqa: PLC0415 - as above

    Path(folder).mkdir()
    kinds = (pa.string(), pa.int32(), pa.int64(), pa.int64(), pa.int64(), pa.string())
    with SqlCatalog(_CATALOG, **_lake(folder)) as catalog:
        catalog.create_namespace(_NAMESPACE)
        catalog.create_table((_NAMESPACE, orders.TABLE), pa.schema(list(zip(Order._fields, kinds, strict=True))))


def _open_iceberg(folder: str) -> Sink:
    from offsetkeeper.sinks import IcebergTable  # noqa: PLC0415 - as above

    return IcebergTable(f"{_NAMESPACE}.{orders.TABLE}", catalog=_CATALOG, properties=_lake(folder))


def _read_iceberg(folder: str) -> Iterable[Order]:
    from pyiceberg.catalog.sql import SqlCatalog  # noqa: PLC0415 - as above

    with SqlCatalog(_CATALOG, **_lake(folder)) as catalog:
        found = catalog.load_table((_NAMESPACE, orders.TABLE)).scan(selected_fields=Order._fields).to_arrow()
    return [Order(**row) for row in found.to_pylist()]


OUTPUTS: Mapping[str, Output] = MappingProxyType(
    {
        "table": Output(lambda store, _brokers, _folder: store, _make_table, _open_table, orders.parse, _read_table),
        "topic": Output(
            *(lambda _store, brokers, _folder: brokers, _make_topic, _open_topic, _as_values, _read_topic),
            held=lambda brokers: held_in_topic(_TOPIC, MarkKey("demo", ""), brokers),
        ),
        "files": Output(
            lambda _store, _brokers, folder: folder, lambda _: None, _open_files, orders.checked, _read_files, held_in
        ),
        "delta": Output(
            lambda _store, _brokers, folder: folder, _make_delta, _open_delta, orders.checked, _read_delta, held_in
        ),
        "iceberg": Output(
            *(lambda _store, _brokers, folder: folder, _make_iceberg, _open_iceberg, orders.checked, _read_iceberg),
            held=lambda folder: held_in(f"{_NAMESPACE}.{orders.TABLE}", _CATALOG, _lake(folder)),
        ),
    }
)
"""By name. In a table of the store's own database rows and offsets are one transaction; the others keep a mark."""
