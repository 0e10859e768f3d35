"""The suite of outputs that keep a mark, on folders."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from offsetkeeper.sinks import Files
from offsetkeeper.testing.conformance import LanderConformance
from offsetkeeper.testing.conformance.landers import Record

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from offsetkeeper.testing.hdfs import HDFSServer


class FolderConformance(LanderConformance):
    """Of a folder anywhere."""

    test_outputs_of_two_names_and_groups_keep_a_mark_each = None  # type: ignore[assignment] # a folder is of one
    root: str

    def make(self, name: str) -> None:
        """See the suite; the sink makes the folder."""

    def open(self, name: str) -> Files:
        """See the suite."""
        return Files(f"{self.root}/{name}")

    def read(self, name: str) -> Iterable[Record]:
        """See the suite."""
        try:
            found = self.spark.read.parquet(f"{self.root}/{name}")
        except Exception as error:
            if "UNABLE_TO_INFER_SCHEMA" not in str(error):
                raise
            return []
        return [tuple(row) for row in found.select("id", "topic", "partition", "offset").collect()]

    def frame(self, spark: SparkSession, rows: Sequence[Record]) -> DataFrame:
        """See the suite; a column `batch` would be refused."""
        return super().frame(spark, rows).withColumnRenamed("batch", "id").coalesce(1)

    @pytest.fixture(autouse=True)
    def session(self, spark: SparkSession) -> None:
        """Keep the session, to read with."""
        self.spark = spark


class TestLocal(FolderConformance):
    """On this machine."""

    @pytest.fixture(autouse=True)
    def folder(self, tmp_path: Path) -> None:
        """Give it a folder."""
        self.root = str(tmp_path)


@pytest.mark.xdist_group("test_hdfs")
class TestHDFS(FolderConformance):
    """On a real HDFS."""

    histories = 2

    @pytest.fixture(autouse=True)
    def folder(self, hdfs_server: HDFSServer, tmp_path: Path) -> None:
        """Give it a folder."""
        self.root = f"{hdfs_server.rpc}/{tmp_path.name}"
