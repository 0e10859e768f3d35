"""Checkpoints on HDFS and S3: the same commands, changes and safety as on a local folder."""

from __future__ import annotations

import getpass
import itertools
import json
import secrets
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from typer.testing import CliRunner

from checkpoints.queries import Queries, do, query_id, records
from checkpoints.written import A, B, Failing, Power, content, write
from offsetkeeper import open_store
from offsetkeeper.checkpoint import (
    Edit,
    Files,
    LocalFiles,
    apply,
    inspect,
    open_files,
    plan_convert,
    plan_move,
    plan_seed,
    plan_truncate,
    plan_undo,
    read_checkpoint,
    verify,
)
from offsetkeeper.checkpoint.files import ServerClock, ahead_s
from offsetkeeper.checkpoint.hdfs import HdfsFiles, open_hdfs
from offsetkeeper.cli.main import app
from offsetkeeper.clients.hdfs import WebHdfs
from offsetkeeper.core.environment import using
from offsetkeeper.core.offsets import Position, TopicPartition
from offsetkeeper.errors import Fenced, MissingExtra, Refused, SettingsError, StoreUnavailable, VersionConflict
from offsetkeeper.testing.clock import SetClock
from offsetkeeper.testing.hdfs import HDFSServer
from offsetkeeper.testing.kafka import KafkaServer
from offsetkeeper.testing.s3 import S3Server

Upload = Callable[[LocalFiles], str]
PLANS: dict[str, Callable[[Files], Edit]] = {
    "move": lambda files: plan_move(read_checkpoint(files), {A: 3, B: 99}),
    "truncate": lambda files: plan_truncate(read_checkpoint(files), 1, query_id="keep"),
    "convert": lambda files: plan_convert(read_checkpoint(files), 2, ["a"]),
}


@pytest.fixture(params=["hdfs", "s3"])
def url(request: pytest.FixtureRequest) -> str:
    """Where a checkpoint may be put."""
    name = secrets.token_hex(6)
    if request.param == "hdfs":
        hdfs: HDFSServer = request.getfixturevalue("hdfs_server")
        return hdfs.url(f"store/{name}/orders", user=getpass.getuser())
    s3: S3Server = request.getfixturevalue("s3_server")
    return s3.url(s3.create_bucket(), f"{name}/orders")


@pytest.fixture
def remote(url: str) -> Iterator[Files]:
    files = open_files(url)
    yield files
    files.close()


def put_all(source: Files, target: Files) -> None:
    """Copy a checkpoint as it is, checksums too."""
    for name in sorted(source.stamps(""), key=lambda each: each.endswith(".crc")):
        target.write(name, source.read(name) or b"")


def command(*arguments: str, of: str = "checkpoint") -> str:
    result = CliRunner().invoke(app, [of, *arguments])
    if result.exception is not None:
        raise result.exception
    return result.stdout


def test_the_commands_that_read_say_the_same_as_of_a_local_folder(remote: Files, url: str, tmp_path: Path) -> None:
    local = write(tmp_path / "orders", stateful=True)
    put_all(local, remote)
    for arguments in (["inspect"], ["inspect", "--json"], ["verify"], ["verify", "--json"], ["export"]):
        told = command(arguments[0], url, *arguments[1:])
        assert "s3cret" not in told
        assert told.replace(remote.address, local.address) == command(arguments[0], str(local.path), *arguments[1:])
    command("diff", url, "--against", str(local.path))
    store = f"sqlite:///{tmp_path}/offsets.db"
    assert (
        json.loads(command("export", url, "--to", store, "--group", "shop", "--execute", "--json"))["from"]
        == remote.address
    )
    stored = open_store(store).load("shop").positions
    assert {tp: at.offset for tp, at in stored.items()} == {A: 40, B: 40}
    told = command("export", url, "--to", store, "--group", "shop", "--overwrite", "--execute")
    assert "s3cret" not in told
    assert "query=query, checkpoint=checkpoint)  # checkpoint: Spark's" in told.splitlines()[-1]
    command("diff", url, "--store", store, "--group", "shop")
    remote.delete("commits/3")
    assert inspect(read_checkpoint(remote)).next.kind == "again"
    assert remote.names("commits") == [".0.crc", ".1.crc", ".2.crc", "0", "1", "2"]


