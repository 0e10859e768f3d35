"""How old the first batch of an output is whose marks expire: an old one without a mark may be there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from offsetkeeper.core import environment
from offsetkeeper.core.mark import Landing
from offsetkeeper.core.model import Guarantee, Landed
from offsetkeeper.core.offsets import OffsetRange
from offsetkeeper.errors import MarkBehind
from offsetkeeper.sinks import Lander, Seen
from unit.test_deliver import Scene
from unit.test_once import Output

DAY_S = 86_400


class Days(environment.Environment):
    """A clock that stands.

    Attributes:
        day: what it shows.
    """

    day = 0.0

    def now_ms(self) -> int:
        """Return the time of the day."""
        return 1_700_000_000_000 + int(self.day * DAY_S * 1000)


class Expiring(Output):
    """An output that has no mark, and keeps marks for a week."""

    def prepare(self, _store: object, _guarantee: object) -> Lander:
        """See `Sink.prepare`."""
        return replace(super().prepare(None, None), seen=lambda _: Seen(None, "target"), kept_s=lambda: 7 * DAY_S)


@pytest.fixture
def clock() -> Iterator[Days]:
    days = Days()
    with environment.using(days):
        yield days


def begun() -> Scene:
    """Return a run that has begun the first batch of its output."""
    scene = Scene(sinks={"one": Expiring()}, guarantee=Guarantee.EXACTLY_ONCE)
    begin(scene)
    return scene


def begin(scene: Scene) -> None:
    """Begin the batch of a run."""
    scene.ledger.begin(scene.batch, ("one",), {"one": Landed(0, "target")}, scene.delivery.outputs.program(("t",)))


def begin_again(scene: Scene) -> None:
    """Let a redeploy with another output begin the pending batch again."""
    pending = scene.ledger.acquire().pending
    assert pending is not None
    assert pending.program is not None
    more = pending.program._replace(outputs={**pending.program.outputs, "more": "Function"})
    scene.ledger.begin(pending, ("one",), {}, more)


def restart(scene: Scene, times: int) -> None:
    """Let runs take the group and give it back: two changes each."""
    for _ in range(times):
        scene.ledger.acquire()
        scene.ledger.release()


def test_a_redeploy_that_begins_a_batch_again_makes_it_no_younger(clock: Days) -> None:
    scene = begun()
    clock.day = 6
    begin_again(scene)
    assert scene.delivery.outputs.landings() == {"one": Landing.ABSENT}
    clock.day = 8
    with pytest.raises(MarkBehind, match="the batch was begun 8 d ago, and the output keeps a mark for 7 d"):
        scene.delivery.outputs.landings()


@pytest.mark.parametrize("again", [False, True])
def test_a_batch_whose_begin_the_history_has_no_more_may_be_of_any_age(clock: Days, *, again: bool) -> None:
    scene = begun()
    clock.day = 8
    restart(scene, 500)
    if again:
        begin_again(scene)
    with pytest.raises(MarkBehind, match="the history is too short to say when the batch was begun, and the output"):
        scene.delivery.outputs.landings()


def test_a_long_history_before_the_batch_says_how_old_it_is(clock: Days) -> None:
    """As does a shorter one of a batch that several runs have tried."""
    scene = Scene(sinks={"one": Expiring()}, guarantee=Guarantee.EXACTLY_ONCE)
    for start in range(10, 1200):
        scene.ledger.commit(scene.ledger.batch([OffsetRange("t", 0, start, start + 1)]))
    scene.batch = scene.ledger.batch([OffsetRange("t", 0, 1200, 1300)])
    begin(scene)
    clock.day = 6
    restart(scene, 400)
    assert scene.delivery.outputs.landings() == {"one": Landing.ABSENT}
    clock.day = 8
    with pytest.raises(MarkBehind, match="the batch was begun 8 d ago"):
        scene.delivery.outputs.landings()
