"""Releases of Spark, each with this project's wheel in an environment of its own, which stays in `.sparks`."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path
from typing import NamedTuple

from offsetkeeper.testing.artifacts import fetch_jars

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 200


class Release(NamedTuple):
    """A release line of Spark.

    Attributes:
        pyspark: the newest of the line.
        connector: the jars of its Kafka connector; the newest that was published when they were listed.
    """

    pyspark: str
    connector: str


RELEASES = {
    "3.5": Release("3.5.9", "connector-3.5.7"),
    "4.0": Release("4.0.5", "connector-4.0.4"),
    "4.1": Release("4.1.4", "connector-4.1.3"),
    "4.2": Release("4.2.1", "connector"),
    "4.3": Release("4.3.0", "connector"),
}


def asked() -> list[str]:
    """Return the releases that OFFSETKEEPER_SPARKS asks for, oldest first: some of them, or `all`.

    Raises:
        KeyError: it names another one.
    """
    names = os.environ.get("OFFSETKEEPER_SPARKS", "").split()
    return [*RELEASES] if names == ["all"] else sorted((name for name in names if RELEASES[name]), key=number)


def number(name: str) -> tuple[int, ...]:
    """Return the numbers of a release's name."""
    return tuple(map(int, name.split(".")))


@functools.cache
def environment(name: str) -> Path:
    """Return the Python that has this release of pyspark and the project's wheel, as pip installs them."""
    folder = ROOT / ".sparks" / RELEASES[name].pyspark
    python, ready = folder / "bin" / "python", folder / "ready"
    if not ready.exists():
        venv.create(folder, with_pip=True, clear=True)
        _pip(python, f"{wheel()}[spark]", f"pyspark=={RELEASES[name].pyspark}")
        ready.touch()
    _pip(python, "--no-deps", "--force-reinstall", str(wheel()))
    return python


@functools.cache
def wheel() -> Path:
    """Return the project's wheel, built from what is here now."""
    folder = Path(tempfile.mkdtemp(prefix="wheel-", dir=_made(ROOT / ".sparks")))
    built = build_wheel(folder)
    kept = _made(ROOT / ".sparks" / "wheel") / built.name
    shutil.move(built, kept)
    folder.rmdir()
    return kept


def build_wheel(folder: Path) -> Path:
    """Build the project's wheel into a folder that is empty."""
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, "--wheel-dir", folder, ROOT], check=True)
    [built] = folder.glob("*.whl")
    return built


def jars(name: str) -> str:
    """Return the jars of the release's connector, for `spark.jars`."""
    return ",".join(map(str, fetch_jars(RELEASES[name].connector)))


def run(name: str, script: Path, *arguments: str, status: int = 0) -> list[str]:
    """Run a script by the release's Python, of which nothing else is known here; return the lines it printed.

    Args:
        name: of the release.
        script: its path.
        arguments: of the script.
        status: that it must end with; negative for a signal.
    """
    python = environment(name)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_", "PYTHON"))}
    found = {**kept, "PYSPARK_PYTHON": str(python), "SPARK_LOCAL_IP": "127.0.0.1"}
    command = [str(python), str(script), *arguments]
    done = subprocess.run(command, env=found, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == status, f"{done.returncode}: {done.stdout[-1000:]} {done.stderr[-6000:]}"
    return done.stdout.splitlines()


def _pip(python: Path, *wanted: str) -> None:
    subprocess.run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *wanted], check=True)


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder
