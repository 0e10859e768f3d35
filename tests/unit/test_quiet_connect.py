"""A run over Spark Connect that has nothing to read: the server closes a session that nobody uses for an hour."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, cast

import pytest

from offsetkeeper.core import environment
from offsetkeeper.core.ledger import Ledger
from offsetkeeper.core.model import Guarantee
from offsetkeeper.core.topics import Topics
from offsetkeeper.engines.loop import Loop
from offsetkeeper.engines.settings import Pace, Run
from offsetkeeper.engines.stop import Stop
from offsetkeeper.kafka.start_plan import Subscription
from offsetkeeper.sinks import Idempotent, Outputs
from offsetkeeper.stores.memory import MemoryStore
from offsetkeeper.testing.clock import no_waiting
from unit.test_hostile_starts import Broker, Reader

LONG_S = 14400.0


class Remote:
    """A session of Spark Connect.

    Attributes:
        asked_s: when the server was asked for something.
    """

    def __init__(self) -> None:
        self.asked_s: list[float] = []
        self.conf = self

    def get(self, _: str, __: str = "") -> str:
        """See `RuntimeConf.get`."""
        self.asked_s.append(environment.monotonic())
        return ""


Remote.__module__ = "pyspark.sql.connect.session"


class Evening(Stop):
    """Waits by the clock of the process, and is asked for after hours."""

    def wait(self, seconds: float) -> None:
        """Let the clock go on."""
        environment.wait(seconds)
        if environment.monotonic() >= LONG_S:
            self.set()


@pytest.mark.parametrize("pace", [{"poll_interval_s": 1.0}, {"poll_interval_s": 1000.0}, {"interval_s": 7200.0}])
def test_a_session_is_used_every_few_minutes_also_if_nothing_comes(pace: dict[str, float]) -> None:
    spark = Remote()
    asked = Run(
        "g",
        None,
        cast("Any", Broker((0, 0))),
        Subscription(Topics.of(["t"])),
        cast("Any", Reader()),
        Outputs(a=Idempotent(lambda *_: None)),
        None,
        Guarantee.EXACTLY_ONCE,
        Pace(**pace),  # type: ignore[arg-type] # seconds alone
        {},
    )
    with no_waiting():
        Loop(cast("Any", spark), asked, Ledger(MemoryStore("memory://quiet"), "g"), Evening()).run()
    times = [0.0, *spark.asked_s, LONG_S]
    quiet = [later - earlier for earlier, later in pairwise(times)]
    assert max(quiet) <= 600.0
    assert len(spark.asked_s) < 100  # not at each poll
