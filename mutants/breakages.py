"""Breaks the code on purpose, one breakage at a time, and runs the test that must notice.

    python mutants/breakages.py [WORD…]      only those whose name has one of the words

The breakages are in the TOML files beside this one: `file` below the package, `old` text that is in it exactly once,
`new` text in its place, and the `test` that fails then. The last line is JSON: how many were caught, and the names of
those that were not. Each runs on a copy of the package; the sources are never touched.

A test that fails anyway would catch everything. So each is first run on the sources as they are, and must pass.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
PACKAGE = HERE.parent / "src" / "offsetkeeper"
_LIMIT_S = 300
_PASSED, _FAILED = 0, 1  # pytest's exit codes where tests ran; all others are errors of ours


class Mutant(NamedTuple):
    """One breakage."""

    name: str
    file: str
    old: str
    new: str
    test: str

    def apply(self, text: str) -> str:
        """Return the text broken.

        Raises:
            ValueError: the old text is not in it exactly once, so the list is out of date.
        """
        if text.count(self.old) != 1:
            raise ValueError(f"{self.name}: {self.old!r} is in {self.file} {text.count(self.old)} times, not once")
        return text.replace(self.old, self.new)


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
        copy = Path(folder) / "offsetkeeper"
        shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
        broken = copy / mutant.file
        broken.write_text(mutant.apply(broken.read_text("utf-8")), "utf-8")
        code, told = _run(mutant.test, Path(folder))
    if code not in {_PASSED, _FAILED}:
        raise RuntimeError(f"{mutant.name}: {mutant.test} could not be run:\n{told}")
    return code == _FAILED


def _run(test: str, source: Path) -> tuple[int, str]:
    """Run a test on a package in this folder; return pytest's exit code and all it said."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", test]
    environment = {**os.environ, "PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        command, cwd=HERE.parent, env=environment, capture_output=True, text=True, timeout=_LIMIT_S, check=False
    )
    return done.returncode, done.stdout + done.stderr


def main() -> int:
    """Run the chosen breakages; 1 where one survives."""
    words = sys.argv[1:]
    chosen = [mutant for mutant in load_mutants() if not words or any(word in mutant.name for word in words)]
    for test in dict.fromkeys(mutant.test for mutant in chosen):
        check(test)
    survivors = []
    for number, mutant in enumerate(chosen, 1):
        found = caught(mutant)
        print(f"{number:3}/{len(chosen)} {'caught  ' if found else 'SURVIVED'} {mutant.name}", file=sys.stderr)
        if not found:
            survivors.append(mutant.name)
    print(json.dumps({"mutants": len(chosen), "caught": len(chosen) - len(survivors), "survived": survivors}))
    return bool(survivors)


if __name__ == "__main__":
    sys.exit(main())
