"""Folders on a local disk and on a real HDFS: what a rename does there, and what is told where it cannot be done."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from fixtures.foul import FOUL, at_once
from offsetkeeper.core.model import Guarantee
from offsetkeeper.errors import GuaranteeRefused, OutcomeUnknown, Refused, SettingsError, SinkError
from offsetkeeper.sinks import Files
from offsetkeeper.sinks.files.folder import Tree
from offsetkeeper.sinks.files.hdfs import open_hdfs
from offsetkeeper.sinks.files.local import LocalTree
from offsetkeeper.stores.memory import MemoryStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from offsetkeeper.testing.hdfs import HDFSServer

TURNS = 15


@pytest.fixture(params=["local", "hdfs"])
def tree(spark: SparkSession, tmp_path: Path, request: pytest.FixtureRequest) -> Tree:
    """An empty folder."""
    assert spark.sparkContext is not None  # HDFS is reached through it
    if request.param == "hdfs":
        tree: Tree = open_hdfs(f"{request.getfixturevalue('hdfs_server').rpc}/{tmp_path.name}/lake")
    else:
        tree = LocalTree(f"{tmp_path}/lake")
    tree.make("")
    return tree


def put(tree: Tree, folder: str, content: bytes = b"text") -> None:
    """Make a folder with a file."""
    tree.make(folder)
    tree.write(f"{folder}/file", content)


@pytest.mark.parametrize(
    "work",
    [
        lambda tree: tree.make("hidden/5-new"),
        lambda tree: tree.names("hidden"),
        lambda tree: tree.write("hidden/file", b"x"),
        lambda tree: tree.write("own/file", b"x"),
        lambda tree: tree.sync("hidden/1-old"),
        lambda tree: tree.delete("hidden/1-old"),
        lambda tree: tree.move("hidden/1-old", "batch=1"),
        lambda tree: tree.move("own", "hidden/2"),
    ],
)
def test_a_link_in_the_folder_of_an_output_leads_nowhere(tmp_path: Path, work: Callable[[Tree], object]) -> None:
    """Who may write there had old attempts deleted, and rows written, wherever the program may."""
    tree, other = LocalTree(f"{tmp_path}/lake"), tmp_path / "other" / "1-old"
    put(tree, "own")
    other.mkdir(parents=True)
    (other / "file").write_bytes(b"mine")
    (tmp_path / "lake" / "hidden").symlink_to(tmp_path / "other")
    (tmp_path / "lake" / "own" / "file").unlink()
    (tmp_path / "lake" / "own" / "file").symlink_to(other / "file")
    with pytest.raises(Refused, match="is a link"):
        work(tree)
    assert [path.name for path in other.parent.iterdir()] == ["1-old"]
    assert (other / "file").read_bytes() == b"mine"


@pytest.mark.timeout(30)  # a FIFO is waited for without an end
def test_a_fifo_in_the_folder_of_an_output_is_not_waited_for(tmp_path: Path) -> None:
    tree = LocalTree(f"{tmp_path}/lake")
    tree.make("own")
    os.mkfifo(tmp_path / "lake" / "own" / "file")
    with pytest.raises((SinkError, Refused)):
        tree.write("own/file", b"x")
    with pytest.raises(Refused, match="a FIFO"):
        tree.read("own/file")


@pytest.mark.timeout(30)
@pytest.mark.parametrize("what", [what for what in FOUL if what != "a folder"])
def test_what_lies_in_place_of_the_folder_of_an_output_is_refused_at_once(tmp_path: Path, what: str) -> None:
    """It was an error that a run tries again."""
    (tmp_path / "in").mkdir()
    FOUL[what](tmp_path / "in" / "lake")
    output = Files(tmp_path / "in" / "lake")
    with at_once(), pytest.raises(Refused, match=r"Not a directory|Too many .* symbolic links"):
        output.prepare(MemoryStore("memory://"), Guarantee.EXACTLY_ONCE)


@pytest.mark.parametrize(
    ("path", "work"),
    [
        ("hidden", lambda tree: tree.write("hidden/1-old/file", b"x")),
        ("hidden", lambda tree: tree.delete("hidden/1-old")),
        ("hidden", lambda tree: tree.move("hidden/1-old", "batch=1")),
        ("own", lambda tree: tree.write("own/file", b"x")),
        ("own", lambda tree: tree.move("own", "batch=1")),
    ],
)
def test_a_link_that_is_put_there_just_after_the_look_leads_nowhere(
    tmp_path: Path, path: str, work: Callable[[Tree], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    tree, other = LocalTree(f"{tmp_path}/lake"), tmp_path / "other" / "1-old"
    put(tree, path if path == "own" else f"{path}/1-old")
    other.mkdir(parents=True)
    (other / "file").write_bytes(b"mine")
    at = tree._at

    def swapped(found: str) -> Path:
        whole = at(found)
        (tmp_path / "lake" / path).rename(tmp_path / "away")
        (tmp_path / "lake" / path).symlink_to(other if path == "own" else other.parent)
        monkeypatch.setattr(tree, "_at", at)
        return whole

    monkeypatch.setattr(tree, "_at", swapped)
    with pytest.raises((SinkError, Refused)):
        work(tree)
    assert (other / "file").read_bytes() == b"mine"


def test_of_two_that_rename_to_a_name_at_once_one_does(tree: Tree) -> None:
    for turn in range(TURNS):
        put(tree, f"first-{turn}", b"first")
        put(tree, f"second-{turn}", b"second")
    both = threading.Barrier(2)

    def move_all(who: str) -> list[bool]:
        done = []
        for turn in range(TURNS):
            both.wait(60)
            try:
                tree.move(f"{who}-{turn}", f"batch={turn}")
            except (SinkError, OutcomeUnknown):
                done.append(False)
            else:
                done.append(True)
        return done

    with ThreadPoolExecutor(2) as threads:
        first, second = threads.map(move_all, ("first", "second"))
    assert first == [not each for each in second]
    for turn, won in enumerate(first):
        assert tree.read(f"batch={turn}/file") == (b"first" if won else b"second")
        assert tree.names(f"batch={turn}") == ["file"], "moved inside"
        assert ("second" if won else "first") + f"-{turn}" in tree.names("")


def test_a_name_that_is_taken_is_left_as_it_is(tree: Tree) -> None:
    put(tree, "batch=1", b"old")
    put(tree, "attempt")
    with pytest.raises(SinkError, match="nothing was written"):
        tree.move("attempt", "batch=1")
    assert (tree.read("batch=1/file"), tree.read("attempt/file")) == (b"old", b"text")
    with pytest.raises(SinkError):
        tree.move("missing", "batch=2")
    with pytest.raises((SinkError, Refused)):
        tree.move("attempt", "batch=1/file")
    assert sorted(tree.names("")) == ["attempt", "batch=1"]


def test_a_file_goes_into_a_folder_that_is_there_alone(tree: Tree) -> None:
    """Else an attempt that was deleted would come back without its rows."""
    with pytest.raises(SinkError, match="nothing was written"):
        tree.write("deleted/file", b"text")
    assert list(tree.names("")) == []
    put(tree, "folder", b"first")
    tree.write("folder/file", b"\x00second")
    assert tree.read("folder/file") == b"\x00second"


def test_what_is_missing_is_told(tree: Tree) -> None:
    assert tree.read("missing/file") is None
    with pytest.raises(SinkError):
        tree.names("missing")
    tree.delete("missing")
    put(tree, "folder/below")
    tree.delete("folder")
    assert list(tree.names("")) == []


def prepared(folder: str) -> Any:
    """Prepare a sink."""
    return Files(folder).prepare(MemoryStore("memory://"), Guarantee.EXACTLY_ONCE)


@pytest.mark.xdist_group("test_hdfs")
def test_hdfs_refuses_for_good_what_the_user_may_not_do(
    spark: SparkSession, hdfs_server: HDFSServer, tmp_path: Path
) -> None:
    """Whoever runs the NameNode may do anything there, so the user is another one."""
    assert spark.sparkContext is not None
    hdfs_server.make_folder(f"{tmp_path.name}/locked", "555")
    tree = open_hdfs(f"{hdfs_server.rpc}/{tmp_path.name}/locked")
    uri = tree._path("").toUri()
    tree._files = tree._files.get(uri, spark.sparkContext._jsc.hadoopConfiguration(), "guest")
    with pytest.raises(Refused, match=r"AccessControlException.*nothing was written"):
        tree.make("orders")


@pytest.fixture
def impatient(spark: SparkSession) -> Iterator[None]:
    """Let Hadoop's clients that are made from now on try to connect once."""
    jsc: Any = spark.sparkContext._jsc
    settings = jsc.hadoopConfiguration()
    given = {"ipc.client.connect.max.retries": "0", "fs.hdfs.impl.disable.cache": "true"}
    for name, value in given.items():
        settings.set(name, value)
    yield
    for name in given:
        settings.unset(name)


