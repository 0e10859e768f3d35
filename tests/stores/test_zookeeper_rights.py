"""The rights on the page are enough for a user of ZooKeeper, and each is needed; who lacks one is told."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kazoo.security import make_digest_acl

from fixtures.rights import Row, rows
from fixtures.rights_tasks import each_right, granted, keeps, looks, name_of
from offsetkeeper.errors import Refused
from offsetkeeper.testing.zookeeper import ZooKeeperServer

SECRET = "correct-horse-battery"
OWNER = make_digest_acl("owner", "0wner", all=True)
LETTERS = {"r": "read", "w": "write", "c": "create"}
ROWS = rows("ZooKeeper")
NEW = "store, new groups"
DOES: dict[str, Callable[[str], None]] = {
    NEW: keeps,
    "store, a group of another user": keeps,
    "store, only looked at: `show`, `lag`, `history`, `groups`": looks,
}


class Nodes:
    """The nodes below a path of their own, as their owner sees them."""

    def __init__(self, server: ZooKeeperServer, client: Any) -> None:
        self._server, self._client = server, client
        self._root = f"/rights-{secrets.token_hex(6)}"
        client.ensure_path(f"{self._root}/consumers", acl=[OWNER])

    def url(self, user: str, password: str) -> str:
        """Return the URL of the store for a user."""
        return self._server.url(self._root[1:]).replace("://", f"://{user}:{password}@")

    def permit(self, rights: list[tuple[str, str]]) -> None:
        """Give `shop` these rights, and nobody but the owner any other."""
        self._set(self._root, [OWNER])
        for on in {on for _, on in rights}:
            letters = {LETTERS[right]: True for right, each in rights if each == on}
            path, _, below = on.replace("`", "").partition(" and ")
            granted_to = [OWNER, make_digest_acl("shop", SECRET, **letters)]
            self._set(self._root + path, granted_to) if below else self._client.set_acls(self._root + path, granted_to)

    def _set(self, path: str, acl: list[Any]) -> None:
        self._client.set_acls(path, acl)
        for name in self._client.get_children(path):
            self._set(f"{path}/{name}", acl)


@pytest.fixture(scope="module")
def owner(zookeeper_server: ZooKeeperServer) -> Iterator[Any]:
    """A bare client that may do everything with the tests' nodes."""
    client = zookeeper_server.client(auth_data=[("digest", "owner:0wner")])
    yield client
    client.stop()
    client.close()


@pytest.fixture
def try_without(zookeeper_server: ZooKeeperServer, owner: Any) -> Callable[..., None]:
    """`try_without(task, lacking)` does a task with its rights but for one, all of them by default."""

    def work(task: str, lacking: tuple[Row, str] | None = None) -> None:
        nodes = Nodes(zookeeper_server, owner)
        if task != NEW:
            keeps(nodes.url("owner", "0wner"))
        nodes.permit(granted(ROWS, task, lacking))
        DOES[task](nodes.url("shop", SECRET))

    return work


def test_the_page_has_each_task() -> None:
    assert {row.task for row in ROWS} == DOES.keys()


@pytest.mark.parametrize("task", DOES)
def test_the_rights_on_the_page_are_enough(task: str, try_without: Callable[..., None]) -> None:
    try_without(task)


@pytest.mark.parametrize("lacking", each_right(ROWS), ids=name_of)
def test_without_a_right_of_the_page_it_is_told(lacking: tuple[Row, str], try_without: Callable[..., None]) -> None:
    row, _ = lacking
    with pytest.raises(Refused) as found:
        try_without(row.task, lacking)
    assert row.without in str(found.value)
    assert SECRET not in str(found.value)
