"""A broker's answer leaves out what is there: a topic or a partition that it does not know for a moment.

Or it has the id of a topic that was there before, which the broker does not know yet to be made again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from offsetkeeper.core.cluster import TopicDescription
from offsetkeeper.core.model import Guarantee
from offsetkeeper.core.offsets import TopicPartition
from offsetkeeper.core.plan import Policies
from offsetkeeper.errors import StartRefused, UnknownTopic
from offsetkeeper.testing.clock import StillEnvironment, no_waiting
from unit.test_hostile_starts import Broker, Scene, fail

B = TopicPartition("t", 1)
ALL = [(partition, offset) for partition in range(2) for offset in range(5)]


class Forgetful(Broker):
    """A broker of which some of the next answers leave partitions out.

    Attributes:
        left_out: numbers of the partitions that each of the next answers does not have; all of them: the topic.
        late: ids of the topic that the next answers have.
    """

    def __init__(self, *held: tuple[int, int]) -> None:
        super().__init__(*held)
        self.left_out: list[set[int]] = []
        self.late: list[str] = []

    def describe(self, topics: Any, **_: Any) -> dict[str, TopicDescription]:
        """See `Cluster.describe`."""
        lacking = self.left_out.pop(0) if self.left_out else set()
        known = tuple(number for number in self.held_now if number not in lacking)
        topic_id = self.late.pop(0) if self.late else self.topic_id
        return {name: TopicDescription(name, topic_id, known) for name in topics} if known else {}


@pytest.fixture(autouse=True)
def clock() -> Iterator[StillEnvironment]:
    """Let time pass only where somebody waits."""
    with no_waiting() as clock:
        yield clock


@pytest.fixture
def scene() -> Scene:
    """A group that has read a part: its topic has records since."""
    scene = Scene(Forgetful((0, 2), (0, 1)))
    scene.run("one")
    scene.broker.held_now = {0: (0, 5), 1: (0, 5)}
    return scene


def forget(scene: Scene, *left_out: set[int]) -> None:
    """Leave partitions out of the next answers."""
    broker = scene.broker
    assert isinstance(broker, Forgetful)
    broker.left_out = [*left_out]


def fall_behind(scene: Scene, times: int) -> None:
    """Let the next answers be those of a broker that knows the topic before this one."""
    broker = scene.broker
    assert isinstance(broker, Forgetful)
    broker.late = ["before"] * times


@pytest.mark.parametrize("left_out", [{1}, {0, 1}], ids=["a partition", "the topic"])
@pytest.mark.parametrize("policy", ["keep", "stop"])
def test_what_one_answer_leaves_out_is_asked_for_again_before_a_run_catches_up(
    scene: Scene, left_out: set[int], policy: Any
) -> None:
    forget(scene, left_out, left_out)
    summary = scene.run("one", policies=Policies(removed=policy))
    assert scene.rows("one") == ALL
    assert (summary.ended, summary.away) == ("caught_up", ())


def test_what_is_left_out_in_the_middle_of_a_run_is_read_too(scene: Scene) -> None:
    scene.meanwhile = [lambda: forget(scene, set(), {0}, {0, 1}, {0})]
    scene.broker.held_now[1] = (0, 1)
    scene.run("one", limit=1)
    assert scene.rows("one") == [*ALL[:5], (1, 0)]


def test_what_stays_away_is_named_in_the_summary_and_no_time_is_spent_on_it_again(
    scene: Scene, clock: StillEnvironment, caplog: pytest.LogCaptureFixture
) -> None:
    forget(scene, *[{1}] * 1000)
    summary = scene.run("one")
    assert summary.away == (B,)
    assert scene.rows("one") == [*ALL[:5], (1, 0)]
    assert "caught up but for partitions that Kafka does not know: t 1" in caplog.text
    assert 5 <= clock.seconds < 10


def test_a_topic_that_the_group_has_read_is_not_to_be_created(scene: Scene, clock: StillEnvironment) -> None:
    forget(scene, *[{0, 1}] * 1000)
    with pytest.raises(UnknownTopic, match="The group has read it before"):
        scene.run("one")
    assert 5 <= clock.seconds < 10


def test_a_name_that_was_never_there_is_told_at_once(clock: StillEnvironment) -> None:
    scene = Scene(Forgetful((0, 2)))
    forget(scene, {0})
    with pytest.raises(UnknownTopic, match="Create it, or correct the name"):
        scene.run("one")
    assert not clock.seconds


@pytest.mark.parametrize("guarantee", [Guarantee.EXACTLY_ONCE, Guarantee.AT_LEAST_ONCE])
def test_a_pending_batch_is_not_given_up_for_one_answer(scene: Scene, guarantee: Guarantee) -> None:
    scene.meanwhile = [fail]
    with pytest.raises(RuntimeError, match="dead"):
        scene.run("one", guarantee=guarantee)
    forget(scene, {1}, {0, 1}, {1})
    scene.run("one", guarantee=guarantee)
    assert scene.rows("one") == ALL


@pytest.mark.parametrize("guarantee", [Guarantee.EXACTLY_ONCE, Guarantee.AT_LEAST_ONCE])
def test_a_pending_batch_of_a_topic_that_was_made_again_is_waited_for_once(
    scene: Scene, clock: StillEnvironment, guarantee: Guarantee
) -> None:
    """The plan after it believes the answer that has stayed."""
    scene.meanwhile = [fail]
    with pytest.raises(RuntimeError, match="dead"):
        scene.run("one", guarantee=guarantee)
    before, scene.broker.topic_id = clock.seconds, "made again"
    scene.run("one", guarantee=guarantee, policies=Policies(recreated="beginning", pending="drop"))
    assert 5 <= clock.seconds - before < 10


def test_a_batch_is_not_read_again_for_one_answer_before_its_commit(scene: Scene) -> None:
    scene.meanwhile = [lambda: forget(scene, {0, 1})]
    scene.run("one")
    assert scene.rows("one") == ALL
    assert len(scene.written) == 2


def test_a_partition_that_is_gone_still_stops_a_start_where_the_policy_says_so(scene: Scene) -> None:
    forget(scene, *[{1}] * 1000)
    with pytest.raises(StartRefused, match="t 1: removed"):
        scene.run("one", policies=Policies(removed="stop"))


WORDS = pytest.mark.parametrize("word", ["stop", "beginning", "end"])


@WORDS
def test_one_answer_with_the_id_of_the_topic_before_moves_no_group_and_ends_no_run(scene: Scene, word: Any) -> None:
    fall_behind(scene, 2)
    scene.run("one", policies=Policies(recreated=word))
    assert scene.rows("one") == ALL


@WORDS
def test_nor_does_one_in_the_middle_of_a_run(scene: Scene, word: Any) -> None:
    scene.meanwhile = [lambda: fall_behind(scene, 2)]
    scene.run("one", policies=Policies(recreated=word), limit=1)
    assert scene.rows("one") == ALL
    assert len(scene.written) == 8


@WORDS
def test_nor_is_a_pending_batch_given_up_for_one(scene: Scene, word: Any) -> None:
    scene.meanwhile = [fail]
    with pytest.raises(RuntimeError, match="dead"):
        scene.run("one")
    fall_behind(scene, 2)
    scene.run("one", policies=Policies(recreated=word))
    assert scene.rows("one") == ALL
    assert len({batch for _, batch, _ in scene.written}) == 2


def test_a_topic_that_was_made_again_is_known_after_some_seconds_which_pass_once(
    scene: Scene, clock: StillEnvironment
) -> None:
    scene.broker.topic_id = "again"
    with pytest.raises(StartRefused, match="t 1: recreated"):
        scene.run("one")
    assert 5 <= clock.seconds < 10
    before, seconds = len(scene.written), clock.seconds
    scene.run("one", policies=Policies(recreated="beginning"))
    assert sorted((r.partition, r.start, r.end) for _, _, ranges in scene.written[before:] for r in ranges) == [
        (0, 0, 5),
        (1, 0, 5),
    ]
    assert 5 <= clock.seconds - seconds < 10
