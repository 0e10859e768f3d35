"""Connections are lent to one borrower at a time, kept, and closed once they are of no more use."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from random import Random

import pytest

from offsetkeeper.clients.pool import Pool


class Connection:
    """Counts who uses it."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.closed = 0
        self.borrowers = 0
        self.stale = False

    def close(self) -> None:
        """Close."""
        self.closed += 1


class Server:
    """Makes connections.

    Attributes:
        opened: all there were, in order.
    """

    def __init__(self) -> None:
        self.opened: list[Connection] = []
        self._numbers = count()

    def connect(self) -> Connection:
        """Return a new one."""
        self.opened.append(Connection(next(self._numbers)))
        return self.opened[-1]

    def closed(self) -> list[int]:
        """Return how often each was closed."""
        return [each.closed for each in self.opened]


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def pool(server: Server) -> Pool[Connection]:
    return Pool(server.connect, Connection.close)


def test_nothing_is_opened_before_it_is_needed(server: Server, pool: Pool[Connection]) -> None:
    assert server.opened == []
    pool.close()
    with pool.lend() as connection:
        assert server.opened == [connection]


def test_a_connection_is_kept_and_lent_again(server: Server, pool: Pool[Connection]) -> None:
    for _ in range(3):
        with pool.lend():
            pass
    assert server.closed() == [0]


def test_as_many_are_opened_as_are_in_use_at_once(server: Server, pool: Pool[Connection]) -> None:
    for _ in range(2):
        with pool.lend() as one, pool.lend() as two:
            assert one is not two
    assert server.closed() == [0, 0]


def test_a_connection_whose_borrower_failed_is_closed(server: Server, pool: Pool[Connection]) -> None:
    """Whatever the error was; it comes out as it is."""
    for number, kind in enumerate((ValueError, KeyboardInterrupt, GeneratorExit)):
        with pytest.raises(kind), pool.lend():
            raise kind
        assert server.closed() == [1] * (number + 1)
    with pool.lend() as connection:
        assert connection.number == 3


def test_the_store_says_which_come_back_clean(server: Server) -> None:
    told: list[BaseException | None] = []

    def clean(connection: Connection, error: BaseException | None) -> bool:
        told.append(error)
        return connection.number == 0

    pool = Pool(server.connect, Connection.close, clean=clean)
    error = ValueError()
    with pytest.raises(ValueError), pool.lend():  # noqa: PT011 - the one below
        raise error
    with pool.lend(), pool.lend():
        pass
    assert told == [error, None, None]
    assert server.closed() == [0, 1]


def test_a_kept_connection_that_is_of_no_use_any_more_is_closed(server: Server) -> None:
    pool = Pool(server.connect, Connection.close, usable=lambda kept: not kept.stale)
    with pool.lend(), pool.lend(), pool.lend():
        pass
    server.opened[1].stale = server.opened[0].stale = True
    with pool.lend() as one, pool.lend() as two:
        assert (one.number, two.number) == (2, 3)
    assert server.closed() == [1, 1, 0, 0]


def test_a_sweep_closes_what_is_of_no_use_any_more_and_keeps_the_rest_in_its_order(server: Server) -> None:
    pool = Pool(server.connect, Connection.close, usable=lambda kept: not kept.stale)
    with pool.lend() as one, pool.lend() as two, pool.lend() as three:
        pass
    two.stale = True
    pool.sweep()
    assert [each.closed for each in (one, two, three)] == [0, 1, 0]
    with pool.lend() as first, pool.lend() as second:
        assert [first, second] == [one, three]


def test_a_kept_connection_that_cannot_be_looked_at_is_closed(server: Server) -> None:
    def usable(_: Connection) -> bool:
        raise OSError

    pool = Pool(server.connect, Connection.close, usable=usable)
    with pool.lend():
        pass
    with pytest.raises(OSError), pool.lend():  # noqa: PT011 - the one above
        pass
    assert server.closed() == [1]
    with pool.lend() as connection:
        assert connection.number == 1


def test_a_connection_that_cannot_be_opened_leaves_nothing_behind() -> None:
    def connect() -> Connection:
        raise OSError

    pool = Pool(connect, Connection.close)
    with pytest.raises(OSError), pool.lend():  # noqa: PT011 - the one above
        pass
    pool.close()


def test_to_close_closes_what_is_kept_and_leaves_what_is_lent(server: Server, pool: Pool[Connection]) -> None:
    """The pool can be used on; what comes back later is kept."""
    with pool.lend() as lent:
        with pool.lend():
            pass
        pool.close()
        assert server.closed() == [0, 1]
    with pool.lend() as again:
        assert again is lent
    pool.close()
    pool.close()
    assert server.closed() == [1, 1]


def test_no_two_threads_have_a_connection_at_once(server: Server, pool: Pool[Connection]) -> None:
    threads, rounds = 8, 300
    start, most = threading.Barrier(threads), threading.Semaphore(threads)

    def borrow(seed: int) -> None:
        random = Random(seed)  # noqa: S311 - no secret
        start.wait(10)
        for _ in range(rounds):
            with most, pool.lend() as connection:
                connection.borrowers += 1
                assert connection.borrowers == 1
                threading.Event().wait(random.random() / 10_000)
                assert connection.closed == 0
                connection.borrowers -= 1
            if random.random() < 0.02:
                pool.close()

    with ThreadPoolExecutor(threads) as executor:
        list(executor.map(borrow, range(threads)))
    pool.close()
    assert set(server.closed()) == {1}
