"""Connections that are kept between requests."""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Generic, TypeVar

from offsetkeeper.errors import OutcomeUnknown, StoreUnavailable

C = TypeVar("C")
# What client libraries raise, beside their own errors, for an answer that makes no sense.
SENSELESS = (
    *(ValueError, LookupError, TypeError, AttributeError, ArithmeticError, AssertionError, EOFError, struct.error),
    *(MemoryError, RecursionError),
)
Lost = type[StoreUnavailable] | type[OutcomeUnknown]  # the error of a request whose answer was lost


def senseless(address: str, error: BaseException | None, check: str) -> str:
    """Return the message for an answer of another kind. It shows nothing of the answer, which may have any content.

    Args:
        address: of the store.
        error: what reading the answer raised.
        check: what to check.
    """
    return f"{address}: the answer makes no sense ({type(error).__name__}). Check {check}"


class Pool(Generic[C]):
    """Connections of one store, as many as are in use at the same time. Any thread may borrow one.

    Args:
        connect: opens a connection.
        close: closes a connection, whatever state it is in.
        usable: whether a kept connection can be lent; the server may have closed it meanwhile.
        clean: whether a returned connection can be kept. It gets the error that the borrower raised, or None.
    """

    def __init__(
        self,
        connect: Callable[[], C],
        close: Callable[[C], object],
        *,
        usable: Callable[[C], bool] = lambda _: True,
        clean: Callable[[C, BaseException | None], bool] = lambda _, error: error is None,
    ) -> None:
        self._connect = connect
        self._close = close
        self._usable = usable
        self._clean = clean
        self._idle = deque[C]()  # its operations are atomic, so it needs no lock

    @contextmanager
    def lend(self) -> Iterator[C]:
        """Lend a kept connection, the last used one first, or a new one. No other borrower has it meanwhile.

        Raises:
            Exception: an error of `connect` or `usable`.
        """
        connection = self._take()
        try:
            yield connection
        except BaseException as error:
            self._give_back(connection, error)
            raise
        self._give_back(connection, None)

    def sweep(self) -> None:
        """Close the connections that are not lent and cannot be lent any more.

        Raises:
            Exception: an error of `usable`.
        """
        usable = [connection for connection in self._kept() if self._is_usable(connection)]
        self._idle.extend(reversed(usable))

    def close(self) -> None:
        """Close the connections that are not lent. Lent connections are kept when they come back."""
        for connection in self._kept():
            self._close(connection)

    def _take(self) -> C:
        for connection in self._kept():
            if self._is_usable(connection):
                return connection
        return self._connect()

    def _kept(self) -> Iterator[C]:
        """Yield the kept connections, the last used one first, and take each out of the pool."""
        with suppress(IndexError):  # another thread may take the last one at any time
            while True:
                yield self._idle.pop()

    def _is_usable(self, connection: C) -> bool:
        usable = False
        try:
            usable = self._usable(connection)
        finally:
            if not usable:
                self._close(connection)
        return usable

    def _give_back(self, connection: C, error: BaseException | None) -> None:
        if self._clean(connection, error):
            self._idle.append(connection)
        else:
            self._close(connection)
