"""Ledgers in nodes of ZooKeeper."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import quote

from golden.medium import Medium
from golden.values import readable, written
from offsetkeeper.testing.zookeeper import ZooKeeperServer


class ZooKeeperMedium(Medium):
    """A path and all below it."""

    def __init__(self, server: ZooKeeperServer) -> None:
        self._server = server
        self._root = f"/golden-{secrets.token_hex(6)}"
        self.url = server.url(self._root[1:])

    def dump(self) -> Any:
        """Read every node."""
        nodes = self._ask(lambda client: dict(_nodes(client, self._root)))
        return {path.removeprefix(self._root): readable(data) for path, data in nodes.items()}

    def restore(self, content: Any) -> None:
        """Make every node; parents are before their children."""

        def create(client: Any) -> None:
            for path, value in content.items():
                client.create(self._root + path, written(value))

        self._ask(create)

    def positions(self, group: str) -> Mapping[tuple[str, int], int]:
        """Read the nodes that people know."""
        name = "".join(quote(each) if each in {"%", "🛒"} and "🛒" in group else each for each in group)
        parent = f"{self._root}/consumers/{name}/offsets"
        nodes = self._ask(lambda client: dict(_nodes(client, parent)))
        rows = {tuple(path.removeprefix(f"{parent}/").split("/")): data for path, data in nodes.items()}
        return {(row[0], int(row[1])): int(data) for row, data in rows.items() if len(row) == len(("topic", "number"))}

    def _ask(self, question: Callable[[Any], Any]) -> Any:
        client = self._server.client()
        try:
            return question(client)
        finally:
            client.stop()
            client.close()


def _nodes(client: Any, path: str) -> Iterator[tuple[str, bytes]]:
    yield path, client.get(path)[0]
    for child in sorted(client.get_children(path)):
        yield from _nodes(client, f"{path}/{child}")
