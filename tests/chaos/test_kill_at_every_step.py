"""A driver is killed, stopped or asked to end at every single step; then every record is counted."""

from __future__ import annotations

import itertools
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from chaos.driver import AWAY, FENCED, Mode
from chaos.scene import Scene

MODES: list[Mode] = ["transaction", "idempotent", "at_least_once", "at_most_once"]
ALWAYS = {f"{when} {what}" for when in ("before", "after") for what in ("load", "acquire", "place", "release")}
COMMIT = {"write", "written", "before begin", "after begin", "before commit", "after commit"}
STEPS = {
    "transaction": ALWAYS
    | {"stage", "before transaction", "after transaction"}
    | {"before output in the transaction", "after output in the transaction"},
    "idempotent": ALWAYS | COMMIT,
    "at_least_once": ALWAYS | COMMIT,
    "at_most_once": ALWAYS | (COMMIT - {"before begin", "after begin"}),
}
MAY_DOUBLE = {"at_least_once": {"write", "written", "before commit"}}
MAY_LOSE = {"at_most_once": {"after commit", "write"}}
# The engine goes three ways: a transaction, begin and commit, and the commit before the output. Each is tried
# every time, on one store; of those that begin and commit it is the one that may double nothing.
EACH_WAY = {("postgresql", "transaction"), ("sqlite", "idempotent"), ("sqlite", "at_most_once")}


def each_of(modes: dict[str, list[Mode]], always: set[tuple[str, str]]) -> list[Any]:
    """Return the parameters of stores and modes; those that are not tried every time are for `make soak`."""
    return [
        pytest.param(store, mode, marks=[] if (store, mode) in always else pytest.mark.soak)
        for store in modes
        for mode in modes[store]
    ]


EACH = each_of({"sqlite": MODES, "postgresql": MODES}, EACH_WAY)
# With the other modes the store's part is the same as with one of these.
SOME = each_of(
    {"sqlite": MODES, "postgresql": ["transaction", "at_least_once"]}, EACH_WAY - {("sqlite", "at_most_once")}
)
LOCKED = {"before output in the transaction", "after output in the transaction"}
MAY_END = {"before load", "after load", "before acquire", "after commit", "after transaction"} | {
    "before release",
    "after release",
}
WORKERS = 4


@pytest.mark.parametrize(("store", "mode"), EACH)
def test_a_driver_killed_at_any_step_and_again_at_that_step_keeps_its_guarantee(scene: Scene, mode: Mode) -> None:
    def killed_twice(step: int) -> str:
        group = scene.new_group()
        killed = scene.start(group, signal=signal.SIGKILL, step=step).wait()
        if killed == 0:
            return ""
        assert killed == -signal.SIGKILL, scene.children.errors()
        assert scene.start(group, signal=signal.SIGKILL, step=step).wait() in {0, -signal.SIGKILL}
        assert scene.start(group).wait() == 0, scene.children.errors()
        scene.check(group, may_double=MAY_DOUBLE.get(mode, ()), may_lose=MAY_LOSE.get(mode, ()))
        return scene.steps(group)[0].name

    assert set(at_each_step(killed_twice)) == STEPS[mode]


@pytest.mark.parametrize(("store", "mode"), SOME)
def test_a_driver_halted_at_any_step_while_another_takes_over_is_fenced_when_it_goes_on(
    scene: Scene, mode: Mode
) -> None:
    def halted(step: int) -> str:
        group = scene.new_group()
        stale = scene.start(group, signal=signal.SIGSTOP, step=step)
        if stale.wait() == 0:
            return ""
        [found] = scene.steps(group)
        other = scene.start(group, retry_timeout_s=3 if found.name in LOCKED else 60).wait()
        code = stale.go_on()
        if other == AWAY:
            assert found.name in LOCKED, "another driver was kept out by one that holds no lock"
            assert code == 0, scene.children.errors()
        else:
            assert other == 0, scene.children.errors()
            may_end = found.name in MAY_END or (mode == "at_most_once" and found.name.startswith("writ"))
            assert code in ({0, FENCED} if may_end else {FENCED}), (found.name, scene.children.errors())
        # One that goes on does not know yet that it is fenced: what it writes before it asks the store comes twice.
        scene.check(group, may_double=MAY_DOUBLE.get(mode, set()) | ({"after begin"} if mode in MAY_DOUBLE else set()))
        return found.name

    assert set(at_each_step(halted)) == STEPS[mode]


@pytest.mark.parametrize(("store", "mode"), SOME)
def test_a_driver_asked_to_end_at_any_step_ends_cleanly_and_leaves_nothing_half(scene: Scene, mode: Mode) -> None:
    def asked(step: int) -> str:
        group = scene.new_group()
        assert scene.start(group, signal=signal.SIGTERM, step=step).wait() == 0, scene.children.errors()
        ledger, _ = scene.ledger(group)
        assert (ledger.snapshot.owner, ledger.snapshot.pending) == (None, None)
        assert scene.start(group).wait() == 0, scene.children.errors()
        scene.check(group)
        return "".join(step.name for step in scene.steps(group))

    assert set(at_each_step(asked)) == STEPS[mode]


def at_each_step(experiment: Callable[[int], str]) -> list[str]:
    """Return the steps' names that `experiment` returns for step 1, 2, 3 ... until it returns none."""
    names: list[str] = []
    with ThreadPoolExecutor(WORKERS) as pool:
        for first in itertools.count(1, WORKERS):
            found = list(pool.map(experiment, range(first, first + WORKERS)))
            names += filter(None, found)
            if not all(found):
                return names
    raise AssertionError
