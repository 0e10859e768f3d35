"""The list of deliberate breakages fits the code: each one's text is there once, and its test exists."""

from __future__ import annotations

import ast
import functools
import sys
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "mutants"))

from breakages import PACKAGE, Mutant, check, find, load_mutants  # noqa: E402 - a script's folder, not a package
from fixtures.tiers import tier_of  # noqa: E402 - as above
from offsetkeeper.testing.simulator.scenarios import scenarios  # noqa: E402 - as above
from simulate import simulated  # noqa: E402 - as above


@functools.cache
def nodes_of(path: Path) -> tuple[ast.AST, ...]:
    """Return what a file says."""
    return tuple(ast.walk(ast.parse(path.read_text("utf-8"))))


@functools.cache
def inherited() -> set[str]:
    """Return the names of what test files may inherit or share."""
    files = [*(PACKAGE / "testing" / "conformance").glob("*.py"), *(ROOT / "tests").rglob("*_suite.py")]
    return {node.name for file in files for node in nodes_of(file) if isinstance(node, ast.FunctionDef)}


def check_compiles(mutant: Mutant) -> None:
    """Compile what a breakage breaks, not all of its file."""
    file, text = mutant.apply()
    if file.suffix == ".py":
        first, last = find(mutant.at)[1:]
        grown = text.count("\n") - (PACKAGE / file).read_text("utf-8").count("\n")
        broken = "".join(text.splitlines(keepends=True)[first : last + grown])
        compile(f"class _:\n{broken}" if broken[0] == " " else broken, str(file), "exec", dont_inherit=True)


def problems(mutant: Mutant) -> list[str]:
    """Return what is wrong with a breakage."""
    try:
        check_compiles(mutant)
    except (ValueError, SyntaxError, OSError) as error:
        return [f"{mutant.name}: {error}"]
    path, *names = mutant.test.split("::")
    known = inherited() | {node.name for node in nodes_of(ROOT / path) if hasattr(node, "name")}
    missing = [f"{mutant.name}: no {name}" for name in names if name not in known]
    one_test = bool(names) and names[-1].startswith("test_")
    return missing if one_test else [f"{mutant.name}: {mutant.test} is not one test", *missing]


def test_every_breakage_can_be_made_and_has_its_test() -> None:
    mutants = list(load_mutants())
    assert len(mutants) >= 30
    assert [name for name, count in Counter(mutant.name for mutant in mutants).items() if count > 1] == []
    assert [problem for mutant in mutants for problem in problems(mutant)] == []


def test_what_the_simulator_is_to_find_names_its_scenario_or_says_why_it_cannot() -> None:
    rooms = [mutant for mutant in load_mutants() if simulated(mutant)]
    assert len(rooms) >= 100
    assert [each.name for each in rooms if bool(each.scenario) == bool(each.no_scenario)] == []
    assert {each.scenario for each in rooms if each.scenario} <= scenarios().keys()


def soaked(test: str) -> bool:
    """Whether a test is left to `make soak`: it is marked, its class or file is, or tests/tiers.toml names it."""
    path, *names = test.split("::")
    marked = False
    for node in nodes_of(ROOT / path):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name in names:
            marked |= any(ast.unparse(each) == "pytest.mark.soak" for each in node.decorator_list)
        elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark":
            marked |= "mark.soak" in ast.unparse(node.value)
    found = tier_of(test.removeprefix("tests/"))
    return marked or (found is not None and found.name == "soak")


def test_every_breakage_is_caught_by_what_make_test_runs() -> None:
    """Of parametrized tests, `make mutants` runs what `make test` and `make wide` do."""
    assert [mutant.name for mutant in load_mutants() if soaked(mutant.test)] == []
    assert soaked("tests/servers/test_cluster.py::test_a_cluster_killed_as_a_whole_comes_back_on_its_url")


@pytest.mark.parametrize(
    "body", ["assert missing", "import pytest; pytest.skip('')", ""], ids=["red", "skipped", "green"]
)
def test_a_test_that_does_not_pass_on_the_sources_as_they_are_catches_nothing(tmp_path: Path, body: str) -> None:
    path = tmp_path / "test_it.py"
    path.write_text(f"def test_it():\n    {body or 'pass'}\n", "utf-8")
    if not body:
        check(f"{path}::test_it")
        return
    with pytest.raises(RuntimeError, match="does not pass on the sources as they are"):
        check(f"{path}::test_it")