def test_its_lag_is_told_and_its_offsets_are_copied(
    remote: Files, url: str, kafka_server: KafkaServer, topic: Callable[..., str], tmp_path: Path
) -> None:
    """As of any store; keys in the URL are shown to nobody."""
    name = topic(1)
    producer = Producer({"bootstrap.servers": kafka_server.bootstrap})
    for _ in range(5):
        producer.produce(name, b"x")
    assert producer.flush(30) == 0
    remote.write("metadata", b'{"id":"9c2b7f6e-5a43-4c7e-9a1d-0f4b6f3f2a11"}')
    remote.write("offsets/0", f'v1\n{{}}\n{{"{name}":{{"0":2}}}}'.encode())
    remote.write("commits/0", b'v1\n{"nextBatchWatermarkMs":0}')
    told = command("--checkpoint", url, "--brokers", kafka_server.bootstrap, "--json", of="lag")
    assert (json.loads(told)["records"], json.loads(told)["partitions"][0]["position"]) == (3, 2)
    source, store = open_store(f"checkpoint+{url}"), f"sqlite:///{tmp_path}/offsets.db"
    assert list(source.groups()) == ["orders"]
    assert "s3cret" not in told + repr(source) + source.address
    source.close()
    assert "s3cret" not in command("orders", "--store", f"checkpoint+{url}", "--to", store, "--execute", of="copy")
    assert open_store(store).load("orders").positions == {TopicPartition(name, 0): Position(2)}


@pytest.mark.parametrize("plan", PLANS)
def test_a_change_and_its_undo_do_the_same_as_in_a_local_folder(plan: str, remote: Files, tmp_path: Path) -> None:
    local = write(tmp_path / "orders", 3, stateful=plan == "truncate")
    put_all(local, remote)
    before = content(local)
    backup = do(remote, PLANS[plan](remote))
    do(local, PLANS[plan](local))
    assert remote.backups() == [backup]
    assert content(remote) == content(local) != before
    assert set(remote.stamps("")) == set(local.stamps(""))  # the checksums too
    assert verify(remote) == []
    do(remote, plan_undo(remote))
    assert content(remote) == before
    assert verify(remote) == []


def test_a_new_one_is_seeded_and_unseeded(remote: Files) -> None:
    do(remote, plan_seed(read_checkpoint(remote, may_be_new=True), {"0": {B: 7}}))
    assert content(remote) == {"sources/0/0": b'\0v1\n{"orders":{"1":7}}'}
    do(remote, plan_undo(remote))
    assert content(remote) == {}


def test_a_crash_anywhere_leaves_all_or_nothing_or_what_can_be_undone(remote: Files, tmp_path: Path) -> None:
    local = write(tmp_path / "orders", 1)
    put_all(local, remote)
    before = content(remote)
    for nth in itertools.count(1):
        failing = Failing(remote, nth, after=True)
        edit = plan_move(read_checkpoint(remote), {A: 3})
        try:
            apply(failing, edit, quiet_s=0, look_s=0)
        except Power:
            found = read_checkpoint(remote)
            assert bool(found.barrier) or content(remote) == before or found.fingerprint == edit.after
            assert [each.harmless for each in verify(remote)] == [False] * bool(found.barrier)
        if content(remote) != before:
            do(remote, plan_undo(remote))
        assert content(remote) == before
        if not failing.fired:
            break
    assert nth > 5


def test_a_checkpoint_written_to_lately_on_a_server_is_not_changed_unless_forced(
    remote: Files, url: str, tmp_path: Path
) -> None:
    put_all(write(tmp_path / "orders"), remote)
    before = content(remote)
    arguments = ["truncate", url, "--batch", "1", "--query-id", "new", "--execute"]
    with pytest.raises(Fenced, match="a query may be running"):
        command(*arguments)
    assert content(remote) == before
    assert remote.backups() == []
    assert f"Done. The backup is {remote.address}.backup-" in command(*arguments, "--force")
    assert read_checkpoint(remote).offsets == [0, 1]


