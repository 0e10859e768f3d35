"""The permissions on the page are enough for a Thrift server's user, and each is needed; who lacks one is told."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator
from typing import Any

import happybase  # it makes the module Hbase_thrift
import pytest
from Hbase_thrift import IOError as ThriftError
from thriftpy2.thrift import TException

from fixtures.rights import Row, rows
from fixtures.rights_tasks import each_right, granted, keeps, looks, name_of
from offsetkeeper.errors import Refused
from offsetkeeper.testing.hbase import HBaseServer
from offsetkeeper.testing.process import ServerProcess
from offsetkeeper.testing.server import free_port, wait_until

ROWS = rows("HBase")
NEW = "store that makes its tables"
ACTIONS = {"R": "action=READ", "W": "action=WRITE", "C": "action=CREATE"}
DOES: dict[str, Callable[[str], None]] = {
    NEW: keeps,
    "store, tables are there": keeps,
    "store, only looked at: `show`, `lag`, `history`, `groups`": looks,
}


@pytest.fixture(scope="module")
def port(hbase_server: HBaseServer) -> Iterator[int]:
    """Port of a second Thrift server, of the user `shop`."""
    port, folder = free_port(), hbase_server.folder / "shop"
    folder.mkdir()
    command = hbase_server._java("256m", "thrift.ThriftServer", "start", "-p", str(port), "-b", "127.0.0.1")
    process = ServerProcess(command, folder=folder, environment={**os.environ, "HADOOP_USER_NAME": "shop"})

    def serves() -> bool:
        try:
            happybase.Connection("127.0.0.1", port, timeout=20_000).close()
        except (TException, OSError):
            return False
        return True

    try:
        wait_until(serves, "a Thrift server of shop serves", hbase_server.start_limit)
        yield port
    finally:
        process.kill()


@pytest.fixture
def owner(hbase_server: HBaseServer) -> Iterator[Any]:
    """A bare client that may do everything."""
    client = hbase_server.client()
    yield client
    client.close()


@pytest.fixture
def shop(port: int) -> Iterator[Any]:
    """A bare client of `shop`."""
    client = happybase.Connection("127.0.0.1", port, timeout=20_000)
    yield client
    client.close()


@pytest.fixture
def try_without(hbase_server: HBaseServer, port: int, owner: Any, shop: Any) -> Callable[..., None]:
    """`try_without(task, lacking)` does a task with its rights but for one, all of them by default."""

    def work(task: str, lacking: tuple[Row, str] | None = None) -> None:
        table = f"rights_{secrets.token_hex(4)}"
        if task != NEW:
            keeps(f"{hbase_server.url()}?table={table}", group="shop" if DOES[task] is looks else "other")
        letters: dict[str, str] = {}
        for right, on in granted(ROWS, task, lacking):
            name = on.replace("stream_kafka_offsets", table)
            letters[name] = letters.get(name, "") + right
        permit(owner, shop, letters)
        DOES[task](f"hbase://127.0.0.1:{port}/?table={table}")

    return work


def permit(owner: Any, shop: Any, letters: dict[str, str]) -> None:
    """Give `shop` these permissions, and no other.

    HBase goes by its own copy, which it changes in the order of the table: `ready` comes last, and is then tried.
    """
    permissions = owner.table("hbase:acl")
    for name in sorted((name for name, _ in permissions.scan()), key=lambda name: name == b"ready"):
        permissions.delete(name, [b"l:shop"])
    wait_until(lambda: not may_read(shop), "the permissions of shop were taken away", 30)
    for name, letter in {**letters, "ready": "R"}.items():
        permissions.put(name.encode(), {b"l:shop": letter.encode()})
    wait_until(lambda: may_read(shop), "shop had its permissions", 30)


def may_read(shop: Any) -> bool:
    try:
        shop.table("ready").row(b"row")
    except ThriftError:
        return False
    return True


def test_the_page_has_each_task() -> None:
    assert {row.task for row in ROWS} == DOES.keys()


@pytest.mark.parametrize("task", DOES)
def test_the_permissions_on_the_page_are_enough(
    task: str, try_without: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    try_without(task)
    assert caplog.text == ""


@pytest.mark.parametrize("lacking", each_right(ROWS), ids=name_of)
def test_without_a_permission_of_the_page_it_is_told(
    lacking: tuple[Row, str], try_without: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    row, right = lacking
    told = ""
    try:
        try_without(row.task, lacking)
    except Refused as error:
        told = str(error)
    told += caplog.text
    assert row.without in told
    assert ACTIONS[right] in told
