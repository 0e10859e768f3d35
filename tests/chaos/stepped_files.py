"""The code of docs/files.md, as its readers copy it, taking steps in places where a run may stall."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession

from chaos.stalls import Hook
from docs.pages import ROOT, blocks

PAGE = ROOT / "docs/files.md"
_LOCAL, _, _HDFS, _, _BAR, _CLEAN = blocks(PAGE)  # those between run a pipeline


def local_recipe(folder: Path) -> SimpleNamespace:
    """Return what the page has for a local folder: `publish`, `write`, `bar`, and `clean`, its loop over left-overs."""
    names: dict[str, Any] = {}
    for code in (_LOCAL, _BAR.partition("\nbar(")[0]):
        _run(code.replace("/data/orders", str(folder)), names)
    return SimpleNamespace(**names, clean=lambda: _run(_CLEAN, names))


def hdfs_recipe(folder: str) -> SimpleNamespace:
    """Return what the page has for a folder of HDFS: `publish` and `write`."""
    names: dict[str, Any] = {}
    _run(_HDFS.replace("hdfs://namenode:8020/data/orders", folder), names)
    return SimpleNamespace(**names)


def stepped_write(recipe: SimpleNamespace, at: Hook) -> Callable[[DataFrame, Any], None]:
    """Return the page's `write`, which takes steps.

    They are "inside", while one of two tasks has not written its file; "half", when the hidden folder is whole; and
    "written", when the batch is published.
    """
    publish = recipe.write.__globals__["publish"]

    def stepped(*arguments: Any) -> None:
        at("half")
        publish(*arguments)

    recipe.write.__globals__["publish"] = stepped

    def write(frame: DataFrame, batch: Any) -> None:
        with _slowed(frame, at) as slow:
            recipe.write(slow, batch)
        at("written")

    return write


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


def _run(code: str, names: dict[str, Any]) -> None:
    exec(compile(code, PAGE.name, "exec"), names)  # noqa: S102 - what is under test
