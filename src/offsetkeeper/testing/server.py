"""What all servers share: a folder, a port, and a life of start, kill, restart and stop."""

import fcntl
import functools
import importlib
import os
import random
import shutil
import signal
import socket
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, ClassVar, Self, TypeVar

from offsetkeeper.testing.artifacts import Progress
from offsetkeeper.testing.errors import ServerError, ToolMissing
from offsetkeeper.testing.process import ServerProcess

S = TypeVar("S", bound="Server")
_given_ports: set[int] = set()


def free_port() -> int:
    """Return a free TCP port of 127.0.0.1, reserved as by `reserve_port`.

    It lies below the range from which systems take the ports of outgoing connections: a client that keeps trying to
    reach a killed server there could otherwise end up connected to itself, and hold the port.
    """
    while not reserve_port(port := random.randrange(10_000, 32_000)):  # noqa: S311 - no secret
        pass
    return port


def reserve_port(port: int) -> bool:
    """Reserve a TCP port of 127.0.0.1 until this process ends, even while it has no listener.

    Returns:
        Whether it has no listener, and no process of this user, including this one, has it reserved.
    """
    if port in _given_ports:
        return False
    try:
        fcntl.lockf(_reservations(), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
    except OSError:
        return False
    _given_ports.add(port)
    return _free(port)


@functools.cache
def _reservations() -> int:
    """Open the file whose bytes stand for ports: who has one locked has the port. A lock ends with its process."""
    return os.open(Path(tempfile.gettempdir(), f"offsetkeeper-ports-{os.getuid()}"), os.O_RDWR | os.O_CREAT, 0o600)


def _free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def wait_until(happened: Callable[[], bool], what: str, limit: float) -> None:
    """Wait until `happened()` is true, looking every 20 ms.

    Raises:
        ServerError: it did not happen within `limit` seconds; `what` names the event.
    """
    deadline = time.monotonic() + limit
    while not happened():
        if time.monotonic() > deadline:
            raise ServerError(f"timed out after {limit:g} s: waited until {what}")
        time.sleep(0.02)


def together(do: Callable[[S], object], servers: Iterable[S]) -> None:
    """Do it with all servers at once, as where each waits for the others; raise what the first that fails raises."""
    with ThreadPoolExecutor() as pool:
        list(pool.map(do, servers))


def client_library(name: str, extra: str) -> Any:
    """Return the module of a client library, which is loaded on use.

    Raises:
        ToolMissing: it is not installed.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ToolMissing(f"{name} is needed: pip install 'offsetkeeper[{extra}]'") from error


class Startable(ABC):
    """What is started on entry of a `with` block and deleted on exit: a server, or several that belong together."""

    def start(self) -> Self:
        """Make the data folders, start every server, and return when all of them serve.

        Raises:
            ArtifactError: the jars could not be fetched.
            ServerError: a server did not start; the error ends with the last lines of its log.
            ToolMissing: a server needs Java 17 or pyspark, and there is none.
        """
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    @abstractmethod
    def close(self) -> None:
        """End every server and delete its data."""

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    @abstractmethod
    def _start(self) -> None:
        """Start; after an error, close the parts that were started."""


class Server(Startable):
    """One real server on a loopback address with data of its own, as a context manager.

    Args:
        settings: of the server to add or change, by its own names.
        fsync: False saves the waits for the disk, of a server that has settings for it.
        progress: called with a line of text when its jars have to be fetched.

    Attributes:
        host: address it listens on, 127.0.0.1 but for workers of Spark.
        port: TCP port it listens on, the same after a restart.
    """

    name: ClassVar[str]
    defaults: ClassVar[Mapping[str, str]] = MappingProxyType({})
    without_fsync: ClassVar[Mapping[str, str]] = MappingProxyType({})
    stop_signal: ClassVar[int] = signal.SIGTERM
    start_limit: ClassVar[float] = 240.0

    def __init__(
        self, *, settings: Mapping[str, str] | None = None, fsync: bool = True, progress: Progress | None = None
    ) -> None:
        self.host, self.port = "127.0.0.1", free_port()
        self._settings = {**self.defaults, **({} if fsync else self.without_fsync), **(settings or {})}
        self._progress = progress
        self._folder: Path | None = None
        self._process: ServerProcess | None = None

    def kill(self) -> None:
        """Kill the server with SIGKILL, as a crash would, and all its child processes. Its data stays."""
        if self._process:
            self._process.kill()
            self._process = None

    def stop(self) -> None:
        """Ask the server to end and wait until it did; after 20 seconds it is killed. Its data stays."""
        if self._process:
            self._process.stop(self.stop_signal)
            self._process = None

    def restart(self) -> None:
        """Start the server again on its port and data, killed before if it runs.

        Raises:
            ServerError: it did not start.
        """
        self.kill()
        self._launch()

    def pause(self) -> None:
        """Freeze the server (SIGSTOP): connections stay open and nothing is answered."""
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let a paused server go on (SIGCONT)."""
        self.process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        """Kill the server, as many take their time to end by themselves, and delete its data."""
        self.kill()
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    @property
    def folder(self) -> Path:
        """Folder of its data, settings and log.

        Raises:
            ServerError: the server has not been started.
        """
        if self._folder is None:
            raise ServerError(f"{self.name} has no data yet: call start()")
        return self._folder

    @property
    def process(self) -> ServerProcess:
        """The running process.

        Raises:
            ServerError: the server does not run.
        """
        if self._process is None:
            raise ServerError(f"{self.name} does not run: call start() or restart()")
        return self._process

    def _start(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix=f"offsetkeeper-{self.name}-"))
        self._prepare()
        self._launch()

    def _launch(self) -> None:
        self._process = self._run()
        deadline = time.monotonic() + self.start_limit
        while not self._listens() or not self._serves():
            if not self._process.alive() or time.monotonic() > deadline:
                log = self._process.log_tail()
                self.kill()
                raise ServerError(f"{self.name} did not start on port {self.port}; its log ends with:\n{log}")
            time.sleep(0.02)

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex((self.host, self.port)) == 0

    def _prepare(self) -> None:
        """Write settings and make the data folder's first content."""

    @abstractmethod
    def _run(self) -> ServerProcess:
        """Start the process."""

    @abstractmethod
    def _serves(self) -> bool:
        """Whether a real operation of a client succeeds."""
