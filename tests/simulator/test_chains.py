"""What previews promise is what the rows show, after any chain of acts, runs that crash, and events of Kafka."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from offsetkeeper.core.bounds import Bounds
from offsetkeeper.core.cluster import Cluster
from offsetkeeper.core.model import Snapshot
from offsetkeeper.core.offsets import Positions, TopicPartition
from offsetkeeper.operate import reset
from offsetkeeper.operate.chapter import Chapter
from offsetkeeper.testing.simulator import operators
from offsetkeeper.testing.simulator.chain_search import Broken, exhaust_chains, groups, tried, wander_chains
from offsetkeeper.testing.simulator.chains import CUT, LEADS, Step

GROUPS = {each.name: each for each in groups()}
KILLED = ((18, -1),)  # after it has begun a batch
# Chains that have broken a promise, each with its group.
FOUND = {
    "what came into a log that no run had seen cut was neither read nor called skipped": (
        "two marked, from the earliest",
        (Step("run"), Step(CUT), Step("reset to the latest", 1, 3)),
    ),
    "offsets below the first position that were read were called skipped": (
        "marked, from the latest",
        (
            Step("run"),
            Step("reset to an offset", 2, 1),
            Step("run"),
            Step("shift", 2, 0),
            Step("reset to the latest", 2),
        ),
    ),
    "of a cluster that the group comes back to nothing was read": (
        "in the transaction, from the earliest",
        (Step("run"), Step(LEADS), Step("reset to the earliest"), Step(LEADS), Step("reset to the latest")),
    ),
    "a partition that was forgotten was not begun at its beginning, since the others were forgotten later": (
        "keyed, from the latest",
        (Step("run"), Step("forget", 2), Step("forget", 0)),
    ),
    "what was dropped in the cluster that a partition stays in did not come again": (
        "two marked, from the earliest",
        (Step("run", faults=KILLED), Step(LEADS), Step("reset to an offset", 2, 1)),
    ),
    "what landed of a batch that an undo makes pending again was to come once more": (
        "two marked, with a short history",
        (Step("reset to the latest", 1, 4, beside=14), Step("undo", 0, 1)),
    ),
    "what was read between a copy and the copy back was called a gap": (
        "marked, from the earliest",
        (Step("run"), Step("copy"), Step("records arrive"), Step("run"), Step("copy"), Step("reset to the earliest")),
    ),
    "after copies there and back with runs that read nothing, what the last copy brought was called a gap": (
        "at least once, from the earliest",
        (*[Step("run"), Step("copy")] * 2, Step("records arrive"), Step("run"), Step("copy")),
    ),
    "what the source had read before a copy, whose history does not reach back so far, was called unread": (
        "keyed, with a short history",
        (
            *(Step(what) for what in ("run", "copy", "records arrive", "copy", "records arrive", "run", "copy")),
            Step("reset to an offset", 1, 1),
        ),
    ),
    "positions that are forgotten in one cluster were to be known in the other": (
        "marked, from the earliest",
        (Step("run"), Step(LEADS), Step("forget"), Step(LEADS)),
    ),
    "a topic that was made again in a cluster that the brokers are not of was to be known": (
        "two marked, from the earliest",
        (
            Step("run", faults=((27, -1),)),
            Step("the topic is made again"),
            Step(LEADS),
            Step("reset to the latest", 2, 3),
        ),
    ),
}


@pytest.mark.parametrize(("seed", "chains"), [("previews", 210), *((f"previews {n}", 10_000) for n in range(10))])
def test_what_previews_promise_is_what_comes(seed: str, chains: int) -> None:
    """The same chains each time: up to six acts, with runs, crashes and events between them."""
    broken = wander_chains(seed, chains)
    assert broken is None, str(broken)


@pytest.mark.parametrize("name", ["marked, from the earliest", "keyed, from the latest"])
@pytest.mark.parametrize("length", [1, 3])
def test_every_short_chain_keeps_what_previews_promise(name: str, length: int) -> None:
    broken = exhaust_chains(GROUPS[name], length)
    assert broken is None, str(broken)


@pytest.mark.parametrize("name", FOUND)
def test_a_chain_that_broke_a_promise_keeps_it(name: str) -> None:
    group, steps = FOUND[name]
    broken = tried(GROUPS[group], steps)
    assert broken is None, str(broken)


def test_a_batch_that_may_be_there_twice_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """An output with keys that `verify` says nothing of."""
    monkeypatch.setattr(Chapter, "doubts", lambda _: [])
    broken = wander_chains("doubts", 300, [GROUPS["keyed, from the earliest"]])
    assert isinstance(broken, Broken)
    assert "verify does not say" in broken.promise


def test_previews_without_a_history_are_found_to_be_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operators, "known_history", lambda _: ())
    broken = wander_chains("without", 300, [GROUPS["in the transaction, from the earliest"]])
    assert isinstance(broken, Broken)
    assert broken.promise.startswith("(p)")
    assert str(broken).count("\n") == 1 + len(broken.steps)
    assert tried(GROUPS[broken.scenario], broken.steps) == broken


def test_a_reset_that_does_not_ask_whether_the_log_was_cut_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def unasked(_: Snapshot, cluster: Cluster, targets: Positions, bounds: Mapping[TopicPartition, Bounds]) -> Any:
        return cluster.with_open_transactions(targets, bounds)

    monkeypatch.setattr(reset, "_with_targets", unasked)
    broken = wander_chains("cuts", 100, [GROUPS["two marked, from the earliest"]])
    assert isinstance(broken, Broken)
    assert Step(CUT) in broken.steps
