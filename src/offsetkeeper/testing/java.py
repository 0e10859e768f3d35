"""Finds the Java that runs the servers, and the Spark that pip installed; how a small JVM is run and set."""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from offsetkeeper.testing.errors import ToolMissing

OLDEST = 17
ARCHIVES = "OFFSETKEEPER_CLASS_ARCHIVES"
"""Environment variable: a folder with archives of the classes that servers load. With one they start much faster."""
RECORDED = "OFFSETKEEPER_RECORD_CLASSES"
"""Environment variable: if it is set, each JVM whose archive is missing writes it when it is asked to end."""
LOG4J2 = """<Configuration status="ERROR">
<Appenders><Console name="out"><PatternLayout pattern="%d %p %c: %m%n"/></Console></Appenders>
<Loggers><Root level="WARN"><AppenderRef ref="out"/></Root></Loggers></Configuration>"""


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


def spark_jars(*patterns: str) -> list[Path]:
    """Return those of pyspark's jars whose names, without `.jar`, have one of the patterns.

    Raises:
        ToolMissing: no jar has one of them.
    """
    found: list[Path] = []
    for pattern in patterns:
        jars = sorted(spark_home().glob(f"jars/{pattern}.jar"))
        if not jars:
            raise ToolMissing(f"there is no {pattern}.jar in {spark_home()}/jars: install pyspark anew")
        found += jars
    return found


def java_command(
    jars: Iterable[str | Path], *arguments: str, heap: str = "256m", options: Sequence[str] = ()
) -> list[str]:
    """Return the command that runs a class in a JVM which is small and quick to start.

    Args:
        jars: its class path, also folders.
        arguments: the class and its arguments.
        heap: the most memory, in Java's notation.
        options: more of the JVM's.

    Raises:
        ToolMissing: Java 17 is missing.
    """
    small = [f"-Xmx{heap}", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", *class_archive(arguments[0])]
    return [str(java()), *small, *options, "-cp", ":".join(map(str, jars)), *arguments]


def class_archive(main: str) -> list[str]:
    """Return the options with which a JVM shares the archived classes of a main class, see `ARCHIVES`; else none.

    A JVM of another release, or with other jars, takes no notice of the archive (JEP 350).
    """
    folder = os.environ.get(ARCHIVES)
    file = Path(folder or "", f"{main}.jsa").resolve()  # each server has a working folder of its own
    if folder and file.exists():
        return [f"-XX:SharedArchiveFile={file}", "-Xlog:cds*=off"]
    return [f"-XX:ArchiveClassesAtExit={file}", "-Xlog:cds*=off"] if folder and os.environ.get(RECORDED) else []


def properties(settings: Mapping[str, str]) -> str:
    """Return settings as a file of Java's properties has them."""
    return "".join(f"{key}={value}\n" for key, value in settings.items())


def hadoop_xml(settings: Mapping[str, str]) -> str:
    """Return settings as Hadoop's files have them."""
    rows = "".join(f"<property><name>{key}</name><value>{value}</value></property>" for key, value in settings.items())
    return f"<configuration>{rows}</configuration>"


@functools.cache
def _release(path: str) -> int:
    """Return the release `path` says it is (8, 17, ...), or 0 where it does not run."""
    try:
        answer = subprocess.run([path, "-version"], capture_output=True, text=True, check=False, timeout=30).stderr
    except (OSError, subprocess.TimeoutExpired):
        return 0
    match = re.search(r'version "(?:1\.)?(\d+)', answer)
    return int(match[1]) if match else 0
