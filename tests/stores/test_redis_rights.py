"""The rights on the page are enough for a user of Redis, and each of them is needed; who lacks one is told."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from contextlib import closing

import pytest
import redis

from fixtures.rights import rows
from fixtures.rights_suite import Lacking, RightsSuite, TryWithout
from fixtures.rights_tasks import each_right
from offsetkeeper import Ledger, OffsetRange, Position, TopicPartition, open_store
from offsetkeeper.core.store import Store
from offsetkeeper.testing.redis import RedisServer

ORDERS = TopicPartition("orders", 0)
STORE, TTL = "store", "store with `?ttl=`, beside the store's rights"
HEADING = "Redis"
ROWS = rows(HEADING)


def keeps(store: Store, group: str) -> None:
    ledger = Ledger(store, group)
    ledger.acquire("start")
    ledger.place({ORDERS: Position(0)})
    batch = ledger.batch([OffsetRange(*ORDERS, 0, 10)])
    ledger.begin(batch)
    ledger.commit(batch)
    assert store.load(group).positions[ORDERS].offset == 10


def looks(store: Store, group: str) -> None:
    assert store.load(group).positions[ORDERS].offset == 10
    assert store.history(group)[0].event == "commit"


def lists(store: Store, group: str) -> None:
    assert group in store.groups()


DOES: dict[str, Callable[[Store, str], None]] = {
    STORE: keeps,
    TTL: keeps,
    "store, only looked at: `show`, `lag`, `history`": looks,
    "`groups`": lists,
}


def try_without(server: RedisServer, task: str, lacking: Lacking | None) -> None:
    group = secrets.token_hex(6)
    with redis.Redis.from_url(server.url()) as admin:
        if DOES[task] is not keeps:
            with closing(open_store(server.url())) as store:
                keeps(store, group)
        of = (STORE, TTL) if task == TTL else (task,)
        rights = [right for row, right in each_right(ROWS) if row.task in of and (row, right) != lacking]
        admin.execute_command("ACL", "SETUSER", group, "reset", "on", ">s3cret", *rights)
        admin.script_flush()
    url = server.url().replace("redis://", f"redis://{group}:s3cret@") + ("?ttl=1000" if task == TTL else "")
    with closing(open_store(url)) as store:
        DOES[task](store, group)


class TestRedis(RightsSuite):
    """A user with an access list."""

    headings = (HEADING,)
    tasks = DOES
    secret = "s3cret"

    @pytest.fixture
    def try_without(self, redis_server: RedisServer) -> TryWithout:
        """See `RightsSuite`."""
        return lambda _, task, lacking: try_without(redis_server, task, lacking)

    def told(self, _right: str) -> tuple[str, ...]:
        """See `RightsSuite`."""
        return ("The page on rights lists what is needed",)
