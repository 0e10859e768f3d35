"""A real PostgreSQL server from zonky's build, which needs no installation."""

import contextlib
import io
import os
import secrets
import shutil
import signal
import tarfile
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from offsetkeeper.testing.artifacts import fetch_jars
from offsetkeeper.testing.errors import ServerError
from offsetkeeper.testing.process import ServerProcess, run_to_end
from offsetkeeper.testing.server import Server, client_library

_NOBODY = 65534  # PostgreSQL refuses to run as root, so from root it runs as the user nobody
_REQUEST = 5
_SETTINGS = {"listen_addresses": "127.0.0.1", "unix_socket_directories": "", "shared_buffers": "32MB"}
_UNSAFE = {"fsync": "off", "full_page_writes": "off"}


class PostgreSQLServer(Server):
    """A server with no databases but its own, as a context manager; its data is deleted at the end.

    Anyone on this machine may connect as the superuser `postgres`, with no password.

    Args:
        settings: server settings to add or change, by PostgreSQL's names.
        fsync: False saves the waits for the disk. Commits still survive `kill`, but not a loss of power.
        progress: called with a line of text when its jar has to be fetched.
    """

    name = "postgresql"
    defaults = _SETTINGS
    without_fsync = _UNSAFE
    stop_signal: ClassVar[int] = signal.SIGINT  # disconnects its clients, SIGTERM would wait for them
    _user = _NOBODY if os.geteuid() == 0 else None
    _frozen: Sequence[int] = ()

    def url(self, database: str = "postgres", *, port: int | None = None) -> str:
        """Return the URL of a database, `postgresql://postgres@127.0.0.1:PORT/DATABASE`.

        Args:
            database: its name.
            port: of a proxy in front of the server; by default the server's own.
        """
        return f"postgresql://postgres@127.0.0.1:{port or self.port}/{database}"

    def pause(self) -> None:
        """Freeze the server, and the process of each connection, which would go on without it."""
        with client_library("psycopg", "postgresql").connect(self.url(), connect_timeout=_REQUEST) as connection:
            super().pause()  # from now on no client connects
            others = (
                "select pid from pg_stat_activity where backend_type = 'client backend' and pid <> pg_backend_pid()"
            )
            self._frozen = [pid for (pid,) in connection.execute(others)]
            self._signal_frozen(signal.SIGSTOP)

    def resume(self) -> None:
        """Let a paused server go on, and the processes of its connections."""
        self._signal_frozen(signal.SIGCONT)
        super().resume()

    def stop(self) -> None:
        """Ask the server to end, see `Server.stop`."""
        self._signal_frozen(signal.SIGCONT)  # it waits for them
        super().stop()

    def close(self) -> None:
        """Stop the server, as a killed one leaves shared memory behind, and delete its data."""
        self.stop()
        super().close()

    def create_database(self, name: str | None = None) -> str:
        """Create an empty database, by default under a random name; return the name.

        Raises:
            ServerError: PostgreSQL refused.
        """
        psycopg = client_library("psycopg", "postgresql")
        name = name or f"test_{secrets.token_hex(6)}"
        try:
            with psycopg.connect(self.url(), autocommit=True) as connection:
                connection.execute(psycopg.sql.SQL("create database {}").format(psycopg.sql.Identifier(name)))
        except psycopg.Error as error:
            raise ServerError(f"PostgreSQL did not create database {name}: {error}") from error
        return name

    def _signal_frozen(self, number: int) -> None:
        for pid in self._frozen:
            with contextlib.suppress(ProcessLookupError):  # it has ended
                os.kill(pid, number)

    def _prepare(self) -> None:
        [jar] = fetch_jars("postgresql", self._progress)
        _unpack(jar, self.folder / "dist")
        if self._user:
            shutil.chown(self.folder, self._user, self._user)
        arguments = ["-U", "postgres", "-A", "trust", "--encoding=UTF8", "--locale=C", "--no-sync"]
        initdb = [self._program("initdb"), "-D", str(self.folder / "data"), *arguments]
        as_user = {"user": self._user, "group": self._user, "extra_groups": None if self._user is None else ()}
        run_to_end(initdb, "PostgreSQL's data folder could not be made", cwd=self.folder, **as_user)

    def _run(self) -> ServerProcess:
        options = [part for key, value in self._settings.items() for part in ("-c", f"{key}={value}")]
        command = [self._program("postgres"), "-D", str(self.folder / "data"), "-p", str(self.port), *options]
        return ServerProcess(command, folder=self.folder, user=self._user)

    def _serves(self) -> bool:
        psycopg = client_library("psycopg", "postgresql")
        try:
            with psycopg.connect(self.url(), connect_timeout=_REQUEST) as connection:
                connection.execute("create temp table ready (n int)")
        except psycopg.OperationalError:
            return False
        return True

    def _program(self, name: str) -> str:
        return str(self.folder / "dist" / "bin" / name)


def _unpack(jar: Path, folder: Path) -> None:
    """Unpack the .txz in the jar. Each server has its own copy: its user cannot read root's cache."""
    with zipfile.ZipFile(jar) as archive:
        [name] = [name for name in archive.namelist() if name.endswith(".txz")]
        packed = archive.read(name)
    with tarfile.open(fileobj=io.BytesIO(packed), mode="r:xz") as archive:
        # Its checksum is known, so its members are trusted; extractall(filter=...) is missing before Python 3.11.4.
        archive.extraction_filter = lambda member, _: member
        archive.extractall(folder)  # noqa: S202 - as above
