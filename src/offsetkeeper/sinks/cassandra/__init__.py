"""Rows into a Cassandra table: upserts and deletes with write times that rise with each try of each batch.

Cassandra has no transaction over many rows. But each value has a write time: of two writes, the one with the later time
wins, in whichever order they arrive. So a late write of an older run changes nothing that a newer run has written. The
mark (`marks`) is changed when all rows are written.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING

from offsetkeeper.core.model import Guarantee
from offsetkeeper.core.store import Store, needing_extra
from offsetkeeper.errors import SettingsError
from offsetkeeper.sinks.cassandra.url import read_place
from offsetkeeper.sinks.sink import Lander
from offsetkeeper.sinks.table import parse_target

if TYPE_CHECKING:
    from offsetkeeper.sinks.cassandra.landing import CassandraTable


class Cassandra:
    """Upserts each batch into a Cassandra table: for each key, the table has the values of the newest batch.

    The frame's columns go into the columns with the same name; other columns of the table do not change. Types are
    compared before anything is written, and a value is never rounded or cut. If several rows of a batch have the same
    key, the last one by topic, partition and offset is used; if the frame lacks these columns, the batch is refused
    (the table need not have them). The table must exist.

    A reader sees a part of a batch while it is written, and after a crash until the next run has written it again. The
    rows of a new try replace those of the try before, even if the code has changed. Spark may compute a part of a batch
    twice, with other values if a function gives other values then: each key's row is whole, and of one attempt. A key
    that only a failed try or a dropped batch has keeps its row.

    Executors write the rows, so they need `cassandra-driver` and a connection to the nodes.

    Args:
        url: `cassandra://user:password@host:port,host:port/keyspace`. Options are `?timeout=30` (seconds that one
            request may take), `consistency=local_quorum` (if all runs of the group use nodes of one data centre; the
            default is `quorum`), `ssl=true` and `ssl_ca=path`.
        name: name of the table: `orders` in the URL's keyspace, or `shop.orders`. It is case-sensitive.
        key: names of all columns of the primary key.
        deletes: name of a boolean column of the frame: rows with true are deleted from the table, by their key.

    Raises:
        SettingsError: an argument is wrong.
    """

    worker_modules = ("cassandra", "numpy", "pyarrow")
    any_order = True
    mode = "upsert"

    def __init__(self, url: str, name: str, *, key: Sequence[str], deletes: str | None = None) -> None:
        self._place, keyspace = read_place(url)
        target = parse_target(name, "upsert", key)
        self._target = target._replace(schema=target.schema or keyspace)
        if not self._target.schema:
            raise SettingsError(
                f"{name!r} has no keyspace: write 'keyspace.table', or add the keyspace after the hosts"
            )
        if deletes is not None and (not isinstance(deletes, str) or deletes in ("", *self._target.key)):
            raise SettingsError(f"deletes={deletes!r}: give the name of a column that is not in the key")
        self._deletes = deletes

    @property
    def writes_to(self) -> str:
        """The name of its target."""
        return str(self._target)

    @property
    def place(self) -> str:
        """Where it is; see `Sink`."""
        return f"{self._place.address} {self._target}"

    def __repr__(self) -> str:
        return f"Cassandra({self._place.address!r}, {str(self._target)!r})"

    def prepare(self, store: Store, guarantee: Guarantee) -> Lander:  # noqa: ARG002 - the protocol's signature
        """Check the table, its key, the user's permissions, and that the mark can be kept.

        Raises:
            MissingExtra: cassandra-driver is not installed.
            Refused: one of them is wrong; the message says how to correct it.
            SinkError: no node could be reached.
        """
        table = self._table()
        table.check()
        return Lander(
            table.stage, table.seen, table.land, rehearse=table.rehearse, late=True, writes_to=self._target.table
        )

    def _table(self) -> CassandraTable:
        with needing_extra("cassandra:// needs the library", "cassandra,spark"):
            import_module("cassandra.cluster")
            module = import_module("offsetkeeper.sinks.cassandra.landing")
        session = module.Session(self._place)
        table: CassandraTable = module.CassandraTable(self._target, self._deletes, session)
        return table
