"""Tries are made again while an error may pass and time is left, with longer and longer pauses."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

import pytest

from offsetkeeper.core import retry as module
from offsetkeeper.core.retry import retry
from offsetkeeper.errors import StoreUnavailable
from offsetkeeper.testing.clock import StillEnvironment, no_waiting


@pytest.fixture
def clock() -> Iterator[StillEnvironment]:
    """Time that moves only when somebody waits."""
    with no_waiting() as clock:
        yield clock


def failing(*errors: Exception) -> Callable[[float], str]:
    """Return a call that raises these one after the other, and then returns."""
    left = list(errors)

    def call(_: float) -> str:
        if left:
            raise left.pop(0)
        return "done"

    return call


def test_what_does_not_fail_is_called_once_and_nobody_waits(clock: StillEnvironment) -> None:
    assert retry(ValueError, 5, failing()) == "done"
    assert clock.seconds == 0


@pytest.mark.parametrize("on", [ValueError, (KeyError, ValueError), lambda error: str(error) == "away"])
def test_an_error_that_may_pass_is_tried_again(clock: StillEnvironment, on: module.Passing) -> None:
    assert retry(on, 5, failing(ValueError("away"), ValueError("away")), jitter_s=0) == "done"
    assert clock.seconds == pytest.approx(0.1 + 0.2)


@pytest.mark.parametrize("on", [KeyError, (KeyError, OSError), lambda error: str(error) == "away"])
def test_another_error_comes_out_at_once(clock: StillEnvironment, on: module.Passing) -> None:
    with pytest.raises(ValueError, match="wrong"):
        retry(on, 5, failing(ValueError("wrong")))
    assert clock.seconds == 0


def test_an_interrupt_is_not_an_error_that_may_pass(clock: StillEnvironment) -> None:
    def call(_: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        retry(lambda _: True, 5, call)
    assert clock.seconds == 0


@pytest.mark.parametrize("timeout_s", [0, -1])
def test_without_time_there_is_one_try(clock: StillEnvironment, timeout_s: float) -> None:
    with pytest.raises(ValueError, match="first"):
        retry(ValueError, timeout_s, failing(ValueError("first"), ValueError("second")))
    assert clock.seconds == 0


def test_pauses_double_up_to_the_longest_and_end_with_the_timeout(clock: StillEnvironment) -> None:
    """One more try is made after the pause in which the time ended; its error is raised."""
    called: list[tuple[float, float]] = []

    def call(left_s: float) -> None:
        called.append((clock.seconds, left_s))
        raise ValueError(len(called))

    with pytest.raises(ValueError, match="6"):
        retry(ValueError, 3, call, first_s=0.25, longest_s=1, jitter_s=0)
    assert [at for at, _ in called] == [0, 0.25, 0.75, 1.75, 2.75, 3.75]
    assert [left_s for _, left_s in called] == [3, 2.75, 2.25, 1.25, 0.25, -0.75]


def test_chance_makes_a_pause_longer_but_never_longer_than_the_longest(clock: StillEnvironment) -> None:
    pauses = []
    for _ in range(200):
        before = clock.seconds
        retry(ValueError, 5, failing(ValueError()), first_s=0.1, longest_s=0.6, jitter_s=1)
        pauses.append(clock.seconds - before)
    assert 0.1 <= min(pauses) < 0.2
    assert max(pauses) == pytest.approx(0.6)
    assert len({round(pause, 6) for pause in pauses}) > 20


def test_each_failed_try_is_logged_but_the_last(clock: StillEnvironment, caplog: pytest.LogCaptureFixture) -> None:
    """Texts of other libraries may quote passwords: of their errors only the type is told."""
    caplog.set_level(logging.WARNING, module.__name__)
    errors = (StoreUnavailable("db is away"), ConnectionError("password=secret"))
    retry((StoreUnavailable, ConnectionError), 5, failing(*errors), jitter_s=0)
    with pytest.raises(StoreUnavailable):
        retry(StoreUnavailable, 0, failing(*errors))
    assert [record.getMessage() for record in caplog.records] == [
        "Try 1 failed; the next one is in 0.10 s: StoreUnavailable: db is away",
        "Try 2 failed; the next one is in 0.20 s: ConnectionError",
    ]
    assert clock.seconds > 0
