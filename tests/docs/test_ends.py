"""The pages on where guarantees end, and on what servers need, say what tests show and what the doctor asks."""

from __future__ import annotations

import ast
import re
import tomllib

import pytest

from docs.pages import ROOT
from fixtures.tiers import tier_of
from offsetkeeper.operate.doctor.durability import ASKED

CONFORMANCE = ROOT / "src" / "offsetkeeper" / "testing" / "conformance"
HOLDER = {"MySQL": "MySQL, MariaDB"}  # the first cell of a server's row
ASIDE = {"participants": "Three servers or more", "replication_factor": "replication_factor"}


def table(page: str, heading: str) -> list[list[str]]:
    """Return the cells of the table below a heading, without its head."""
    text = (ROOT / "docs" / page).read_text("utf-8").partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    rows = [line.strip("|").split(" | ") for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row] for row in rows[2:]]


@pytest.mark.parametrize(
    ("heading", "least"),
    [("Where a guarantee ends", 15), ("Another cluster in mid-run", 5), ("The same place", 12)],
)
def test_each_end_of_a_guarantee_has_a_test(heading: str, least: int) -> None:
    """A test that is renamed or taken away leaves no promise behind."""
    cases = [case for case, _ in table("guarantees.md", heading)]
    assert len(cases) >= least
    shown = tomllib.loads((ROOT / "tests" / "docs" / "ends.toml").read_text("utf-8"))[heading]
    assert [*shown] == cases
    for case, test in shown.items():
        check_there(case, test)


def check_there(case: str, test: str) -> None:
    """Check that a test exists: in its file, or in a suite that its class inherits."""
    path, *names = test.split("::")
    suites = [*CONFORMANCE.glob("*.py"), *(ROOT / "tests").rglob("*_suite.py")] if len(names) > 1 else []
    trees = [ast.parse(file.read_text("utf-8")) for file in (ROOT / path, *suites)]
    known = {node.name for tree in trees for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    assert names[-1].startswith("test_"), case
    assert {*names} <= known, case


def test_each_promise_is_shown_by_a_test_that_make_test_runs() -> None:
    rows = table("proof.md", "Which test shows which promise")
    assert len(rows) >= 30
    for promise, shown in rows:
        test = shown.strip("`")
        check_there(promise, test)
        assert tier_of(test.removeprefix("tests/")) is None, promise


@pytest.mark.parametrize("server", ASKED)
def test_what_the_doctor_asks_of_a_server_is_marked_in_its_row(server: str) -> None:
    rows = table("stores.md", "What an acknowledged change survives")
    rows += table("sinks.md", "What an acknowledged batch survives")
    [row] = [row for row in rows if row[0].strip("`") == HOLDER.get(server, server)]
    marked = set(re.findall(r"`([^`]+)`\\\*", " ".join(row)))
    expected = {name for name in ASKED[server] if name not in ASIDE}
    assert marked - {"replication_factor"} == expected - {"replication_factor"}
    assert all(f"{ASIDE[name]}" in " ".join(row) for name in ASKED[server] if name in ASIDE)
