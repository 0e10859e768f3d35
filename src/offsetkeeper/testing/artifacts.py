"""Fetches the jars that servers and Spark's Kafka connector consist of, checked and cached.

artifacts.json lists each jar by its Maven coordinates and SHA-256. They are fetched by the Ivy that lies in pyspark's
jars, without resolving dependencies, so every machine gets the same bytes. Needs a Java, but no Spark to run.

Environment:
    OFFSETKEEPER_CACHE: folder to keep the jars in; by default `~/.cache/offsetkeeper`.
    OFFSETKEEPER_IVY_SETTINGS: an ivysettings.xml to use instead of Maven Central, such as a company's own mirror.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from importlib import resources
from pathlib import Path
from typing import NamedTuple
from xml.sax.saxutils import quoteattr

from offsetkeeper.testing.errors import ArtifactError
from offsetkeeper.testing.java import java, spark_jars

Progress = Callable[[str], None]

# Maven Central, jars only: with exact coordinates the POMs would be 50 requests for nothing.
_SETTINGS = """<ivysettings><settings defaultResolver="central"/><resolvers>
<ibiblio name="central" m2compatible="true" usepoms="false"/>
</resolvers></ivysettings>"""


class Artifact(NamedTuple):
    """One jar: its Maven coordinates, and the SHA-256 of its bytes in hexadecimal."""

    org: str
    name: str
    rev: str
    sha256: str
    classifier: str = ""

    @property
    def file(self) -> str:
        """Name of the jar in its set's folder."""
        return f"{self.name}-{self.rev}{'-' if self.classifier else ''}{self.classifier}.jar"

    def __str__(self) -> str:
        return f"{self.org}:{self.name}:{self.rev}{':' if self.classifier else ''}{self.classifier}"


def to_stderr(line: str) -> None:
    """Write one line of progress to stderr."""
    sys.stderr.write(f"{line}\n")


def cache_folder() -> Path:
    """Return the folder that fetched jars are kept in. It need not exist yet."""
    return Path(os.environ.get("OFFSETKEEPER_CACHE") or Path.home() / ".cache" / "offsetkeeper")


def artifact_set(name: str) -> list[Artifact]:
    """Return what the set `name` consists of: kafka, connector, or postgresql (this machine's build of it).

    Raises:
        ArtifactError: the set is unknown, or has no build for this machine.
    """
    sets = json.loads(resources.files("offsetkeeper.testing").joinpath("artifacts.json").read_text("utf-8"))
    key = f"postgresql-{_machine()}" if name == "postgresql" else name
    if key not in sets:
        raise ArtifactError(f"no artifacts are known by the name {key}; known are {', '.join(sets)}")
    return [Artifact(**row) for row in sets[key]]


def fetch_jars(name: str, progress: Progress | None = None) -> list[Path]:
    """Return the jars of the set `name`, fetched if they are not in the cache yet.

    A complete set is taken from the cache without a look at the network. Only one process fetches at a time.

    Args:
        name: kafka, connector or postgresql.
        progress: called with a line of text when something has to be fetched; by default it goes to stderr.

    Raises:
        ArtifactError: a jar could not be fetched or is not the expected one (it is deleted then).
        ToolMissing: Java 17 is missing, or pyspark, which brings Ivy.
    """
    wanted = artifact_set(name)
    folder = cache_folder() / name
    mark = folder / "complete"
    content = "".join(f"{artifact} {artifact.sha256}\n" for artifact in wanted)
    jars = [folder / artifact.file for artifact in wanted]
    with _lock(folder):
        if not (mark.exists() and mark.read_text("utf-8") == content and all(jar.exists() for jar in jars)):
            _complete(wanted, folder, progress or to_stderr)
            mark.write_text(content, "utf-8")
    return jars


