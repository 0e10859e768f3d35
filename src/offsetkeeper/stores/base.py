"""What all stores have in common: an address, settings, abilities."""

from __future__ import annotations

from offsetkeeper.clients.url import ClientUrl
from offsetkeeper.core.store import Ability


class BaseStore:
    """A store that commits, fences and keeps a history.

    Args:
        url: the parsed URL.
    """

    abilities = frozenset({Ability.COMMIT, Ability.FENCE, Ability.HISTORY})

    def __init__(self, url: ClientUrl) -> None:
        self.address = url.address
        self._settings = url.settings

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.address!r})"
