"""The sample of machine-made breakages tells what notices a breakage from what would fail, or pass, anyway."""

from __future__ import annotations

import ast
import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import CodeType, FunctionType

import pytest

sys.path.append(str(Path(__file__).parents[2] / "mutants"))

import sample


def code_of(text: str) -> CodeType:
    """Return the code of a function of one argument that does this."""
    return sample.functions(ast.parse(f"def function(number):\n    {text}\n"), "core/plan.py")["function"]


WHOLE = code_of("return number + 1")
RAISING = code_of("raise AssertionError")


def controlled(tests: Mapping[str, Callable[[FunctionType], None]]) -> sample.Controlled:
    """Return what has these tests, each of which calls the function, after both controls."""
    function = FunctionType(WHOLE, {"os": os, "threading": threading, "AssertionError": AssertionError})

    def run(names: Sequence[str], up_to_first: bool) -> sample.Ran:  # noqa: FBT001 - as the sample calls it
        failed: dict[str, str] = {}
        for name in names:
            try:
                tests[name](function)
            except AssertionError as error:
                failed[name] = str(error)
                if up_to_first:
                    break
        return sample.Ran(failed)

    found = sample.Controlled(function, list(tests), run)
    found.control(WHOLE, RAISING)
    return found


def adds_one(function: FunctionType) -> None:
    assert function(1) == 2, "one more"


def calls_it(function: FunctionType) -> None:
    function(1)


def fails_anyway(function: FunctionType) -> None:
    function(1)
    raise AssertionError("I always fail")


def checks_nothing(function: FunctionType) -> None:
    try:
        function(1)
    except AssertionError:
        return


def test_unbroken_code_is_never_noticed_and_a_test_that_fails_on_it_is_out() -> None:
    found = controlled({"fails": fails_anyway, "adds": adds_one})
    assert found.out == {"fails": "I always fail"}
    assert found.tests == ["adds"]
    assert found.became(WHOLE) == ("survived", "", "")


def test_what_a_test_checks_is_noticed_and_what_none_checks_survives() -> None:
    became, by, how = controlled({"calls": calls_it, "adds": adds_one}).became(code_of("return number - 1"))
    assert (became, by) == ("noticed", "adds")
    assert "one more" in how
    assert controlled({"calls": calls_it}).became(code_of("return number - 1")) == ("survived", "", "")


def test_tests_that_do_not_see_that_it_raises_tell_nothing() -> None:
    assert not controlled({"nothing": checks_nothing}).sees
    assert not controlled({"fails": fails_anyway}).sees
    assert controlled({"nothing": checks_nothing, "calls": calls_it}).sees


def test_a_death_a_wait_and_a_failure_of_the_runner_are_no_failed_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    found = controlled({"adds": adds_one})
    assert found.became(code_of("os._exit(0)"))[0] == "its process has died"
    assert found.became(code_of("return number.no_such_name"))[0] == "it could not be tried"
    monkeypatch.setattr(sample, "_LIMIT_S", 0.5)
    assert found.became(code_of("threading.Event().wait()"))[0] == "it never ends"


def test_what_is_noticed_once_and_then_not_is_not_called_noticed(tmp_path: Path) -> None:
    def fails_at_times(function: FunctionType) -> None:
        seen = tmp_path / str(function(1))
        before = seen.exists()
        seen.touch()
        assert before, "the first time"

    (tmp_path / "2").touch()  # the controls see what unbroken code returns
    found = controlled({"at times": fails_at_times, "calls": calls_it})
    assert found.became(code_of("return number + 2"))[0] == "noticed once, and once not"


def test_each_function_of_core_that_lives_has_the_code_that_is_compiled_anew() -> None:
    files = ["core/plan.py", "core/rules.py", "core/ledger.py", "engines/loop.py"]
    live = sample.living(files)
    assert {"Ledger.commit", "Ledger.acquire"} <= {name for _, name in live}
    for (file, name), function in live.items():
        if name in sample.unbroken(file):
            assert function.__code__ == sample.unbroken(file)[name]
            raising = sample.beginning(file, "raise AssertionError")[name]
            assert raising.co_freevars == function.__code__.co_freevars