def _complete(wanted: list[Artifact], folder: Path, progress: Progress) -> None:
    """Fetch what `folder` lacks. A jar left half written by a killed process counts as lacking."""
    _drop_wrong(wanted, folder)
    missing = [artifact for artifact in wanted if not (folder / artifact.file).exists()]
    if not missing:
        return
    progress(f"fetching {len(missing)} jars for {folder.name} into {folder}")
    log = _run_ivy(missing, folder)
    wrong = _drop_wrong(missing, folder)
    if wrong:
        shutil.rmtree(folder / "ivy", ignore_errors=True)
        raise ArtifactError(
            f"{_names(wrong)}: the downloaded file has an unexpected SHA-256 and was deleted; "
            "check the registry or mirror it came from, then try again"
        )
    missing = [artifact for artifact in missing if not (folder / artifact.file).exists()]
    if missing:
        raise ArtifactError(
            f"could not fetch {_names(missing)}: check the network, or set OFFSETKEEPER_IVY_SETTINGS to an "
            f"ivysettings.xml whose registry is reachable; what Ivy said is in {log}"
        )
    shutil.rmtree(folder / "ivy", ignore_errors=True)


def _run_ivy(missing: list[Artifact], folder: Path) -> Path:
    """Let Ivy try to put `missing` into `folder`; return its log."""
    work = folder / "ivy"
    work.mkdir(exist_ok=True)
    settings, wishes, log = work / "ivysettings.xml", work / "ivy.xml", work / "ivy.log"
    settings.write_text(_SETTINGS, "utf-8")
    wishes.write_text(_ivy_xml(missing), "utf-8")
    options = {
        "-settings": os.environ.get("OFFSETKEEPER_IVY_SETTINGS") or settings,
        "-ivy": wishes,
        "-cache": work / "cache",
        "-retrieve": folder / "[artifact]-[revision](-[classifier]).[ext]",
    }
    arguments = [str(part) for pair in options.items() for part in pair]
    with log.open("wb") as out:
        subprocess.run([java(), "-jar", spark_jars("ivy-*")[-1], *arguments], stdout=out, stderr=out, check=False)
    return log


def _ivy_xml(wanted: Iterable[Artifact]) -> str:
    modules: dict[tuple[str, str, str], list[str]] = {}
    for each in wanted:
        modules.setdefault(each[:3], []).append(each.classifier)
    rows = (_ivy_module(*module, classifiers) for module, classifiers in modules.items())
    return (
        '<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">'
        '<info organisation="offsetkeeper" module="jars"/><configurations><conf name="default"/></configurations>'
        f"<dependencies>{''.join(rows)}</dependencies></ivy-module>"
    )


def _ivy_module(org: str, name: str, rev: str, classifiers: list[str]) -> str:
    # master is the jar alone where a registry's POM is read, default is all there is where it is not.
    artifacts = (
        f'<artifact name={quoteattr(name)} type="jar" ext="jar"{f" m:classifier={quoteattr(each)}" if each else ""}/>'
        for each in classifiers
    )
    return (
        f"<dependency org={quoteattr(org)} name={quoteattr(name)} rev={quoteattr(rev)}"
        f' transitive="false" conf="default->master(default)">'
        f"{''.join(artifacts) if any(classifiers) else ''}</dependency>"
    )


def _drop_wrong(wanted: Iterable[Artifact], folder: Path) -> list[Artifact]:
    """Delete the jars whose SHA-256 is not the expected one, and return them."""
    wrong = [a for a in wanted if (jar := folder / a.file).exists() and _sha256(jar) != a.sha256]
    for artifact in wrong:
        (folder / artifact.file).unlink()
    return wrong


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _names(artifacts: Iterable[Artifact]) -> str:
    return ", ".join(str(artifact) for artifact in artifacts)


def _machine() -> str:
    """Return the name zonky's PostgreSQL builds have for this machine."""
    arm = platform.machine().lower() in {"arm64", "aarch64"}
    return f"{platform.system().lower()}-{'arm64v8' if arm else 'amd64'}"


@contextlib.contextmanager
def _lock(folder: Path) -> Iterator[None]:
    """Hold the folder's lock against other processes."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
