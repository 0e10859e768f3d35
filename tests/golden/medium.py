"""What a golden ledger is put into, and read from, without the store."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any


class Medium(ABC):
    """An empty place for one store's ledgers, reached by the client that its server comes with.

    Attributes:
        url: of the store there.
    """

    url: str

    @abstractmethod
    def dump(self) -> Any:
        """Return all that is there as JSON, the same for each place with the same content."""

    @abstractmethod
    def restore(self, content: Any) -> None:
        """Put what `dump` returned into the empty place."""

    def close(self) -> None:
        """Give connections back."""
        return

    @abstractmethod
    def positions(self, group: str) -> Mapping[tuple[str, int], int]:
        """Return the offsets that other programs find, by topic and partition."""
