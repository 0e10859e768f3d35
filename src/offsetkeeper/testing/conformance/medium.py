"""What the author of a store tells the suites: how to open it, and how to reach its medium without it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from typing import ClassVar

import pytest

from offsetkeeper.core.ledger import Ledger
from offsetkeeper.core.model import TopicPartition
from offsetkeeper.core.store import Store
from offsetkeeper.stores import open_store

THOROUGH = int(os.environ.get("OFFSETKEEPER_THOROUGH", "1"))


class Medium:
    """What all suites need.

    Attributes:
        rows_are_positions: whether the rows that other programs know are the positions themselves, so that an edit is a
            conflict. Otherwise they are a copy, and each change publishes it anew.
    """

    rows_are_positions: ClassVar[bool] = True

    def opener(self) -> Callable[[str], Store]:
        """Return the function that opens a store by its URL; other processes must be able to import it."""
        return open_store

    @pytest.fixture
    def url(self) -> str:
        """Return the URL of an empty medium, new for each test."""
        raise NotImplementedError

    def read_positions(self, url: str, group: str) -> Mapping[TopicPartition, int]:
        """Return the offsets that another program finds for the group."""
        raise NotImplementedError

    def write_position(self, url: str, group: str, tp: TopicPartition, offset: int | None) -> None:
        """Write an offset as another program does, new or over the one there; None deletes it."""
        raise NotImplementedError

    @pytest.fixture
    def store(self, url: str) -> Iterator[Store]:
        """Open the store under test."""
        store = self.opener()(url)
        yield store
        store.close()


def with_setting(url: str, setting: str) -> str:
    """Return the URL with one more setting in its query."""
    return f"{url}{'&' if '?' in url else '?'}{setting}"


def ledger_of(store: Store, group: str = "orders") -> Ledger:
    """Return a ledger that waits for a store no longer than a test should."""
    return Ledger(store, group, patience_s=60)
