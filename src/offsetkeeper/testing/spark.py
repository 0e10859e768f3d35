"""A real standalone Spark cluster, and a real Spark Connect server, from pip's pyspark. Executors are processes."""

import json
import os
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from offsetkeeper.testing.java import java, spark_home
from offsetkeeper.testing.process import ServerProcess
from offsetkeeper.testing.server import Server, Startable, free_port, together

_REQUEST = 5.0
_DEPLOY = "org.apache.spark.deploy"
_CONNECT = "org.apache.spark.sql.connect.service.SparkConnectServer"


class SparkMaster(Server):
    """The cluster's master. `port` takes applications and workers."""

    name = "spark-master"

    def __init__(self) -> None:
        super().__init__()
        self._page_port = free_port()

    @property
    def url(self) -> str:
        """What a session takes for its master, `spark://127.0.0.1:PORT`."""
        return f"spark://127.0.0.1:{self.port}"

    def workers_alive(self) -> set[int]:
        """Return the ports of the workers that the master knows to be alive; none while it does not answer."""
        workers: list[dict[str, Any]] = self._page().get("workers", [])
        return {worker["port"] for worker in workers if worker["state"] == "ALIVE"}

    def _page(self) -> dict[str, Any]:
        """Return what the master's page tells as JSON; empty while it does not answer."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._page_port}/json/", timeout=_REQUEST) as answer:
                page: dict[str, Any] = json.load(answer)
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return {}
        except json.JSONDecodeError:
            # While it starts, the master answers every address with its home page.
            return {}
        return page

    def _run(self) -> ServerProcess:
        arguments = ["--host", "127.0.0.1", "--port", str(self.port), "--webui-port", str(self._page_port)]
        return _run_spark("spark-class", [f"{_DEPLOY}.master.Master", *arguments], self.folder)

    def _serves(self) -> bool:
        return self._page().get("status") == "ALIVE"


class SparkWorker(Server):
    """A worker of the cluster; killing it kills its executors with it.

    Args:
        master: the master it belongs to.
        cores: number of tasks it runs at a time.
        memory: for its executors, in Spark's notation.
        host: the loopback address that it and its executors listen on. Other ones than 127.0.0.1 need Linux.
    """

    name = "spark-worker"

    def __init__(self, master: SparkMaster, *, cores: int = 1, memory: str = "1g", host: str = "127.0.0.1") -> None:
        super().__init__()
        self._master, self.host = master, host
        self._page_port = free_port()
        self._size = ["-c", str(cores), "-m", memory]

    def _run(self) -> ServerProcess:
        ports = ["--host", self.host, "--port", str(self.port), "--webui-port", str(self._page_port)]
        arguments = [*ports, *self._size, "-d", str(self.folder / "work"), self._master.url]
        return _run_spark("spark-class", [f"{_DEPLOY}.worker.Worker", *arguments], self.folder)

    def _serves(self) -> bool:
        return self.port in self._master.workers_alive()


class SparkCluster(Startable):
    """A master and its workers, as a context manager.

    Args:
        workers: number of workers.
        cores: number of tasks each runs at a time.
        memory: of each, for its executors, in Spark's notation.
        hosts: whether each worker has an address of its own (127.0.0.1, 127.0.0.2, …), which needs Linux. Spark runs a
            speculative copy of a task only on another host than the first.

    Attributes:
        master: the master, which can be killed and restarted alone.
        workers: the workers, each of which can be killed and restarted alone.
    """

    def __init__(self, *, workers: int = 2, cores: int = 1, memory: str = "1g", hosts: bool = False) -> None:
        self.master = SparkMaster()
        addresses = [f"127.0.0.{1 + number * hosts}" for number in range(workers)]
        self.workers = [SparkWorker(self.master, cores=cores, memory=memory, host=each) for each in addresses]

    @property
    def url(self) -> str:
        """What a session takes for its master, `spark://127.0.0.1:PORT`."""
        return self.master.url

    def kill(self) -> None:
        """Kill all with SIGKILL."""
        for server in (*self.workers, self.master):
            server.kill()

    def restart(self) -> None:
        """Start all again on their ports, killed before if they run.

        Raises:
            ServerError: one did not start.
        """
        self.kill()
        self.master.restart()
        together(SparkWorker.restart, self.workers)

    def close(self) -> None:
        """Kill all and delete their folders."""
        for server in (*self.workers, self.master):
            server.close()

    def _start(self) -> None:
        self.master.start()
        together(SparkWorker.start, self.workers)


class SparkConnectServer(Server):
    """A Connect server of pip's pyspark, which runs its tasks and the functions of `foreachBatch` on this machine.

    Args:
        cores: number of tasks it runs at a time.
        settings: of its Spark, beside those that say where it listens.
    """

    name = "spark-connect"

    def __init__(self, *, cores: int = 2, settings: Mapping[str, str] | None = None) -> None:
        super().__init__(settings=settings)
        self._cores = cores

    @property
    def url(self) -> str:
        """What `SparkSession.builder.remote` takes, `sc://127.0.0.1:PORT`."""
        return f"sc://127.0.0.1:{self.port}"

    def _run(self) -> ServerProcess:
        listens = {"spark.connect.grpc.binding.address": "127.0.0.1", "spark.connect.grpc.binding.port": str(self.port)}
        given = [
            word for name, value in {**self._settings, **listens}.items() for word in ("--conf", f"{name}={value}")
        ]
        arguments = ["--class", _CONNECT, "--master", f"local[{self._cores}]", *given, "spark-internal"]
        return _run_spark("spark-submit", arguments, self.folder)

    def _serves(self) -> bool:
        # It listens once its session is there.
        return True


def _run_spark(script: str, arguments: list[str], folder: Path) -> ServerProcess:
    """Start a script of pip's Spark on 127.0.0.1, such as `spark-class`; its Pythons are of this one's environment.

    Raises:
        ToolMissing: Java 17 or pyspark is missing.
    """
    home = spark_home()
    environment = {
        **os.environ,
        "SPARK_HOME": str(home),
        "JAVA_HOME": str(java().resolve().parent.parent),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_DIRS": str(folder),
        "SPARK_DAEMON_MEMORY": "512m",
        "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        # Executors run the python3 on their PATH, unless the driver's PYSPARK_PYTHON names another.
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
    }
    return ServerProcess([str(home / "bin" / script), *arguments], folder=folder, environment=environment)
