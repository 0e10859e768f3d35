"""The command init: makes a store, as only the user can tell a new folder from one that is not mounted."""

from __future__ import annotations

from offsetkeeper.cli import options
from offsetkeeper.cli.output import say
from offsetkeeper.stores.folder import FolderStore


def init(*, store: options.Store = "") -> None:
    """Make a folder a store, before its first use. Other stores make what they need at the first start of a run.

    The folder is created if it is missing; the folder above it must exist.

    Example: offsetkeeper init --store file:///data/offsets
    """
    with options.open_store(options.settings(store)) as opened:
        if not isinstance(opened, FolderStore):
            say(f"{opened.address} needs no init: a run makes what it needs at its first start. Nothing was changed")
            return
        new = opened.init()
        say(f"{opened.address} {'is a store now' if new else 'is a store already'}")
