"""Finds the Java that runs the servers, and the Spark that pip installed."""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import shutil
import subprocess
from pathlib import Path

from offsetkeeper.testing.errors import ToolMissing

OLDEST = 17


def java() -> Path:
    """Return the path of a `java` of release 17 or newer: that of JAVA_HOME, else the first on PATH.

    Raises:
        ToolMissing: there is none.
    """
    home = os.environ.get("JAVA_HOME")
    found = [str(Path(home, "bin", "java"))] if home else []
    found += [path] if (path := shutil.which("java")) else []
    releases = {path: _release(path) for path in found}
    for path, release in releases.items():
        if release >= OLDEST:
            return Path(path)
    seen = ", ".join(f"{path} is release {release or 'unknown'}" for path, release in releases.items())
    raise ToolMissing(
        f"Java {OLDEST} or newer is needed, found {seen or 'none'}: "
        "install a JDK (Debian: apt-get install openjdk-17-jre-headless) and set JAVA_HOME or PATH"
    )


def spark_home() -> Path:
    """Return the folder of the pyspark package, without loading it.

    Raises:
        ToolMissing: it is not installed.
    """
    spec = importlib.util.find_spec("pyspark")
    if not spec or not spec.origin:
        raise ToolMissing("pyspark is needed: pip install 'offsetkeeper[spark]'")
    return Path(spec.origin).parent


@functools.cache
def _release(path: str) -> int:
    """Return the release `path` says it is (8, 17, ...), or 0 where it does not run."""
    try:
        answer = subprocess.run([path, "-version"], capture_output=True, text=True, check=False, timeout=30).stderr
    except (OSError, subprocess.TimeoutExpired):
        return 0
    match = re.search(r'version "(?:1\.)?(\d+)', answer)
    return int(match[1]) if match else 0
