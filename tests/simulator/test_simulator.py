"""The simulator finds nothing in the code as it is, finds what is broken on purpose, and can repeat each history."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from offsetkeeper.core import rules
from offsetkeeper.core.model import Guarantee
from offsetkeeper.testing.simulator import outputs, promises
from offsetkeeper.testing.simulator.__main__ import main
from offsetkeeper.testing.simulator.explore import Failure, Tally, exhaust, replay, shrink, wander
from offsetkeeper.testing.simulator.scenarios import core, scenarios, wide

ROOT = Path(__file__).parents[2]
# The defects that led to the simulator, each with its mend taken out.
DEFECTS = [
    ("ledger: who owns the group is not asked before another try", "at least once; three owners", "(d)"),
    ("pending: a batch that failed is dropped without asking Kafka", "at least once; three owners", "(b)"),
    ("ledger: a ledger made anew repeats identities", "exactly once, keyed; events", "(c) or (f)"),
    (
        "structured: the checkpoint is looked at only before the group is taken",
        "exactly once, in the transaction; query with state, a checkpoint each",
        "(a)",
    ),
    (
        "living: a checkpoint that goes on while a start looks is ahead",
        "exactly once, marked; three queries, slow looks",
        "(s)",
    ),
]


EXHAUSTED = [
    each.name
    for each in core()
    if each.guarantee is Guarantee.EXACTLY_ONCE
    and len(each.outputs) == 1
    and (not each.marked or each.name.endswith(("marked", "with state")))
    and not each.name.startswith("exactly once, slots, ")
    and (not each.dead_letters or each.name == "exactly once, in the transaction, quarantine")  # others take a minute
]


in_parts = pytest.mark.parametrize(
    "share", [pytest.param(3, id="the first third"), pytest.param(1, id="every history")]
)
"""`make test` tries the first third of the random histories, and `make wide` tries them all."""


@in_parts
def test_thousands_of_histories_break_no_promise(share: int, capsys: pytest.CaptureFixture[str]) -> None:
    """The same histories each time; other seeds are for `make simulate`."""
    histories = 5000 // share
    code = main(["--histories", str(histories), "--json"])
    told = capsys.readouterr()
    assert code == 0, told.err
    result = json.loads(told.out)
    assert (result["histories"], result["violations"]) == (histories, 0)
    assert min(result["decisions"], result["states"]) > 10_000


def test_the_command_tries_short_schedules_first_and_then_random_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--scenario", "exactly once, keyed; three owners", "--seconds", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["histories"] > 1


@pytest.mark.parametrize("name", EXHAUSTED)
def test_every_schedule_with_one_preemption_keeps_exactly_once(name: str) -> None:
    tally, failure = exhaust(scenarios()[name], preemptions=1, faults=0)
    assert failure is None, failure
    assert tally.complete
    assert tally.states > 100


@in_parts
def test_outputs_that_keep_a_mark_have_each_batch_once(share: int) -> None:
    """Beside resets, adopted marks, and stores that come back from a backup."""
    casts = ("three owners", "operators", "an adoption", "events", "queries with state and operators")
    kinds = ("exactly once, marked", "exactly once, two marked")
    chosen = [scenarios()[f"{kind}; {cast}"] for kind in kinds for cast in casts]
    tally, failure = wander(chosen, seed="marked", histories=800 // share)
    assert failure is None, str(failure)
    assert tally.states > 5000 // share


@in_parts
@pytest.mark.parametrize("cast", ["outputs are restored", "outputs are made again", "outputs are elsewhere"])
def test_an_output_that_loses_rows_is_noticed(cast: str, share: int) -> None:
    tally, failure = wander([scenarios()[f"exactly once, marked; {cast}"]], seed="again 5", histories=400 // share)
    assert failure is None, str(failure)
    assert tally.states > 1000 // share


@in_parts
def test_a_name_that_leads_to_another_cluster_mixes_no_records(share: int) -> None:
    """With ids of topics and without, by runs and queries, packed and with the connector."""
    chosen = [each for each in wide() if "another cluster" in each.name]
    tally, failure = wander(chosen, seed="elsewhere", histories=800 // share)
    assert failure is None, str(failure)
    assert tally.states > 5000 // share


@in_parts
def test_a_batch_that_another_program_takes_over_is_in_the_outputs_of_the_one_that_commits_it(share: int) -> None:
    """Tables of one name share a mark, so a run of the first program that stalls may land the batch, too."""
    chosen = [each for each in wide() if "another program" in each.name]
    tally, failure = wander(chosen, seed="programs", histories=600 // share)
    assert failure is None, str(failure)
    assert tally.states > 5000 // share


@in_parts
def test_an_output_with_slots_has_each_batch_once(share: int) -> None:
    """Each slot lands alone, so that a run may die between two of them."""
    chosen = [each for each in wide() if each.name.startswith("exactly once, slots")]
    tally, failure = wander(chosen, seed="slots", histories=600 // share)
    assert failure is None, str(failure)
    assert tally.states > 5000 // share


@in_parts
@pytest.mark.parametrize("poison", [{(0, 0)}, {(1, 1)}, {(0, 0), (1, 1)}, {(p, n) for p in range(2) for n in range(4)}])
def test_records_that_fail_are_in_the_dead_letters_wherever_they_are(
    poison: set[tuple[int, int]], monkeypatch: pytest.MonkeyPatch, share: int
) -> None:
    """At the first or last offset of a batch, at both, and all of them; beside resets, in one output and in several."""
    for module in (outputs, promises):
        monkeypatch.setattr(module, "POISON", frozenset(poison))
    chosen = [each for each in wide() if each.dead_letters]
    tally, failure = wander(chosen, seed="poison", histories=250 // share)
    assert failure is None, str(failure)
    assert tally.states > 3000 // share


def test_the_same_seed_tries_the_same_histories() -> None:
    tallies = []
    for _ in range(2):
        tally, failure = wander(wide(), seed="again", histories=60)
        assert failure is None, failure
        tallies.append((tally.histories, tally.decisions, tally.states, tally.depth))
    assert tallies[0] == tallies[1]


def test_every_scenario_comes_to_its_end_where_nothing_happens() -> None:
    for scenario in scenarios().values():
        assert replay(scenario, (), 0, 0) is None


@pytest.fixture
def failure(monkeypatch: pytest.MonkeyPatch) -> Failure:
    """A failure of rules that let any run commit."""
    as_it_is = dict(rules.TABLE)
    taken = rules.Holder.TAKEN
    broken: dict[Any, Any] = {(rules.Commit, taken, False): as_it_is[rules.Commit, rules.Holder.MINE, False]}
    broken |= {(rules.Commit, taken, True): as_it_is[rules.Commit, rules.Holder.MINE, True]}
    monkeypatch.setattr(rules, "TABLE", {**as_it_is, **broken})
    monkeypatch.setattr("offsetkeeper.core.ledger.Ledger._check_next", lambda *_: None)
    _, found = wander([scenarios()["exactly once, keyed; a careless program"]], seed=1, histories=2000)
    assert found is not None
    return found


def test_a_failure_is_shown_again_by_its_path(failure: Failure) -> None:
    again = replay(scenarios()[failure.scenario], failure.path, failure.preemptions, failure.faults)
    assert again is not None
    assert (again.promise, again.steps) == (failure.promise, failure.steps)


def test_a_failure_becomes_shorter_and_stays_one(failure: Failure) -> None:
    short = shrink(scenarios()[failure.scenario], failure, tries=300)
    assert len(short.steps) <= len(failure.steps)
    assert short.promise[:3] == failure.promise[:3]
    assert str(short).count("\n") > 2


def test_tallies_add_up() -> None:
    total = Tally(1, 2, 3, 4, 0.5, complete=True) + Tally(1, 1, 1, 9, 0.5, complete=False)
    assert total == Tally(2, 3, 4, 9, 1.0, complete=False)


def test_what_is_logged_after_it_is_not_lost(caplog: pytest.LogCaptureFixture) -> None:
    assert main(["--histories", "1", "--json"]) == 0
    logging.getLogger("offsetkeeper").warning("heard")
    assert caplog.messages == ["heard"]


def test_an_unknown_scenario_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--scenario", "no such"]) == 2
    assert "--list" in capsys.readouterr().err


@pytest.mark.parametrize(("name", "scenario", "letters"), DEFECTS)
def test_each_defect_that_led_here_is_found_when_its_mend_is_taken_out(name: str, scenario: str, letters: str) -> None:
    tried = ["--scenario", scenario, "--histories", "4000", "--json"]
    command = [sys.executable, "mutants/simulate.py", "--break", name, *tried]
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    assert json.loads(done.stdout)["promise"][:3] in letters
    assert "See it again" in done.stderr


@pytest.mark.soak
def test_every_breakage_that_names_a_scenario_is_found_there() -> None:
    told = subprocess.run(
        [sys.executable, "mutants/simulate.py", "--teeth"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert told.returncode == 0, told.stdout
    assert json.loads(told.stdout)["found"] > 60


def test_an_event_is_tried_only_where_a_fault_is_allowed() -> None:
    happened: list[str] = []
    scenario = scenarios()["at most once; an election"]
    events = {name: lambda _world, name=name: happened.append(name) for name in scenario.events}
    counted = replace(scenario, events=events)
    exhaust(counted, preemptions=0, faults=0)
    assert not happened
    exhaust(counted, preemptions=0, faults=1, seconds=0.5)
    assert happened