def test_a_query_that_runs_is_found_also_where_this_machines_clock_is_ahead(
    remote: Files, url: str, tmp_path: Path
) -> None:
    put_all(write(tmp_path / "orders", 1), remote)
    edit = plan_move(read_checkpoint(remote), {A: 3})
    files = open_files(url)  # which has not seen the server's clock yet
    ahead = SetClock(lambda: time.time_ns() // 1_000_000 + 3_600_000)
    with using(ahead), pytest.raises(Fenced, match=r"was written \d+ s ago, less than 30 s"):
        apply(files, edit, look_s=0)
    files.close()


def test_what_a_query_writes_at_the_last_moment_is_not_written_over_on_a_server(
    remote: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It wakes up when the backup has been made, and plans a batch under the number of the barrier."""
    put_all(write(tmp_path / "orders"), remote)
    edit, log, create = plan_move(read_checkpoint(remote), {A: 3}), remote.read("offsets/3") or b"", remote.create

    def late(name: str, text: bytes) -> bool:
        remote.write(name, log)
        return create(name, text)

    monkeypatch.setattr(remote, "create", late)
    with pytest.raises(VersionConflict, match="nothing was changed"):
        do(remote, edit)
    assert remote.read("offsets/5") == log
    assert read_checkpoint(remote).commits == [0, 1, 2, 3]
    assert [name for name in remote.names("offsets") if name.endswith(".tmp")] == []


def test_spark_goes_on_on_hdfs_where_a_change_says(queries: Queries, hdfs_server: HDFSServer) -> None:
    """Written, moved, undone and run on where it lies."""
    conf = queries.spark.sparkContext._jsc.hadoopConfiguration()
    conf.set("dfs.client.block.write.locateFollowingBlock.initial.delay.ms", "5")  # else each file takes 0.3 s
    folder = f"store/{secrets.token_hex(6)}"
    path = f"{hdfs_server.rpc}/{folder}"
    assert max(queries.run(path)) == 2
    files = open_files(hdfs_server.url(folder, user=getpass.getuser()))
    assert verify(files) == []
    before = query_id(files)
    with pytest.raises(Fenced, match="a query may be running"):
        apply(files, plan_truncate(read_checkpoint(files), 0, query_id="keep"), look_s=0)
    do(files, plan_move(read_checkpoint(files), queries.at(1, 5)))
    do(files, plan_undo(files))
    assert queries.run(path) == {}
    do(files, plan_move(read_checkpoint(files), queries.at(1, 5)))
    found = queries.run(path)
    assert min(found) == 4
    assert sorted(row for rows in found.values() for row in rows) == records((0, 1, 6), (1, 5, 6))
    assert verify(files) == []
    assert query_id(files) == before
    files.close()


@pytest.mark.parametrize("kind", ["plain", "counting"])
def test_what_spark_has_written_is_changed_on_s3_and_run_on_from(
    kind: str, queries: Queries, s3_server: S3Server, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Copied there and back, as Spark needs more jars to write there itself."""
    files = open_files(s3_server.url(s3_server.create_bucket(), "checkpoints/orders"))
    put_all(LocalFiles(request.getfixturevalue(kind)), files)
    assert verify(files) == []
    before = content(files)
    do(files, plan_truncate(read_checkpoint(files), 0, query_id="new"))
    do(files, plan_undo(files))
    assert content(files) == before
    do(files, plan_truncate(read_checkpoint(files), 0, query_id="new"))
    back = LocalFiles(tmp_path / "back")
    put_all(files, back)
    files.close()
    state = kind == "counting"
    expected = {1: [(0, 4), (1, 4)], 2: [(0, 6), (1, 6)]}
    plain = {1: records((0, 2, 4), (1, 2, 4)), 2: records((0, 4, 6), (1, 4, 6))}
    assert queries.run(back.path, counting=state) == (expected if state else plain)


class Careless(BaseHTTPRequestHandler):
    """A server that lists nothing, and writes over what is there whatever is asked."""

    def do_PUT(self) -> None:
        """Take it."""
        self._answer(b"")

    def do_GET(self) -> None:
        """Say that nothing is there."""
        self._answer(b"<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>")

    def _answer(self, body: bytes) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.asked.append(f"{self.command} {self.path}")  # type: ignore[attr-defined]
        self.send_response(200)
        self.send_header("ETag", "x")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@contextmanager
def careless() -> Iterator[ThreadingHTTPServer]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Careless) as server:
        server.asked = []  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def test_a_server_that_would_write_over_a_query_is_refused_before_anything_is_changed() -> None:
    """A fake, as no server at hand is so old."""
    with careless() as server:
        files = open_files(
            f"s3://a:b@bucket/x/orders?endpoint_url=http://127.0.0.1:{server.server_port}&region=us-east-1"
        )
        edit = plan_seed(read_checkpoint(files, may_be_new=True), {"0": {A: 1}})
        with pytest.raises(Refused, match="ignores If-None-Match"):
            do(files, edit)
        files.close()
        written = [each for each in server.asked if each.startswith("PUT")]  # type: ignore[attr-defined]
    assert set(written) == {"PUT /bucket/x/orders.create-if-absent"}


def test_nothing_is_left_beside_the_checkpoint_but_backups(s3_server: S3Server, tmp_path: Path) -> None:
    bucket = s3_server.create_bucket()
    files = open_files(s3_server.url(bucket, "orders"))
    put_all(write(tmp_path / "orders", 1), files)
    backup = do(files, plan_move(read_checkpoint(files), {A: 3}))
    found = s3_server.client().list_objects_v2(Bucket=bucket)["Contents"]
    assert {each["Key"].split("/")[0] for each in found} == {"orders", f"orders.{backup}"}
    files.close()


def test_a_server_that_is_away_is_told(tmp_path: Path) -> None:
    for url in (
        "webhdfs://me@127.0.0.1:1/orders",
        "s3://a:b@bucket/orders?endpoint_url=http://127.0.0.1:1&region=us-east-1",
    ):
        files = open_files(url)
        with pytest.raises(StoreUnavailable, match="cannot connect"):
            read_checkpoint(files)
        files.close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("hdfs://namenode:8020/orders", "webhdfs://user@namenode:9870/path"),
        ("webhdfs://namenode:9870", "has no folder"),
        ("webhdfs://me:s3cret@namenode:9870/orders", "no password"),
        ("webhdfs://namenode:9870/orders?history=1", "unknown setting"),
        ("s3://bucket", "has no checkpoint"),
        ("s3a://bucket/", "has no checkpoint"),
        ("s3://s3cret@bucket/orders", "give both, s3://"),
    ],
)
def test_a_place_that_cannot_be_one_is_told(url: str, told: str) -> None:
    with pytest.raises(SettingsError, match=told) as caught:
        open_files(url)
    assert "s3cret" not in str(caught.value)


