"""Breaks the code on purpose, one breakage at a time, and runs the test that must notice.

    python mutants/breakages.py [WORD…]      only those whose name has one of the words

The breakages are in the TOML files beside this one: `at` names a function, a method or a constant (see `find`), `old`
is text that is in it exactly once, `new` the text in its place, and `test` what fails then. So code that moves to
another file breaks none. `scenario` is where the simulator finds it too; or `no_scenario` says why it cannot: see
`simulate.py`. The last line is JSON: how many were caught, and the names of those that were not. Each runs
on a copy of the package; the sources are never touched.

A test that fails anyway would catch everything. So each is first run on the sources as they are, and must pass.
"""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
PACKAGE = HERE.parent / "src" / "offsetkeeper"
_LIMIT_S = 300
_PASSED, _FAILED = 0, 1  # pytest's exit codes where tests ran; all others are errors of ours


class Mutant(NamedTuple):
    """One breakage."""

    name: str
    at: str
    old: str
    new: str
    test: str
    scenario: str = ""
    no_scenario: str = ""

    def apply(self) -> tuple[Path, str]:
        """Return the file, below the package, and its text broken.

        Raises:
            ValueError: the list is out of date: no one place has the name, or the old text is not in it exactly once.
        """
        file, first, last = find(self.at)
        lines = (PACKAGE / file).read_text("utf-8").splitlines(keepends=True)
        there = "".join(lines[first:last])
        if there.count(self.old) != 1:
            raise ValueError(f"{self.name}: {self.old!r} is in {self.at} {there.count(self.old)} times, not once")
        return file, "".join([*lines[:first], there.replace(self.old, self.new), *lines[last:]])


class Place(NamedTuple):
    """Where something is: a file below the package, and its lines from `first` up to, not including, `last`."""

    file: Path
    first: int
    last: int


def find(name: str) -> Place:
    """Return the place of a function, a method or a constant: `decide`, `Ledger.commit`, `_MERGE`.

    Where several files have it, the file's own name comes first: `rules:_commit`, or, where that is not enough, its
    folder's too: `redis/connections:_is_open`. A file that is not Python is named by its name: `apply.lua`.

    Raises:
        ValueError: nothing has the name, or several things do.
    """
    found = _places().get(name, [])
    if len(found) != 1:
        raise ValueError(f"{name} is the name of {len(found)} places, not of one: {[str(each.file) for each in found]}")
    return found[0]


@cache
def _places() -> dict[str, list[Place]]:
    places: dict[str, list[Place]] = {}
    for path in sorted(PACKAGE.rglob("*")):
        file = path.relative_to(PACKAGE)
        if path.suffix == ".py":
            for name, first, last in _named(ast.parse(path.read_text("utf-8")), ""):
                for each in (name, f"{path.stem}:{name}", f"{path.parent.name}/{path.stem}:{name}"):
                    places.setdefault(each, []).append(Place(file, first, last))
        elif path.is_file() and path.suffix != ".pyc":
            places.setdefault(path.name, []).append(Place(file, 0, sys.maxsize))
    return places


def _named(node: ast.AST, above: str) -> Iterator[tuple[str, int, int]]:
    """Yield the name and the lines of whatever has a name in a module or a class."""
    for child in ast.iter_child_nodes(node):
        names = (
            [child.name]
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
            else _targets(child)
        )
        for name in names:
            decorators = getattr(child, "decorator_list", [])
            first = min([child.lineno, *(each.lineno for each in decorators)])  # type: ignore[attr-defined]
            yield above + name, first - 1, child.end_lineno  # type: ignore[attr-defined]
            if isinstance(child, ast.ClassDef):
                yield from _named(child, f"{above}{name}.")


def _targets(node: ast.AST) -> list[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return [target.id for target in targets if isinstance(target, ast.Name)]


def load_mutants() -> Iterator[Mutant]:
    """Yield every breakage of every list."""
    for path in sorted(HERE.glob("*.toml")):
        for entry in tomllib.loads(path.read_text("utf-8"))["mutant"]:
            yield Mutant(**entry)


def check(test: str) -> None:
    """Check that a test passes on the sources as they are.

    Raises:
        RuntimeError: it does not, or is skipped, so it can catch nothing.
    """
    code, told = _run(test, PACKAGE.parent)
    if code != _PASSED or " passed" not in told:
        raise RuntimeError(f"{test} does not pass on the sources as they are, so it tells nothing:\n{told}")


def caught(mutant: Mutant) -> bool:
    """Whether the mutant's test fails on the broken code.

    Raises:
        RuntimeError: the test could not be run.
    """
    with tempfile.TemporaryDirectory() as folder:
        make_broken(mutant, Path(folder))
        code, told = _run(mutant.test, Path(folder))
    if code not in {_PASSED, _FAILED}:
        raise RuntimeError(f"{mutant.name}: {mutant.test} could not be run:\n{told}")
    return code == _FAILED


def make_broken(mutant: Mutant, folder: Path) -> None:
    """Copy the package into a folder, and break it there."""
    copy = folder / "offsetkeeper"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    file, text = mutant.apply()
    (copy / file).write_text(text, "utf-8")


def _run(test: str, source: Path) -> tuple[int, str]:
    """Run a test on a package in this folder; return pytest's exit code and all it said."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-m", "not soak", test]
    environment = {**os.environ, "PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        command, cwd=HERE.parent, env=environment, capture_output=True, text=True, timeout=_LIMIT_S, check=False
    )
    return done.returncode, done.stdout + done.stderr


def main() -> int:
    """Run the chosen breakages, one for each core at a time; 1 where one survives."""
    words = sys.argv[1:]
    chosen = [mutant for mutant in load_mutants() if not words or any(word in mutant.name for word in words)]
    survivors = []
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for _ in pool.map(check, dict.fromkeys(mutant.test for mutant in chosen)):
            pass
        for number, (mutant, found) in enumerate(zip(chosen, pool.map(caught, chosen), strict=True), 1):
            told = "caught  " if found else "SURVIVED"
            print(f"{number:3}/{len(chosen)} {told} {mutant.name}", file=sys.stderr, flush=True)
            if not found:
                survivors.append(mutant.name)
    print(json.dumps({"mutants": len(chosen), "caught": len(chosen) - len(survivors), "survived": survivors}))
    return bool(survivors)


if __name__ == "__main__":
    sys.exit(main())
