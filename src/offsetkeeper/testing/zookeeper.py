"""A real ZooKeeper server, or an ensemble of three: the one that lies in pyspark's jars."""

from __future__ import annotations

import logging
import socket
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from offsetkeeper.testing.errors import ServerError
from offsetkeeper.testing.java import LOG4J2, java_command, properties, spark_jars
from offsetkeeper.testing.process import ServerProcess
from offsetkeeper.testing.proxy import TcpProxy
from offsetkeeper.testing.server import Server, Startable, client_library, free_port, together, wait_until

_SETTINGS = {
    "tickTime": "500",  # sessions of a second are granted
    "clientPortAddress": "127.0.0.1",
    "maxClientCnxns": "0",
    "admin.enableServer": "false",
}
_JARS = [
    *("zookeeper*", "netty*", "slf4j-api*", "log4j*", "metrics-core*", "snappy-java*", "commons-io*", "commons-cli*"),
]
_TRY = 1.0  # seconds; a connection taken in the server's first moments is never answered
# In ticks of half a second. A follower that is held is thrown out, and a leader that is held steps down, after that.
_QUORUM = {"initLimit": "60", "syncLimit": "240"}
# A new leader listens a moment after its followers know it. Those that a proxy then cuts off, without a refusal,
# do not try again, and the leader waits for them until `initLimit`.
_PATIENCE = 10.0
_SIZE = 3


class ZooKeeperServer(Server):
    """One server, no ensemble, as a context manager; its data is deleted at the end.

    Args:
        settings: lines of zoo.cfg to add or change.
        options: for its JVM, such as `-Djute.maxbuffer=…`.
    """

    name = "zookeeper"
    defaults = _SETTINGS

    def __init__(self, *, settings: Mapping[str, str] | None = None, options: Sequence[str] = ()) -> None:
        super().__init__(settings=settings)
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
        silent = logging.Logger("kazoo", logging.CRITICAL)  # noqa: LOG001 - one that nothing else writes to
        kazoo = client_library("kazoo.client", "zookeeper")
        client = kazoo.KazooClient(f"127.0.0.1:{self.port}", timeout=timeout, logger=silent, **settings)
        try:
            client.start(timeout)
        except client.handler.timeout_exception as error:
            raise ServerError(f"ZooKeeper on port {self.port} did not answer") from error
        return client

    def _prepare(self) -> None:
        settings = {**self._settings, "dataDir": str(self.folder / "data"), "clientPort": str(self.port)}
        (self.folder / "zoo.cfg").write_text(properties(settings), "utf-8")
        (self.folder / "log4j2.xml").write_text(LOG4J2, "utf-8")

    def _run(self) -> ServerProcess:
        options = [*self._options, f"-Dlog4j2.configurationFile={self.folder / 'log4j2.xml'}"]
        main = ["org.apache.zookeeper.server.quorum.QuorumPeerMain", str(self.folder / "zoo.cfg")]
        return ServerProcess(java_command(spark_jars(*_JARS), *main, options=options), folder=self.folder)

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


class _Member(ZooKeeperServer):
    """One server of an ensemble, which knows itself by its number."""

    def __init__(self, number: int, settings: Mapping[str, str]) -> None:
        super().__init__(settings=settings)
        self._number = number

    def leads(self) -> bool:
        """Whether it takes itself for the leader; False while it does not answer."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=_TRY) as asked:
                asked.sendall(b"srvr")
                return b"Mode: leader" in b"".join(iter(lambda: asked.recv(1 << 16), b""))
        except OSError:
            return False

    def _prepare(self) -> None:
        super()._prepare()
        data = self.folder / "data"
        data.mkdir()
        (data / "myid").write_text(f"{self._number}\n", "utf-8")


class ZooKeeperEnsemble(Startable):
    """Three servers as a context manager, numbered 0 to 2; their data is deleted at the end.

    Each follows its leader through a proxy of its own, so that a follower can be made to lag: see `hold`.

    Attributes:
        servers: the servers.
    """

    def __init__(self) -> None:
        self._quorum = [free_port() for _ in range(_SIZE)]
        self._links = {
            (one, other): TcpProxy("127.0.0.1", self._quorum[other], patience=_PATIENCE)
            for one in range(_SIZE)
            for other in range(_SIZE)
            if one != other
        }
        self._running = ExitStack()
        self.servers: list[_Member] = []

    def url(self, chroot: str = "", *, only: int | None = None) -> str:
        """Return the URL of a store on all servers, or on one only.

        Args:
            chroot: the path that all is kept below.
            only: number of the one server.
        """
        chosen = self.servers if only is None else [self.servers[only]]
        return f"zookeeper://{','.join(f'127.0.0.1:{server.port}' for server in chosen)}/{chroot}"

    def leader(self, among: Sequence[int] = range(_SIZE)) -> int:
        """Return the number of the server that leads, waiting for an election.

        Args:
            among: numbers of the servers to ask: one that is cut off takes itself for the leader for a while.

        Raises:
            ServerError: no server becomes the leader within half a minute.
        """
        found: list[int] = []

        def elected() -> bool:
            found[:] = [number for number in among if self.servers[number].leads()]
            return bool(found)

        wait_until(elected, "the ensemble has a leader", 30)
        return found[0]

    def kill(self, *numbers: int) -> None:
        """Kill servers with SIGKILL. Their data stays."""
        for number in numbers:
            self.servers[number].kill()

    def restart(self, *numbers: int) -> None:
        """Start servers again, killed before if they run, and return when they serve; for that they need a quorum.

        Raises:
            ServerError: one did not start.
        """
        together(ZooKeeperServer.restart, [self.servers[number] for number in numbers])

    def pause(self, *numbers: int) -> None:
        """Freeze servers (SIGSTOP): connections stay open and nothing is answered."""
        for number in numbers:
            self.servers[number].pause()

    def resume(self, *numbers: int) -> None:
        """Let paused servers go on (SIGCONT)."""
        for number in numbers:
            self.servers[number].resume()

    def hold(self, number: int) -> None:
        """Hold all that is replicated from and to a server, until `release`; elections are not held.

        A follower lags from then on: clients reach it and read its old data. A leader keeps taking itself for the
        leader, also when the others, started again, have elected a new one.
        """
        for link in self._of(number):
            link.hold()

    def release(self, number: int) -> None:
        """Let a server that was held catch up."""
        for link in self._of(number):
            link.release()

    def close(self) -> None:
        """Kill all and delete their data."""
        together(ZooKeeperServer.close, self.servers)
        self._running.close()

    def _start(self) -> None:
        for link in self._links.values():
            self._running.enter_context(link)
        election = [free_port() for _ in range(_SIZE)]
        for one in range(_SIZE):
            quorum = [self._quorum[n] if n == one else self._links[one, n].port for n in range(_SIZE)]
            members = {f"server.{n}": f"127.0.0.1:{quorum[n]}:{election[n]}" for n in range(_SIZE)}
            self.servers.append(_Member(one, {**_QUORUM, **members}))
        together(ZooKeeperServer.start, self.servers)

    def _of(self, number: int) -> list[TcpProxy]:
        return [link for ends, link in self._links.items() if number in ends]
