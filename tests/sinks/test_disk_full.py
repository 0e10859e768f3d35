"""A disk that is full, for real: the error says so, nothing is there, and the batch lands once there is room."""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from offsetkeeper.errors import SinkError
from offsetkeeper.sinks.once import Once
from offsetkeeper.testing.conformance.landers import batch_of, records
from offsetkeeper.testing.server import wait_until
from sinks.killed_driver import GROUP, lander_of, write
from sinks.test_kills import Output

MOUNT = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs"]
UNMOUNT = ["umount", "--lazy"]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of one megabyte, where this user may make one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if subprocess.run([*MOUNT, folder], capture_output=True, check=False).returncode:
        pytest.skip("this user may not mount a disk")
    yield folder
    subprocess.run([*UNMOUNT, folder], check=True)


@pytest.mark.parametrize("kind", ["table, SQLite", "delta", "iceberg", "files"])
def test_a_full_disk_is_told_and_nothing_is_written(
    request: pytest.FixtureRequest, spark: SparkSession, disk: Path, kind: str
) -> None:
    output, batch = Output(kind, disk, request.getfixturevalue), batch_of(1)
    once = Once(lander_of(kind, output.place), "")
    uuids = ", ".join(["uuid()"] * 6)
    large: Any = spark.range(40_000).selectExpr(
        "'x' as id", f"concat({uuids}) as topic", "0 as partition", "id as offset"
    )
    with pytest.raises(
        SinkError, match=r"(disk is full|No space left on device); (nothing was|the table was not changed)"
    ):
        once.write(large, batch)
    assert once.mark(GROUP) is None

    def lands() -> bool:
        try:
            write(spark, kind, once.lander, 1)
        except SinkError:  # until Spark has deleted and closed the files that it could not end
            if spark.sparkContext._jvm is not None:
                spark.sparkContext._jvm.System.gc()
            return False
        return True

    wait_until(lands, "the batch landed", 60)
    assert output.rows(spark) == Counter(records(batch))
