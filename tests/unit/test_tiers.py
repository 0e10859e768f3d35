"""What `make test` leaves out is there, and what shows the same is run."""

from __future__ import annotations

import ast
import functools
import re
from collections import Counter
from pathlib import Path

import pytest

from fixtures.tiers import TESTS, Tier, is_of, tier_of, tiers

CONFORMANCE = TESTS.parent / "src" / "offsetkeeper" / "testing" / "conformance"
PATTERNS = [(tier, pattern.pattern) for tier in tiers() for pattern in tier.tests]


def functions(path: str) -> set[str]:
    """Return the names of the tests in the files that a pattern's path matches, and of the suites they may inherit."""
    files = [file for file in TESTS.rglob("test_*.py") if re.fullmatch(path, str(file.relative_to(TESTS)))]
    read = [*files, *CONFORMANCE.glob("*.py"), *(TESTS / "sinks").glob("*.py")] if files else []
    return {name for file in read for name in names_of(file)}


@functools.cache
def names_of(file: Path) -> frozenset[str]:
    """Return the names of the functions of a file."""
    tree = ast.walk(ast.parse(file.read_text("utf-8")))
    return frozenset(node.name for node in tree if isinstance(node, ast.FunctionDef))


@pytest.mark.parametrize(("entry", "pattern"), PATTERNS, ids=lambda each: each if isinstance(each, str) else each.name)
def test_each_pattern_matches_tests_that_are_there(entry: Tier, pattern: str) -> None:
    path, *names = pattern.split("::")
    known = functions(path if names else f"{path}\\.py" if not path.endswith(".*") else path)
    assert known
    if names and names[-1] != ".*" and names[-1].startswith("test_"):
        name = names[-1].split(r"\[")[0]
        assert any(re.fullmatch(name, each) for each in known)
    assert entry.shown


@pytest.mark.parametrize("shown", sorted({each for tier in tiers() for each in tier.shown}))
def test_what_shows_the_same_has_tests(shown: str) -> None:
    tests = ast.walk(ast.parse((TESTS / shown).read_text("utf-8")))
    names = [node.name for node in tests if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    assert any(name.lower().startswith("test") for name in names)


def test_each_name_of_a_test_is_in_one_file() -> None:
    """So it can be searched. What several servers show alike is a suite."""
    suites = [*CONFORMANCE.glob("*.py"), *{*TESTS.rglob("*_suite.py")} - {*TESTS.rglob("test_*.py")}]
    inherited = {name for file in suites for name in names_of(file)}
    found = Counter(
        name for file in TESTS.rglob("test_*.py") for name in names_of(file) - inherited if name.startswith("test_")
    )
    assert len(found) > 2000
    assert [name for name, files in found.items() if files > 1] == []


def test_a_test_of_both_is_left_to_the_soak() -> None:
    histories = "test_owners_that_crash_and_lose_replies_agree_with_a_simple_model"
    assert tier(f"stores/test_hbase.py::TestHBase::{histories}") == "soak"
    assert tier("stores/test_hbase.py::TestHBase::test_garbage_is_told_and_left_as_it_is") == "wide"
    assert tier(f"stores/test_sqlite.py::TestSQLite::{histories}") == ""


def tier(test: str) -> str:
    """Return the command that runs a test, if it is not `make test`."""
    found = tier_of(test)
    return "" if found is None else found.name


def test_each_group_is_in_one_of_the_shares() -> None:
    groups = ["test_hdfs", "test_kafka", "test_cassandra", "test_hbase", "test_kill_at_every_step"]
    assert [sum(is_of(group, f"{number}/2") for number in (0, 1)) for group in groups] == [1] * len(groups)
