"""How long an answer may keep its reader waiting.

The timeouts of client libraries are for each read of a socket, so that a server that sends a byte now and then holds
them for ever.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any, TypeVar

from offsetkeeper.core import environment

T = TypeVar("T")
LEAST = 256 << 10
"""Bytes in a second: an answer that comes faster may take as long as it is large."""


class Patience:
    """The time that is left to wait for an answer: at most the timeout; waiting uses it up, bytes that come add to it.

    Only waiting counts, not what is done between reads. A single read is limited by its socket.

    Args:
        seconds: the timeout; infinity for none.
    """

    def __init__(self, seconds: float) -> None:
        self.begin(seconds)

    def begin(self, seconds: float) -> None:
        """Begin to wait for another answer."""
        self._most = self._left = seconds

    def read(self, read: Callable[[T], Any], wanted: T) -> Any:
        """Read a part of the answer: return what `read` returns, bytes or their number.

        Raises:
            TimeoutError: the answer comes too slowly.
        """
        if self._left <= 0:
            raise TimeoutError("the answer comes too slowly")
        began = environment.monotonic()
        came = read(wanted)
        size = came if isinstance(came, int) else len(came)
        self._left = min(self._most, self._left + size / LEAST - (environment.monotonic() - began))
        return came


class PatientFile(io.RawIOBase):
    """A socket's file without a buffer, of which reads end by a `Patience`.

    Args:
        file: of the socket.
        patience: for the answers in it.
    """

    def __init__(self, file: io.RawIOBase, patience: Patience) -> None:
        super().__init__()
        self._file, self._patience = file, patience

    def readable(self) -> bool:
        """See the base."""
        return True

    def readinto(self, buffer: Any) -> int:
        """See the base."""
        return int(self._patience.read(self._file.readinto, buffer))

    def close(self) -> None:
        """See the base."""
        self._file.close()
        super().close()
