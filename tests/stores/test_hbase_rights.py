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

from fixtures.rights import rows
from fixtures.rights_suite import Lacking, RightsSuite, TryWithout
from fixtures.rights_tasks import granted, keeps, looks
from offsetkeeper.testing.hbase import HBaseServer
from offsetkeeper.testing.process import ServerProcess
from offsetkeeper.testing.server import free_port, wait_until

HEADING = "HBase"
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


class TestHBase(RightsSuite):
    """A user of HBase."""

    headings = (HEADING,)
    tasks = DOES
    logged = True

    @pytest.fixture
    def try_without(self, hbase_server: HBaseServer, port: int, owner: Any, shop: Any) -> TryWithout:
        """See `RightsSuite`."""

        def work(_: str, task: str, lacking: Lacking | None) -> None:
            table = f"rights_{secrets.token_hex(4)}"
            if task != NEW:
                keeps(f"{hbase_server.url()}?table={table}", group="shop" if DOES[task] is looks else "other")
            letters: dict[str, str] = {}
            for right, on in granted(rows(HEADING), task, lacking):
                name = on.replace("stream_kafka_offsets", table)
                letters[name] = letters.get(name, "") + right
            permit(owner, shop, letters)
            DOES[task](f"hbase://127.0.0.1:{port}/?table={table}")

        return work

    def told(self, right: str) -> tuple[str, ...]:
        """See `RightsSuite`."""
        return (ACTIONS[right],)
