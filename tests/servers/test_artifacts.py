"""Jars are fetched once, checked, and taken from the cache without a look at the network."""

import functools
import shutil
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from offsetkeeper.testing.artifacts import artifact_set, fetch_jars
from offsetkeeper.testing.errors import ArtifactError, ToolMissing
from offsetkeeper.testing.java import java
from offsetkeeper.testing.server import free_port


class Registry:
    """A Maven registry on this machine with the connector's jars.

    Attributes:
        asked: the paths it was asked for.
    """

    def __init__(self, folder: Path, jars: list[Path]) -> None:
        self.asked: list[str] = []
        self._folder = folder
        for artifact, jar in zip(artifact_set("connector"), jars, strict=True):
            self.path(artifact.file).parent.mkdir(parents=True)
            shutil.copy(jar, self.path(artifact.file))

    def path(self, file: str) -> Path:
        """Return where the registry keeps a jar of the connector's set."""
        [found] = [a for a in artifact_set("connector") if a.file == file]
        return self._folder.joinpath(*found.org.split("."), found.name, found.rev, file)


@pytest.fixture
def connector() -> list[Path]:
    """The connector's jars from the true cache."""
    return fetch_jars("connector")


@pytest.fixture
def registry(connector: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    """The only registry Ivy knows, and an empty cache."""
    found = Registry(tmp_path / "registry", connector)

    class Handler(SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name http.server gives it
            found.asked.append(format % args)

    handler = functools.partial(Handler, directory=str(tmp_path / "registry"))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        use_registry(server.server_port, tmp_path, monkeypatch)
        yield found
        server.shutdown()


def use_registry(port: int, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let Ivy know no registry but the one at a port of this machine, and empty the cache."""
    settings = folder / "ivysettings.xml"
    settings.write_text(
        '<ivysettings><settings defaultResolver="own"/><resolvers>'
        f'<ibiblio name="own" m2compatible="true" root="http://127.0.0.1:{port}/"/></resolvers></ivysettings>'
    )
    monkeypatch.setenv("OFFSETKEEPER_IVY_SETTINGS", str(settings))
    monkeypatch.setenv("OFFSETKEEPER_CACHE", str(folder / "cache"))


def test_a_set_is_fetched_once_from_the_registry_of_the_settings(registry: Registry) -> None:
    lines: list[str] = []
    jars = fetch_jars("connector", lines.append)
    assert [jar.name for jar in jars] == [artifact.file for artifact in artifact_set("connector")]
    assert all(jar.read_bytes() == registry.path(jar.name).read_bytes() for jar in jars)
    assert len(lines) == 1
    assert "fetching 4 jars for connector" in lines[0]

    registry.asked.clear()
    assert fetch_jars("connector", lines.append) == jars
    assert registry.asked == []
    assert len(lines) == 1


def test_progress_goes_to_stderr_when_nobody_asks_for_it(
    registry: Registry, capsys: pytest.CaptureFixture[str]
) -> None:
    fetch_jars("connector")
    assert registry.asked
    assert "fetching 4 jars for connector" in capsys.readouterr().err


def test_a_jar_with_another_checksum_is_named_and_deleted_and_the_rest_is_kept(registry: Registry) -> None:
    wrong = next(a for a in artifact_set("connector") if a.name == "commons-pool2")
    right = registry.path(wrong.file).read_bytes()
    registry.path(wrong.file).write_bytes(right + b"more")
    with pytest.raises(ArtifactError, match=f"{wrong}: the downloaded file has an unexpected SHA-256") as error:
        fetch_jars("connector")
    assert "kafka-clients" not in str(error.value)

    registry.path(wrong.file).write_bytes(right)
    registry.asked.clear()
    assert len(fetch_jars("connector")) == 4
    assert [line for line in registry.asked if "kafka-clients" in line] == []


def test_a_set_left_half_written_is_completed_not_trusted(registry: Registry) -> None:
    jars = fetch_jars("connector")
    whole = jars[0].read_bytes()
    jars[0].write_bytes(whole[:1000])
    jars[0].with_name("complete").unlink()
    assert fetch_jars("connector") == jars
    assert jars[0].read_bytes() == whole
    assert registry.asked


def test_two_at_once_fetch_a_set_once(registry: Registry) -> None:
    lines: list[str] = []
    threads = [threading.Thread(target=fetch_jars, args=("connector", lines.append)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert len(lines) == 1
    assert registry.asked


def test_with_no_network_and_an_empty_cache_the_error_names_what_is_wanted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_registry(free_port(), tmp_path, monkeypatch)
    with pytest.raises(ArtifactError, match=r"could not fetch .*kafka-clients:3.*OFFSETKEEPER_IVY_SETTINGS") as error:
        fetch_jars("connector")
    assert all(str(artifact) in str(error.value) for artifact in artifact_set("connector"))


def test_with_no_network_a_complete_cache_serves(
    connector: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_registry(free_port(), tmp_path, monkeypatch)
    shutil.copytree(connector[0].parent, tmp_path / "cache" / "connector")
    monkeypatch.setenv("PATH", "")  # not even Java is asked for
    monkeypatch.delenv("JAVA_HOME", raising=False)
    assert [jar.name for jar in fetch_jars("connector")] == [jar.name for jar in connector]


def test_an_unknown_set_is_refused() -> None:
    with pytest.raises(ArtifactError, match="no artifacts are known by the name oracle; known are kafka"):
        fetch_jars("oracle")


def test_java_home_goes_before_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(java())
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert java() == tmp_path / "bin" / "java"


def test_a_java_too_old_or_missing_is_told_in_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    old = tmp_path / "java"
    old.write_text("#!/bin/sh\necho 'openjdk version \"1.8.0_402\"' >&2\n")
    old.chmod(0o755)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ToolMissing, match=r"^Java 17 or newer is needed, found .*java is release 8: install .*$"):
        java()
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ToolMissing, match=r"^Java 17 or newer is needed, found none: install .*$"):
        java()
