"""A checkpoint that only the server of Spark Connect can reach is read through Spark, and with a limit."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from offsetkeeper.checkpoint.files import LocalFiles
from offsetkeeper.checkpoint.folder import HadoopFolder, RemoteFolder
from offsetkeeper.core.outside import LARGEST_STORED
from offsetkeeper.errors import Refused, StoreUnavailable
from offsetkeeper.sinks.files.hdfs import HdfsTree


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


def test_the_names_of_folders_and_of_empty_files_are_seen(spark: SparkSession, tmp_path: Path) -> None:
    """Spark has rows only for files with content; and takes signs in a path for a pattern."""
    path = tmp_path / "sources" / "[ab]{c}*? %20"
    for name, content in (("sources/0/0", b"\0v1"), ("sources/one/0", b"v1"), ("commits/7", b""), ("metadata", b"{}")):
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(content)
    (tmp_path / "sources" / "ac").mkdir()
    folder = RemoteFolder(spark, str(path))
    assert (folder.names("sources"), folder.names("commits"), folder.names("offsets")) == (["0", "one"], ["7"], [])
    assert [folder.read(name) for name in ("sources/0/0", "commits/7", "commits/8")] == [b"\0v1", b"", None]


def test_a_folder_is_local_if_the_server_finds_there_what_is_written_here(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Linux has a name for the working folder of each process, so that one path is two folders, as on two machines."""
    for name in ("old", "new"):
        (tmp_path / "old").mkdir(exist_ok=True)
        path = tmp_path / name
        for place in (str(path), f"file://{path}"):
            found = RemoteFolder(spark, place).local()
            assert isinstance(found, LocalFiles)
            assert (found.path, [*path.iterdir()]) == (path, [])
    monkeypatch.chdir(tmp_path)
    for name in ("old", "other", "none/other"):
        assert RemoteFolder(spark, f"/proc/self/cwd/{name}").local() is None
    for place in ("old", f"hdfs://{tmp_path}"):
        assert RemoteFolder(spark, place).local() is None
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["new", "old"]


def test_what_the_jvm_says_of_a_checkpoint_is_an_error_of_ours(spark: SparkSession, tmp_path: Path) -> None:
    """In a query nobody would know that it is the checkpoint's folder that cannot be read."""
    with pytest.raises(Refused, match=r"nofs://there/x: .*UnsupportedFileSystemException.*check the address"):
        HadoopFolder(spark, "nofs://there/x")
    folder = HadoopFolder(spark, str(tmp_path))
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "0").write_bytes(b"v1")
    assert (folder.names("offsets"), folder.read("offsets/0"), folder.read("offsets/1")) == (["0"], b"v1", None)
    for text in (b"v1\n\xff", b"v2"):  # also over a file that is there
        folder.write("sources/0/0", text)
        assert (tmp_path / "sources" / "0" / "0").read_bytes() == text
    assert folder.names("sources/0") == ["0"]
    with pytest.raises(StoreUnavailable) as caught:
        folder.read("offsets")
    assert type(caught.value.__cause__).__name__ == "Py4JJavaError"


def test_a_large_file_of_an_output_or_a_checkpoint_is_not_read_by_the_jvm(spark: SparkSession, tmp_path: Path) -> None:
    with (tmp_path / "large").open("wb") as file:
        file.truncate(50 * 10**9)
    for read in (HadoopFolder(spark, str(tmp_path)).read, HdfsTree(f"file://{tmp_path}", spark.sparkContext).read):
        with pytest.raises(Refused, match="large was not read: it has 50000000000 bytes or more"):
            read("large")
    (tmp_path / "small").write_bytes(b"")
    assert HdfsTree(f"file://{tmp_path}", spark.sparkContext).read("small") == b""