def test_a_library_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("offsetkeeper.checkpoint.hdfs", "offsetkeeper.clients.hdfs"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, "httpx", None)
    with pytest.raises(MissingExtra, match=r"webhdfs:// needs the library 'httpx': pip install 'offsetkeeper\[hdfs\]'"):
        open_files("webhdfs://me@namenode:9870/orders")


def test_the_name_that_hadoop_has_for_s3_is_the_same_place() -> None:
    assert open_files("s3a://bucket/a%20b/orders").address == "s3://bucket/a b/orders"


def test_files_are_as_old_as_they_are_by_the_clock_of_their_server() -> None:
    now = time.time()
    assert ahead_s(formatdate(now + 90, usegmt=True), now) in {89, 90}
    clock = ServerClock()
    assert clock.here(5) == 5
    clock.told(formatdate(time.time() + 3600, usegmt=True))
    clock.told(formatdate(0, usegmt=True))
    assert abs(clock.here(time.time() + 3600) - time.time()) < 5


@pytest.fixture
def on_hdfs(hdfs_server: HDFSServer) -> Iterator[HdfsFiles]:
    files = open_hdfs(hdfs_server.url(f"store/{secrets.token_hex(6)}/orders", user=getpass.getuser()))
    yield files
    files.close()


def test_a_large_file_of_the_state_is_backed_up_on_hdfs_and_put_back(on_hdfs: HdfsFiles) -> None:
    """RocksDB has files that are larger than what is read at once."""
    content = secrets.token_bytes(1 << 20) * 65 + b"end"
    on_hdfs.write("state/0/0/4.zip", content)
    on_hdfs.copy("state/0/0/4.zip", "", "backup-1")
    on_hdfs.delete("state/0/0/4.zip")
    on_hdfs.copy("state/0/0/4.zip", "backup-1", "")
    assert b"".join(on_hdfs._client.parts(on_hdfs._of("state/0/0/4.zip"), len(content))) == content
    assert on_hdfs.names("state/0/0") == ["4.zip"]


def test_a_file_on_hdfs_that_is_cut_while_it_is_copied_is_not_copied(
    on_hdfs: HdfsFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_hdfs.write("state/0/0/4.zip", b"some bytes")
    size = WebHdfs.size
    monkeypatch.setattr(WebHdfs, "size", lambda self, path: (size(self, path) or 0) + 1)
    with pytest.raises(StoreUnavailable, match="it has changed while it was copied, from 11 bytes"):
        on_hdfs.copy("state/0/0/4.zip", "", "backup-1")
    assert on_hdfs.backup("backup-1").names("state/0/0") == []
