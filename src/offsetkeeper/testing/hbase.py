"""A real HBase: a master that is region server and ZooKeeper too, and the Thrift server that clients reach it by."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from offsetkeeper.testing.artifacts import Progress, fetch_jars
from offsetkeeper.testing.errors import ServerError
from offsetkeeper.testing.java import hadoop_xml, java_command
from offsetkeeper.testing.process import ServerProcess
from offsetkeeper.testing.server import Server, client_library, free_port, wait_until

_REQUEST = 20_000  # milliseconds
# Small, quick to start, and quick to give up what cannot be done.
_SETTINGS = {
    "hbase.cluster.distributed": "false",
    "hbase.unsafe.stream.capability.enforce": "false",
    "hbase.wal.provider": "filesystem",
    "hbase.zookeeper.quorum": "127.0.0.1",
    "hbase.zookeeper.property.clientPortAddress": "127.0.0.1",
    "zookeeper.session.timeout": "10000",
    "hbase.master.hostname": "localhost",
    "hbase.master.ipc.address": "127.0.0.1",
    "hbase.master.info.port": "-1",
    "hbase.master.wait.on.regionservers.timeout": "300",
    "hbase.master.wait.on.regionservers.interval": "100",
    "hbase.regionserver.hostname": "localhost",
    "hbase.regionserver.ipc.address": "127.0.0.1",
    "hbase.regionserver.info.port": "-1",
    "hbase.regionserver.handler.count": "5",
    "hbase.regionserver.msginterval": "200",
    "hbase.thrift.info.port": "-1",
    "hbase.client.retries.number": "3",
    "hbase.client.pause": "100",
    "hbase.rpc.timeout": "10000",
    "hbase.client.operation.timeout": "15000",
}
_OPENED = (
    *("java.lang", "java.lang.reflect", "java.nio", "java.util", "java.util.concurrent"),
    *("jdk.internal.ref", "jdk.internal.util.random", "sun.nio.ch"),
)
_EXPORTED = (
    *("java.base/jdk.internal.misc", "java.base/sun.net.dns", "java.base/sun.net.util"),
    "java.security.jgss/sun.security.krb5",
)
_JVM = (
    "--add-modules=jdk.unsupported",
    "-Dorg.apache.hbase.thirdparty.io.netty.tryReflectionSetAccessible=true",
    *(f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENED),
    *(f"--add-exports={package}=ALL-UNNAMED" for package in _EXPORTED),
)
_LOG4J = """log4j.rootLogger=WARN,out
log4j.appender.out=org.apache.log4j.ConsoleAppender
log4j.appender.out.layout=org.apache.log4j.PatternLayout
log4j.appender.out.layout.ConversionPattern=%d %p %c: %m%n
"""


class HBaseServer(Server):
    """Two processes with no table but `ready`, as a context manager; their data is deleted at the end.

    `port` is the Thrift server's, and `kill`, `stop`, `restart`, `pause` and `resume` are its. The master has
    `kill_master` and `restart_master`; its data survives.

    Args:
        settings: of hbase-site.xml to add or change.
        progress: called with a line of text when its jars have to be fetched.
    """

    name = "hbase"
    defaults = _SETTINGS

    def __init__(self, *, settings: Mapping[str, str] | None = None, progress: Progress | None = None) -> None:
        super().__init__(settings=settings, progress=progress)
        self._ports = [free_port() for _ in range(3)]
        self._master: ServerProcess | None = None

    def url(self, namespace: str = "", *, port: int | None = None) -> str:
        """Return the URL of a store, `hbase://127.0.0.1:PORT/NAMESPACE`.

        Args:
            namespace: of its tables, which must exist; by default HBase's own default.
            port: of a proxy in front of the Thrift server; by default its own.
        """
        return f"hbase://127.0.0.1:{port or self.port}/{namespace}"

    def client(self) -> Any:
        """Return a new `happybase.Connection`; the caller closes it.

        Raises:
            ToolMissing: happybase is not installed.
        """
        return client_library("happybase", "hbase").Connection("127.0.0.1", self.port, timeout=_REQUEST)

    def kill_master(self) -> None:
        """Kill the master with SIGKILL, and with it region server and ZooKeeper. The data stays."""
        if self._master:
            self._master.kill()
            self._master = None

    def restart_master(self) -> None:
        """Start the master again, killed before if it runs; return when HBase serves.

        Raises:
            ServerError: it did not start.
        """
        self.kill_master()
        self._master = self._run_master()
        try:
            wait_until(self._serves, "HBase serves again", self.start_limit)
        except ServerError as error:
            raise ServerError(f"{error}; the master's log ends with:\n{self._master.log_tail()}") from error

    def close(self) -> None:
        """Kill both and delete their data."""
        self.kill_master()
        super().close()

    def _prepare(self) -> None:
        for name in ("conf", "tmp", "master"):
            (self.folder / name).mkdir()
        zookeeper, master, region = map(str, self._ports)
        settings = {
            **self._settings,
            "hbase.rootdir": f"file://{self.folder}/data",
            "hbase.tmp.dir": str(self.folder / "tmp"),
            "hbase.zookeeper.property.dataDir": f"{self.folder}/zookeeper",
            "hbase.zookeeper.property.clientPort": zookeeper,
            "hbase.master.port": master,
            "hbase.regionserver.port": region,
        }
        (self.folder / "conf" / "hbase-site.xml").write_text(hadoop_xml(settings), "utf-8")
        (self.folder / "conf" / "log4j.properties").write_text(_LOG4J, "utf-8")

    def _run(self) -> ServerProcess:
        if self._master is None:
            self._master = self._run_master()
        command = self._java("256m", "thrift.ThriftServer", "start", "-p", str(self.port), "-b", "127.0.0.1")
        return ServerProcess(command, folder=self.folder)

    def _run_master(self) -> ServerProcess:
        return ServerProcess(self._java("512m", "master.HMaster", "start"), folder=self.folder / "master")

    def _java(self, heap: str, program: str, *arguments: str) -> list[str]:
        jars = [self.folder / "conf", *fetch_jars("hbase", self._progress)]
        options = [*_JVM, f"-Djava.io.tmpdir={self.folder / 'tmp'}"]
        return java_command(jars, f"org.apache.hadoop.hbase.{program}", *arguments, heap=heap, options=options)

    def _serves(self) -> bool:
        from thriftpy2.thrift import TException  # noqa: PLC0415 - of a client library, loaded on use

        try:
            client = self.client()
            try:  # listing tables proves nothing: it works before writes do
                if b"ready" not in client.tables():
                    client.create_table("ready", {"at": {}})
                client.table("ready").put(b"row", {b"at:": b"now"})
            finally:
                client.close()
        except (TException, OSError):
            return False
        return True
