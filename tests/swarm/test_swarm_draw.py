"""A number gives a history; one that fails is shortened; and what was never drawn is told."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from swarm.book import Finding
from swarm.coverage import Coverage
from swarm.draw import ACTS, FURTHER, OUTPUTS, SERVERS, STORES, History, Step, draw
from swarm.trial import Result, shortened


def test_a_number_gives_the_same_history_each_time_and_each_act_is_drawn() -> None:
    histories = [draw(seed) for seed in range(500)]
    assert histories == [draw(seed) for seed in range(500)]
    assert {step.what for history in histories for step in history.steps} == set(ACTS)


def test_each_pair_of_features_meets() -> None:
    coverage = Coverage()
    for seed in range(1000):
        coverage.add(draw(seed), Counter(), "caught_up")
    told = coverage.as_dict()
    assert told["never drawn"] == []
    assert coverage.pairs["copy", "the topic is made again"] > 0
    assert told["pairs"]["drawn"] >= 1500


def test_further_servers_are_drawn_if_they_are_asked_for() -> None:
    outputs = {each for seed in range(500) for each in draw(seed).outputs}
    assert not outputs & {*FURTHER}
    asked = [draw(seed, (*OUTPUTS, *FURTHER), (*STORES, *SERVERS)) for seed in range(500)]
    assert {each for history in asked for each in history.outputs} >= {*FURTHER}
    for history in asked:
        joined = {each.split()[0].lower() for each in history.outputs if each.endswith("with the offsets")}
        assert joined <= {history.store}


def test_what_was_not_reached_is_told() -> None:
    coverage = Coverage()
    coverage.add(draw(1), Counter({"run": 2, "run ends: MarkBehind": 1, "fault store refused": 1}), "MarkBehind: told")
    told = coverage.as_dict()
    assert told["verdicts"] == {"MarkBehind": 1}
    assert "run" not in told["never reached"]
    assert {"undo", "fault store reply lost"} <= {*told["never reached"]}
    assert "MarkBehind" not in told["errors never seen"]
    assert "MarkAhead" in told["errors never seen"]


def test_acts_are_left_out_while_a_history_still_fails() -> None:
    history = replace(draw(1), steps=tuple(Step(what, 0) for what in ("run", "copy", "reset", "undo", "run", "adopt")))
    tried: list[History] = []

    def fails(less: History) -> Result:
        tried.append(less)
        acts = [step.what for step in less.steps]
        found = Finding("lost", "o0", "a row") if {"copy", "undo"} <= {*acts} else None
        return Result(less, "", found, tuple(acts), Counter())

    result = shortened(fails(history), fails)
    assert [step.what for step in result.history.steps] == ["copy", "undo"]
    assert len(tried) == 7
