"""What is published: the package, whole, and nothing beside it."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path

from sparks import releases

ROOT = Path(__file__).parents[2]


def test_the_source_archive_has_what_a_build_needs_and_no_more(tmp_path: Path) -> None:
    """Every file of the package is in it, templates and scripts too; tests, docs and settings of tools are not."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    [archive] = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        names = {name.partition("/")[2] for name in packed.getnames()}
    package = (path for path in (ROOT / "src" / "offsetkeeper").rglob("*") if path.is_file())
    wanted = {str(path.relative_to(ROOT)) for path in package if "__pycache__" not in path.parts}
    assert names == wanted | {".gitignore", "LICENSE", "PKG-INFO", "README.md", "hatch_build.py", "pyproject.toml"}


def test_the_extra_takes_no_spark_newer_than_the_newest_that_was_run() -> None:
    major, minor = max(map(releases.number, releases.RELEASES))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert f"pyspark>=3.5,<{major}.{minor + 1}" in project["optional-dependencies"]["spark"]
