"""Rows into a Cassandra table: upserts and deletes whose write time rises with each try of each batch.

Cassandra has no transaction over many rows. What it has is a write time with each value: of two writes the one with the
later time wins, in whichever order they come. So a write that comes late, by an older run, changes nothing that a newer
one has written. The mark (`marks`) is changed when all rows are there.
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
    """Upserts each batch into a Cassandra table: for each key the table has what the newest batch says of it.

    The frame's columns go into the columns of the same name; columns of the table that it lacks stay as they are. Their
    types are compared before anything is written, and a value is never rounded or cut. Of several rows with one key in
    a batch the last by topic, partition and offset is taken where the frame has these columns (they need not be in the
    table); where it has not, the batch is refused. The table must be there.

    Whoever reads while a batch is written sees a part of it, also after a crash, until the next run has written it
    again. Rows that are written again win over those of the try before, whatever the code makes of them now. A key that
    only a try or a batch has which came to nothing keeps its row.

    Executors write the rows, so they need `cassandra-driver`, and reach the nodes.

    Args:
        url: `cassandra://user:password@host:port,host:port/keyspace`. Behind it may be `?timeout=30` (seconds that one
            request may take), `consistency=local_quorum` (all runs of the group use nodes of one data centre; by
            default `quorum`), `ssl=true` or `ssl_ca=path`.
        name: of the table: `orders` in the URL's keyspace, or `shop.orders`. Upper and lower case count.
        key: names of all columns of its primary key.
        deletes: name of a boolean column of the frame: rows with true are deleted from the table, by their key.

    Raises:
        SettingsError: an argument is wrong.
    """

    worker_modules = ("cassandra", "numpy", "pyarrow")
    any_order = True

    def __init__(self, url: str, name: str, *, key: Sequence[str], deletes: str | None = None) -> None:
        self._place, keyspace = read_place(url)
        target = parse_target(name, "upsert", key)
        self._target = target._replace(schema=target.schema or keyspace)
        if not self._target.schema:
            raise SettingsError(f"{name!r} is in no keyspace: write 'keyspace.table', or the keyspace behind the hosts")
        if deletes is not None and (not isinstance(deletes, str) or deletes in ("", *self._target.key)):
            raise SettingsError(f"deletes={deletes!r}: give the name of a column that is not in the key")
        self._deletes = deletes

    def __repr__(self) -> str:
        return f"Cassandra({self._place.address!r}, {str(self._target)!r})"

    def prepare(self, store: Store, guarantee: Guarantee) -> Lander:  # noqa: ARG002 - the protocol's signature
        """Check the table, its key, the user's permissions, and that the mark can be kept.

        Raises:
            MissingExtra: cassandra-driver is not installed.
            Refused: one of them is not as it must be.
            SinkError: no node could be reached.
        """
        table = self._table()
        table.check()
        return Lander(table.stage, table.seen, table.land)

    def _table(self) -> CassandraTable:
        with needing_extra("cassandra", "cassandra,spark"):
            import_module("cassandra.cluster")
            module = import_module("offsetkeeper.sinks.cassandra.landing")
        session = module.Session(self._place)
        table: CassandraTable = module.CassandraTable(self._target, self._deletes, session)
        return table
