"""What `make test` leaves out is there, and what shows the same is run."""

from __future__ import annotations

import ast
import re

import pytest

from fixtures.tiers import TESTS, Tier, tier_of, tiers

KNOWN = list(tiers())
CONFORMANCE = TESTS.parent / "src" / "offsetkeeper" / "testing" / "conformance"
PATTERNS = [(tier, pattern.pattern) for tier in KNOWN for pattern in tier.tests]


def functions(path: str) -> set[str]:
    """Return the names of the tests in the files that a pattern's path matches, and of the suites they may inherit."""
    files = [file for file in TESTS.rglob("test_*.py") if re.fullmatch(path, str(file.relative_to(TESTS)))]
    read = [*files, *CONFORMANCE.glob("*.py"), *(TESTS / "sinks").glob("*.py")] if files else []
    trees = [ast.parse(file.read_text("utf-8")) for file in read]
    return {node.name for tree in trees for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize(("tier", "pattern"), PATTERNS, ids=lambda each: each if isinstance(each, str) else each.name)
def test_each_pattern_matches_tests_that_are_there(tier: Tier, pattern: str) -> None:
    path, *names = pattern.split("::")
    known = functions(path if names else f"{path}\\.py" if not path.endswith(".*") else path)
    assert known
    if names and names[-1] != ".*" and names[-1].startswith("test_"):
        name = names[-1].split(r"\[")[0]
        assert any(re.fullmatch(name, each) for each in known)
    assert tier.shown


@pytest.mark.parametrize("shown", sorted({each for tier in KNOWN for each in tier.shown}))
def test_what_shows_the_same_is_not_left_to_the_soak(shown: str) -> None:
    tests = ast.walk(ast.parse((TESTS / shown).read_text("utf-8")))
    names = [node.name for node in tests if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    assert any(name.lower().startswith("test") for name in names)
    assert tier_of(f"{shown}::test_anything", KNOWN) != "soak"


def test_a_test_of_both_is_left_to_the_soak() -> None:
    assert tier_of("stores/test_hbase.py::TestHBase::test_groups_of_any_name_are_kept_apart", KNOWN) == "soak"
    assert tier_of("stores/test_hbase.py::TestHBase::test_garbage_is_told_and_left_as_it_is", KNOWN) == "wide"
    assert tier_of("stores/test_sqlite.py::TestSQLite::test_groups_of_any_name_are_kept_apart", KNOWN) == ""
