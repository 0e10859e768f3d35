"""The rename of docs/files.md on a local disk and on a real HDFS: of all who publish a batch one does, whole."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from chaos.recipes import hdfs_recipe, local_recipe, names
from offsetkeeper import Batch, OffsetRange

TOKEN = "5f3a9c0e1b7d2468"


@dataclass(frozen=True)
class Folder:
    """A folder with attempts and published batches.

    Attributes:
        spark: reads and lists it.
        path: of the folder, with a scheme where it is not local.
        publish: the page's, for paths as text.
        refusal: what `publish` raises where it cannot.
    """

    spark: SparkSession
    path: str
    publish: Callable[[str, str], None]
    refusal: type[Exception]

    def attempts(self, *batches: str) -> None:
        """Write two hidden attempts of each batch, two rows each, by one job."""
        rows = [(f"{batch}-{number}", value) for batch in batches for number in (1, 2) for value in "ab"]
        frame = self.spark.createDataFrame(rows, "attempt string, value string").coalesce(1)
        frame.write.partitionBy("attempt").parquet(f"{self.path}/.attempts")

    def publish_attempt(self, batch: str, number: int) -> None:
        """Publish one of the two."""
        self.publish(f"{self.path}/.attempts/attempt={batch}-{number}", f"{self.path}/batch={batch}")

    def rows(self) -> list[tuple[str, str]]:
        """Return batch and value of each row that a plain read finds."""
        return sorted((row["batch"], row["value"]) for row in self.spark.read.parquet(self.path).collect())


@pytest.fixture(params=["local", "hdfs"])
def folder(spark: SparkSession, tmp_path: Path, request: pytest.FixtureRequest) -> Folder:
    """An empty folder."""
    if request.param == "local":
        local = local_recipe(tmp_path / "orders").publish
        path = str(tmp_path / "orders")
        return Folder(spark, path, lambda attempt, to: local(Path(attempt), Path(to)), FileNotFoundError)
    path = f"{request.getfixturevalue('hdfs_server').rpc}/{tmp_path.name}/orders"
    publish = hdfs_recipe(path).publish
    return Folder(spark, path, lambda attempt, to: publish(spark, attempt, to), Py4JJavaError)


@pytest.mark.parametrize("turns", [15, pytest.param(50, marks=pytest.mark.soak)])
def test_of_two_that_publish_a_batch_at_once_one_does(folder: Folder, turns: int) -> None:
    batches = [f"{turn}-x" for turn in range(turns)]
    folder.attempts(*batches)
    both = threading.Barrier(2)

    def publish_all(number: int) -> None:
        for batch in batches:
            both.wait(60)
            folder.publish_attempt(batch, number)

    with ThreadPoolExecutor(2) as threads:
        for done in [threads.submit(publish_all, number) for number in (1, 2)]:
            done.result()
    assert folder.rows() == sorted((batch, value) for batch in batches for value in "ab")
    assert [each for each in names(folder.spark, f"{folder.path}/.attempts") if each.startswith("attempt=")] == []


def test_the_second_is_refused_and_nothing_is_moved_inside(folder: Folder) -> None:
    folder.attempts("1-x")
    folder.publish_attempt("1-x", 1)
    published = names(folder.spark, f"{folder.path}/batch=1-x")
    folder.publish_attempt("1-x", 2)
    assert names(folder.spark, f"{folder.path}/batch=1-x") == published
    assert folder.rows() == [("1-x", "a"), ("1-x", "b")]
    folder.publish_attempt("1-x", 2)  # its answer was lost, or somebody has tidied up


def test_what_cannot_be_published_is_no_success(folder: Folder) -> None:
    folder.attempts("1-x")
    with pytest.raises(folder.refusal):
        folder.publish_attempt("2-x", 1)


def test_a_dropped_batch_that_is_barred_is_not_published_late(spark: SparkSession, tmp_path: Path) -> None:
    recipe = local_recipe(tmp_path)
    frame = spark.createDataFrame([("a",)], "value string")
    recipe.write(frame, Batch("group", TOKEN, 6, (OffsetRange("orders", 0, 0, 1),)))
    recipe.bar(7, TOKEN)
    recipe.write(frame, Batch("group", TOKEN, 7, (OffsetRange("orders", 0, 1, 2),)))
    assert [(row["batch"], row["value"]) for row in spark.read.parquet(str(tmp_path)).collect()] == [
        (f"6-{TOKEN}", "a")
    ]
    with pytest.raises(OSError, match="not empty"):
        recipe.bar(6, TOKEN)


def test_what_is_left_over_is_deleted_only_where_its_batch_is_published(spark: SparkSession, tmp_path: Path) -> None:
    recipe = local_recipe(tmp_path)
    recipe.write(spark.createDataFrame([("a",)], "value string"), Batch("group", TOKEN, 6, ()))
    for name in (f".batch=6-{TOKEN}-dead", f".batch=7-{TOKEN}-alive"):
        (tmp_path / name / "_temporary").mkdir(parents=True)
    recipe.clean()
    assert sorted(each.name for each in tmp_path.iterdir()) == [f".batch=7-{TOKEN}-alive", f"batch=6-{TOKEN}"]
