"""The modes on the page are enough for a user of HDFS, and each letter is needed; who lacks one is told."""

from __future__ import annotations

import getpass
import secrets
from collections.abc import Callable, Iterator

import httpx
import pytest

from fixtures.rights import rows
from fixtures.rights_suite import Lacking, RightsSuite, TryWithout
from fixtures.rights_tasks import LETTERS, granted, keeps, looks
from offsetkeeper.testing.hdfs import HDFSServer

OWNER = getpass.getuser()  # who runs HDFS, and so may do anything
HEADING = "HDFS: `webhdfs://`"
NEW = "store, new groups"
DOES: dict[str, Callable[[str], None]] = {
    NEW: keeps,
    "store, a group of another user": keeps,
    "store, only looked at: `show`, `lag`, `history`, `groups`": looks,
}


class Folder:
    """A folder of HDFS, that of its owner."""

    def __init__(self, server: HDFSServer, client: httpx.Client) -> None:
        self._client = client
        self._path = f"rights-{secrets.token_hex(6)}"
        self._place = f"{server.http}/webhdfs/v1/{self._path}"
        server.make_folder(self._path, "700")

    def url(self, server: HDFSServer, user: str) -> str:
        """Return the URL of the store for a user."""
        return server.url(self._path, user=user)

    def permit(self, rights: list[tuple[str, str]]) -> None:
        """Set the modes for all that are not the owner."""
        letters: dict[str, int] = {}
        for right, word in rights:
            for path in self._on(word):
                letters[path] = letters.get(path, 0) | LETTERS[right]
        for path in {"", *self._names("shop"), *self._names(""), *letters}:
            mode = {"op": "SETPERMISSION", "permission": f"70{letters.get(path, 0)}", "user.name": OWNER}
            self._client.put(f"{self._place}/{path}", params=mode).raise_for_status()

    def _on(self, word: str) -> list[str]:
        named = {"the folder": [""], "shop": ["shop"], ".tmp": [".tmp"], "the group's files": self._names("shop")}
        return named[word]

    def _names(self, folder: str) -> list[str]:
        answer = self._client.get(f"{self._place}/{folder}", params={"op": "LISTSTATUS", "user.name": OWNER})
        found = answer.json()["FileStatuses"]["FileStatus"] if answer.is_success else []
        return [f"{folder}/{each['pathSuffix']}".lstrip("/") for each in found]


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    """A bare client."""
    with httpx.Client(timeout=20) as client:
        yield client


@pytest.fixture(scope="module")
def begun(hdfs_server: HDFSServer, client: httpx.Client) -> Folder:
    """A folder in which its owner has begun a group, for those who may not write: to begin one takes a second."""
    folder = Folder(hdfs_server, client)
    keeps(folder.url(hdfs_server, OWNER))
    return folder


class TestHDFS(RightsSuite):
    """A user of HDFS."""

    headings = (HEADING,)
    tasks = DOES

    @pytest.fixture
    def try_without(self, hdfs_server: HDFSServer, client: httpx.Client, begun: Folder) -> TryWithout:
        """See `RightsSuite`."""

        def work(_: str, task: str, lacking: Lacking | None) -> None:
            folder = begun if lacking and task != NEW else Folder(hdfs_server, client)
            if folder is not begun and task != NEW:
                keeps(folder.url(hdfs_server, OWNER))
            folder.permit(granted(rows(HEADING), task, lacking))
            DOES[task](folder.url(hdfs_server, "shop"))

        return work
