"""The rights on the page are enough for a user of ZooKeeper, and each is needed; who lacks one is told."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kazoo.security import make_digest_acl

from fixtures.rights import rows
from fixtures.rights_suite import Lacking, RightsSuite, TryWithout
from fixtures.rights_tasks import granted, keeps, looks
from offsetkeeper.testing.zookeeper import ZooKeeperServer

SECRET = RightsSuite.secret
OWNER = make_digest_acl("owner", "0wner", all=True)
LETTERS = {"r": "read", "w": "write", "c": "create"}
HEADING = "ZooKeeper"
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


class TestZooKeeper(RightsSuite):
    """A user who is known by a digest."""

    headings = (HEADING,)
    tasks = DOES

    @pytest.fixture
    def try_without(self, zookeeper_server: ZooKeeperServer, owner: Any) -> TryWithout:
        """See `RightsSuite`."""

        def work(_: str, task: str, lacking: Lacking | None) -> None:
            nodes = Nodes(zookeeper_server, owner)
            if task != NEW:
                keeps(nodes.url("owner", "0wner"))
            nodes.permit(granted(rows(HEADING), task, lacking))
            DOES[task](nodes.url("shop", SECRET))

        return work
