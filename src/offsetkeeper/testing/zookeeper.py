"""A real ZooKeeper server: the one that lies in pyspark's jars."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from offsetkeeper.testing.errors import ServerError, ToolMissing
from offsetkeeper.testing.java import java, spark_home
from offsetkeeper.testing.process import ServerProcess
from offsetkeeper.testing.server import Server

_SETTINGS = {
    "tickTime": "500",  # sessions of a second are granted
    "clientPortAddress": "127.0.0.1",
    "maxClientCnxns": "0",
    "admin.enableServer": "false",
}
_JARS = ("zookeeper", "netty", "slf4j-api", "log4j", "metrics-core", "snappy-java", "commons-io", "commons-cli")
_LOG4J = """<Configuration status="ERROR">
<Appenders><Console name="out"><PatternLayout pattern="%d %p %c: %m%n"/></Console></Appenders>
<Loggers><Root level="WARN"><AppenderRef ref="out"/></Root></Loggers></Configuration>"""
_TRY = 1.0  # seconds; a connection taken in the server's first moments is never answered


class ZooKeeperServer(Server):
    """One server, no ensemble, as a context manager; its data is deleted at the end.

    Args:
        settings: lines of zoo.cfg to add or change.
        options: for its JVM, such as `-Djute.maxbuffer=…`.
    """

    name = "zookeeper"

    def __init__(self, *, settings: Mapping[str, str] | None = None, options: Sequence[str] = ()) -> None:
        super().__init__()
        self._settings = {**_SETTINGS, **(settings or {})}
        self._options = list(options)

    def url(self, chroot: str = "", *, port: int | None = None) -> str:
        """Return the URL of a store, `zookeeper://127.0.0.1:PORT/CHROOT`.

        Args:
            chroot: the path that all is kept below.
            port: of a proxy in front of the server; by default the server's own.
        """
        return f"zookeeper://127.0.0.1:{port or self.port}/{chroot}"

    def client(self, timeout: float = 10.0, **settings: Any) -> Any:
        """Return a new connected `KazooClient`, which logs nothing; the caller stops and closes it.

        Args:
            timeout: seconds to connect in.
            settings: of kazoo.

        Raises:
            ServerError: the server did not answer.
            ToolMissing: kazoo is not installed.
        """
        try:
            from kazoo.client import KazooClient  # noqa: PLC0415 - a client library, loaded on use
        except ImportError as error:
            raise ToolMissing("kazoo is needed: pip install 'offsetkeeper[zookeeper]'") from error
        silent = logging.Logger("kazoo", logging.CRITICAL)  # noqa: LOG001 - one that nothing else writes to
        client = KazooClient(f"127.0.0.1:{self.port}", timeout=timeout, logger=silent, **settings)
        try:
            client.start(timeout)
        except client.handler.timeout_exception as error:
            raise ServerError(f"ZooKeeper on port {self.port} did not answer") from error
        return client

    def _prepare(self) -> None:
        settings = {**self._settings, "dataDir": str(self.folder / "data"), "clientPort": str(self.port)}
        lines = "".join(f"{key}={value}\n" for key, value in settings.items())
        (self.folder / "zoo.cfg").write_text(lines, "utf-8")
        (self.folder / "log4j2.xml").write_text(_LOG4J, "utf-8")

    def _run(self) -> ServerProcess:
        jars = spark_home() / "jars"
        path = ":".join(str(jar) for name in _JARS for jar in sorted(jars.glob(f"{name}*.jar")))
        options = ["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", *self._options]
        options += [f"-Dlog4j2.configurationFile={self.folder / 'log4j2.xml'}", "-cp", path]
        main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
        return ServerProcess([str(java()), *options, main, str(self.folder / "zoo.cfg")], folder=self.folder)

    def _serves(self) -> bool:
        try:
            client = self.client(_TRY)
        except ServerError:
            return False
        try:
            client.ensure_path_async("/ready").get(timeout=_TRY)
        except Exception:  # noqa: BLE001 - whatever it is, the server is not ready
            return False
        finally:
            client.stop()
            client.close()
        return True
