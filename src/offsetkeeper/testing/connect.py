"""A real Spark Connect server, whose clients have no Java of their own."""

from collections.abc import Mapping

from offsetkeeper.testing.cluster import run_spark
from offsetkeeper.testing.process import ServerProcess
from offsetkeeper.testing.server import Server

_CLASS = "org.apache.spark.sql.connect.service.SparkConnectServer"


class SparkConnectServer(Server):
    """A Connect server of pip's pyspark, which runs its tasks and the functions of `foreachBatch` on this machine.

    Args:
        cores: number of tasks it runs at a time.
        settings: of its Spark, beside those that say where it listens.
    """

    name = "spark-connect"

    def __init__(self, *, cores: int = 2, settings: Mapping[str, str] | None = None) -> None:
        super().__init__()
        self._cores = cores
        self._settings = dict(settings or {})

    @property
    def url(self) -> str:
        """What `SparkSession.builder.remote` takes, `sc://127.0.0.1:PORT`."""
        return f"sc://127.0.0.1:{self.port}"

    def _prepare(self) -> None:
        """Nothing to prepare."""

    def _run(self) -> ServerProcess:
        listens = {"spark.connect.grpc.binding.address": "127.0.0.1", "spark.connect.grpc.binding.port": str(self.port)}
        given = [
            word for name, value in {**self._settings, **listens}.items() for word in ("--conf", f"{name}={value}")
        ]
        arguments = ["--class", _CLASS, "--master", f"local[{self._cores}]", *given, "spark-internal"]
        return run_spark("spark-submit", arguments, self.folder)

    def _serves(self) -> bool:
        # It listens once its session is there.
        return True
