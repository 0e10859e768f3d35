"""Files that take steps where a run may stall."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Any

from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession

from chaos.stalls import Hook
from offsetkeeper import Batch
from offsetkeeper.core.model import Guarantee
from offsetkeeper.core.store import Store
from offsetkeeper.sinks import Files, Lander


class SteppedFiles:
    """`Files`, which takes steps.

    They are "inside", while one of two tasks has not written its file; "half", when the hidden folder is whole; and
    "written", when the batch has landed.
    """

    def __init__(self, folder: str, at: Hook) -> None:
        self._files, self._at = Files(folder), at

    def prepare(self, store: Store, guarantee: Guarantee) -> Lander:
        """See `Sink.prepare`."""
        lander = self._files.prepare(store, guarantee)

        def stage(frame: DataFrame, batch: Batch) -> object:
            with _slowed(frame, self._at) as slow:
                return lander.stage(slow, batch)

        def land(*arguments: Any) -> None:
            self._at("half")
            lander.land(*arguments)
            self._at("written")

        return replace(lander, stage=stage, land=land)


def names(spark: SparkSession, folder: str) -> list[str]:
    """Return the names in a folder, local or of HDFS."""
    jvm: Any = spark._jvm
    path = jvm.org.apache.hadoop.fs.Path(folder)
    found = path.getFileSystem(spark._jsc.hadoopConfiguration()).listStatus(path)
    return sorted(each.getPath().getName() for each in found)


@contextmanager
def _slowed(frame: DataFrame, at: Hook) -> Iterator[DataFrame]:
    """Lend the frame in two tasks, the second of which takes the step "inside" after its last row."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        port = listener.getsockname()[1]

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:  # the frame was written
                    return
                with closing(connection):
                    at("inside")

        def wait(rows: Iterator[Any]) -> Iterator[Any]:
            yield from rows
            context = TaskContext.get()
            if context is not None and context.partitionId() == 1:
                with socket.create_connection(("127.0.0.1", port)) as connection:
                    connection.recv(1)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        two = frame.repartition(2)
        try:
            yield two.mapInArrow(wait, two.schema)
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()
