"""The rights on the page are enough for a user of Redis, and each of them is needed; who lacks one is told."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from contextlib import closing

import pytest
import redis

from fixtures.rights import rows
from offsetkeeper import Ledger, OffsetRange, Position, TopicPartition, open_store
from offsetkeeper.core.store import Store
from offsetkeeper.errors import Refused
from offsetkeeper.testing.redis import RedisServer

ORDERS = TopicPartition("orders", 0)
STORE, TTL = "store", "store with `?ttl=`, beside the store's rights"
ROWS = rows("Redis")
RIGHTS = {
    task: [right for row in ROWS if row.task == task for right in row.words[0].split(", ")]
    for task in dict.fromkeys(row.task for row in ROWS)
}
EACH = [(row.task, right, row.without) for row in ROWS for right in row.words[0].split(", ")]


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


def try_without(server: RedisServer, task: str, lacking: str = "") -> None:
    """Do a task with its rights but for one, all of them by default."""
    group = secrets.token_hex(6)
    with redis.Redis.from_url(server.url()) as admin:
        if DOES[task] is not keeps:
            with closing(open_store(server.url())) as store:
                keeps(store, group)
        every = [*RIGHTS[task], *(RIGHTS[STORE] if task == TTL else [])]
        rights = [right for right in every if right != lacking]
        admin.execute_command("ACL", "SETUSER", group, "reset", "on", ">s3cret", *rights)
        admin.script_flush()
    url = server.url().replace("redis://", f"redis://{group}:s3cret@") + ("?ttl=1000" if task == TTL else "")
    with closing(open_store(url)) as store:
        DOES[task](store, group)


def test_the_page_has_each_task() -> None:
    assert RIGHTS.keys() == DOES.keys()


@pytest.mark.parametrize("task", RIGHTS)
def test_the_rights_on_the_page_are_enough(task: str, redis_server: RedisServer) -> None:
    try_without(redis_server, task)


@pytest.mark.parametrize(("task", "right", "told"), EACH)
def test_without_a_right_of_the_page_it_is_told(task: str, right: str, told: str, redis_server: RedisServer) -> None:
    with pytest.raises(Refused) as found:
        try_without(redis_server, task, right)
    assert told in str(found.value)
    assert "The page on rights lists what is needed" in str(found.value)
