"""The table of the marks in Cassandra while another run makes it."""

from __future__ import annotations

from typing import Any

import pytest

from offsetkeeper.core.environment import Environment, using
from offsetkeeper.errors import Refused
from offsetkeeper.sinks.cassandra.marks import CassandraMarks


class Quick(Environment):
    """A clock that waiting alone moves on."""

    now = 0.0

    def monotonic(self) -> float:
        """Return how long was waited."""
        return self.now

    def wait(self, seconds: float) -> None:
        """Let the time be over."""
        self.now += seconds


class Session:
    """A session to a cluster in which the table is listed. A fake: of the real one nobody can say when it lags.

    Attributes:
        refusals: what it says to the next questions about the table.
        asked: how often it was asked.
    """

    def __init__(self, *refusals: str) -> None:
        self.refusals = [*refusals]
        self.asked = 0

    def rows(self, *_: object) -> list[tuple[int]]:
        """Return that the table is listed, and forgets nothing."""
        return [(0,)]

    def run(self, _: object) -> None:
        """Refuse, or not."""
        self.asked += 1
        if self.refusals:
            raise Refused(f"cassandra://node refuses: {self.refusals.pop(0)}")


def make(session: Any) -> None:
    """Make the table where it is not there."""
    with using(Quick()):
        CassandraMarks(session, "shop").make()


def test_a_table_that_another_run_makes_at_this_moment_is_waited_for() -> None:
    """It is listed a moment before it can be used: two first runs at once failed, on a slow machine."""
    session = Session(*['message="table offsetkeeper_marks does not exist"'] * 3)
    make(session)
    assert session.asked == 5


def test_it_is_not_waited_for_without_end_nor_for_a_permission() -> None:
    endless = Session(*['message="table offsetkeeper_marks does not exist"'] * 1000)
    with pytest.raises(Refused, match="does not exist"):
        make(endless)
    assert 5 < endless.asked < 100
    refused = Session("User shop has no SELECT permission")
    with pytest.raises(Refused, match="no SELECT permission"):
        make(refused)
    assert refused.asked == 1
