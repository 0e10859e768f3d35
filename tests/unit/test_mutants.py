"""The list of deliberate breakages fits the code: each one's text is there once, and its test exists."""

from __future__ import annotations

import ast
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "mutants"))

from breakages import PACKAGE, Mutant, load_mutants  # noqa: E402 - a script's folder, not a package


def problems(mutant: Mutant) -> list[str]:
    """Return what is wrong with a breakage."""
    try:
        text = mutant.apply((PACKAGE / mutant.file).read_text("utf-8"))
        if mutant.file.endswith(".py"):
            compile(text, mutant.file, "exec", dont_inherit=True)
    except (ValueError, SyntaxError, OSError) as error:
        return [f"{mutant.name}: {error}"]
    path, *names = mutant.test.split("::")
    known = {node.name for node in ast.walk(ast.parse((ROOT / path).read_text("utf-8"))) if hasattr(node, "name")}
    inherited = "".join(file.read_text("utf-8") for file in (PACKAGE / "testing" / "conformance").glob("*.py"))
    return [f"{mutant.name}: no {name}" for name in names if name not in known and f"def {name}(" not in inherited]


def test_every_breakage_can_be_made_and_has_its_test() -> None:
    mutants = list(load_mutants())
    assert len(mutants) >= 30
    assert [name for name, count in Counter(mutant.name for mutant in mutants).items() if count > 1] == []
    assert [problem for mutant in mutants for problem in problems(mutant)] == []
