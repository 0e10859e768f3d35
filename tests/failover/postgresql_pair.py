"""PostgreSQL with a standby that repeats its log, by streaming."""

from __future__ import annotations

import shutil
from typing import Any

import psycopg

from failover.pairs import LIMIT_S, Pair
from offsetkeeper.testing.postgresql import PostgreSQLServer
from offsetkeeper.testing.server import wait_until

_QUICK = {"wal_receiver_status_interval": "1", "wal_retrieve_retry_interval": "100"}


class _Copied(PostgreSQLServer):
    """A server whose data is a copy of that of a stopped one.

    Args:
        of: the stopped server, which is kept while this one runs.
        settings: see `PostgreSQLServer`; a standby has `primary_conninfo`.
    """

    def __init__(self, of: PostgreSQLServer, settings: dict[str, str]) -> None:
        super().__init__(settings=settings, fsync=False)
        self._of = of

    def ask(self, statement: str) -> Any:
        """Return the first value of the first row."""
        with psycopg.connect(self.url(), autocommit=True) as connection:
            return (connection.execute(statement.encode()).fetchone() or (None,))[0]

    def _prepare(self) -> None:
        (self.folder / "dist").symlink_to(self._of.folder / "dist")
        data = self.folder / "data"
        shutil.copytree(self._of.folder / "data", data)
        if "primary_conninfo" in self._settings:
            (data / "standby.signal").touch()
        if self._user:
            for each in (self.folder, data, *data.rglob("*")):
                shutil.chown(each, self._user, self._user)

    def _serves(self) -> bool:
        try:
            return bool(self.ask("select 1"))
        except psycopg.OperationalError:
            return False


class PostgreSQLPair(Pair):
    """See `Pair`. Asynchronous as it comes; synchronous by `synchronous_standby_names`.

    Args:
        of: a stopped server, whose data both begin with.
        synchronous: see `Pair`.
    """

    primary: _Copied
    standby: _Copied

    def __init__(self, of: PostgreSQLServer, *, synchronous: bool) -> None:
        primary = _Copied(of, {"synchronous_standby_names": "*"} if synchronous else {})
        super().__init__(primary, _Copied(of, {}), synchronous=synchronous)

    def create(self) -> str:
        """See `Pair`."""
        name = self.primary.create_database()
        here = self.primary.ask("select pg_current_wal_lsn()")
        wait_until(lambda: self.standby.ask(f"select pg_last_wal_replay_lsn() >= '{here}'"), "it is there too", LIMIT_S)
        return name

    def _follow(self) -> None:
        source = f"host=127.0.0.1 port={self.link.port} user=postgres"
        self.standby._settings |= {**_QUICK, "primary_conninfo": source}
        self.standby.start()
        state = "sync" if self.synchronous else "async"
        following = f"select count(*) from pg_stat_replication where state = 'streaming' and sync_state = '{state}'"  # noqa: S608 - a word
        wait_until(lambda: self.primary.ask(following) == 1, "the standby follows", LIMIT_S)

    def _promote(self) -> None:
        assert self.standby.ask("select pg_promote(true, 60)") is True


def stopped() -> PostgreSQLServer:
    """Return a server that was started and stopped: what pairs begin with. Who asks closes it."""
    server = PostgreSQLServer(fsync=False).start()
    server.stop()
    return server
