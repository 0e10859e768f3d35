"""A checkpoint that only the server of Spark Connect can reach is read through Spark, and with a limit."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from offsetkeeper.checkpoint.folder import RemoteFolder
from offsetkeeper.core.outside import LARGEST_STORED
from offsetkeeper.errors import Refused


def test_what_is_larger_than_any_log_is_not_read(spark: SparkSession, tmp_path: Path) -> None:
    """Spark would collect it in the driver's memory: what it has of the file is its length."""
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "0").write_bytes(b"v1")
    with (tmp_path / "offsets" / "1").open("wb") as file:
        file.truncate(LARGEST_STORED + 1)
    folder = RemoteFolder(spark, str(tmp_path))
    assert folder.names("offsets") == ["0", "1"]
    assert (folder.read("offsets/0"), folder.read("offsets/2")) == (b"v1", None)
    with pytest.raises(Refused, match=rf"offsets/1 was not read: it has {LARGEST_STORED + 1} bytes or more"):
        folder.read("offsets/1")
