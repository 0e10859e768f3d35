"""MariaDB with a replica, asynchronous or semi-synchronous."""

from __future__ import annotations

import shutil
from typing import Any

import pymysql
from pymysql.cursors import DictCursor

from failover.pairs import LIMIT_S, Pair
from offsetkeeper.testing.mariadb import MariaDBServer
from offsetkeeper.testing.server import wait_until

_WAITS = {
    "rpl-semi-sync-master-enabled": "1",
    "rpl-semi-sync-master-timeout": "600000",  # else it goes on without the replica, after 10 s
    "rpl-semi-sync-master-wait-point": "AFTER_SYNC",
}


class _Copied(MariaDBServer):
    """A server whose data is a copy of that of a stopped one; see `PostgreSQLPair`."""

    def __init__(self, of: MariaDBServer, settings: dict[str, str]) -> None:
        super().__init__(
            settings={"log-bin": "log", "relay-log": "relay", "gtid-strict-mode": "1", **settings}, fsync=False
        )
        self._of = of

    def ask(self, statement: str) -> dict[str, Any]:
        """Return the first row, by the names of its columns; empty if there is none."""
        limits: dict[str, Any] = {"ssl_disabled": True, "autocommit": True, "cursorclass": DictCursor}
        with pymysql.connect(host="127.0.0.1", port=self.port, user="root", **limits) as connection:
            cursor = connection.cursor()
            cursor.execute(statement)
            return dict(cursor.fetchone() or {})

    def value(self, name: str) -> str:
        """Return a variable's value."""
        return str(self.ask(f"select @@global.{name} as found")["found"])

    def _prepare(self) -> None:
        self._dist = self._of._dist
        shutil.copytree(self._of.folder / "data", self.folder / "data")


class MariaDBPair(Pair):
    """See `Pair`.

    Args:
        of: a stopped server, whose data both begin with.
        synchronous: whether the primary waits until the replica has the change in its log.
    """

    primary: _Copied
    standby: _Copied

    def __init__(self, of: MariaDBServer, *, synchronous: bool) -> None:
        primary = _Copied(of, {"server-id": "1", **(_WAITS if synchronous else {})})
        waited = {"rpl-semi-sync-slave-enabled": "1"} if synchronous else {}
        standby = _Copied(of, {"server-id": "2", "slave-net-timeout": "600", **waited})
        super().__init__(primary, standby, synchronous=synchronous)

    def create(self) -> str:
        """See `Pair`."""
        name = self.primary.create_database()
        here = self.primary.value("gtid_binlog_pos")
        wait_until(lambda: self.standby.value("gtid_slave_pos") == here, "it is there too", LIMIT_S)
        return name

    def _follow(self) -> None:
        self.standby.start()
        source = f"master_host='127.0.0.1', master_port={self.link.port}, master_user='root', master_ssl=0"
        self.standby.ask(f"change master to {source}, master_use_gtid=slave_pos")
        self.standby.ask("start slave")
        self.standby.ask("set global read_only = 1")
        waits = "show global status like 'Rpl_semi_sync_master_clients'"

        def follows() -> bool:
            found = self.standby.ask("show slave status")
            running = found["Slave_IO_Running"] == found["Slave_SQL_Running"] == "Yes"
            return running and (not self.synchronous or self.primary.ask(waits)["Value"] == "1")

        wait_until(follows, "the replica follows", LIMIT_S)

    def _promote(self) -> None:
        """First the replica does all that is in its log: a primary that waits has waited for no more than that."""
        self.standby.ask("stop slave io_thread")
        log = self.standby.ask("show slave status")["Gtid_IO_Pos"]
        wait_until(lambda: self.standby.value("gtid_slave_pos") == log, "the replica has done all of its log", LIMIT_S)
        for statement in ("stop slave", "reset slave all", "set global read_only = 0"):
            self.standby.ask(statement)


def stopped() -> MariaDBServer:
    """Return a server that was started and stopped: what pairs begin with. Who asks closes it."""
    server = MariaDBServer(fsync=False).start()
    server.stop()
    return server