@pytest.mark.xdist_group("test_hdfs")
@pytest.mark.usefixtures("impatient")
def test_hdfs_that_is_away_is_told(hdfs_server: HDFSServer, tmp_path: Path) -> None:
    tree = open_hdfs(f"{hdfs_server.rpc}/{tmp_path.name}/lake")
    put(tree, "attempt")
    hdfs_server.kill()
    try:
        with pytest.raises(OutcomeUnknown, match=r"java\.io\.EOFException|ConnectException"):
            tree.move("attempt", "batch=1")
        with pytest.raises(SinkError, match="ConnectException"):
            tree.names("")
        with pytest.raises(SinkError, match="ConnectException"):
            prepared(tree.address)
    finally:
        hdfs_server.restart()
    tree.move("attempt", "batch=1")
    assert list(tree.names("")) == ["batch=1"]


def test_hdfs_is_refused_where_no_jvm_is_in_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyspark.SparkContext._active_spark_context", None)
    with pytest.raises(GuaranteeRefused, match="classic Spark"):
        prepared("hdfs://namenode:8020/data/orders")


@pytest.mark.parametrize("address", ["hdfs://nowhere.invalid:8020/orders"])
def test_an_address_that_is_wrong_is_refused(spark: SparkSession, address: str) -> None:
    assert spark.sparkContext is not None
    with pytest.raises(SettingsError, match="nothing was written"):
        prepared(address)
