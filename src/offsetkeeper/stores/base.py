"""What all stores here have in common."""

from __future__ import annotations

from offsetkeeper.core.store import Ability
from offsetkeeper.stores.settings import StoreUrl


class BaseStore:
    """A store that commits, fences and keeps a history.

    Args:
        url: as it was read.
    """

    abilities = frozenset({Ability.COMMIT, Ability.FENCE, Ability.HISTORY})

    def __init__(self, url: StoreUrl) -> None:
        self.address = url.address
        self._settings = url.settings

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.address!r})"
