"""The command: what it refuses before it serves, what it says, and what it costs those who do not serve."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from monitor.scene import Scene, Served
from offsetkeeper.cli.main import app
from offsetkeeper.errors import MissingExtra, SettingsError

HEAVY = {"starlette", "uvicorn", "jinja2", "prometheus_client", "httpx", "anyio"}


@pytest.mark.parametrize(
    ("toml", "told"),
    [
        ("alerts = 3", "offsetkeeper.toml: alerts is of another type: write webhook"),
        (
            "[alerts]\nwebhok = 'x'",
            r"\[alerts\] has an unknown setting: did you mean webhook\? Known settings: rules, webhook",
        ),
        ("[alerts]\nwebhook = 3", r"offsetkeeper.toml, \[alerts\]: webhook is of another type: write a text"),
        ("[alerts]\nrules = 3", r"rules is of another type: write each rule below \[\[alerts.rules\]\]"),
        ("[alerts]\nrules = [3]", r"rules is of another type: write each rule"),
        ("[[alerts.rules]]\nname = 'x'", "exactly one of records"),
    ],
)
def test_wrong_alerts_are_refused_at_the_start(
    toml: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "offsetkeeper.toml").write_text(toml, "utf-8")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SettingsError, match=told):
        refused("--store", "sqlite:///offsets.db", "--brokers", "127.0.0.1:9")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ([], "no store"),
        (["--store", "sqlite:///x.db"], "no brokers"),
        (["--store", "nosuch://x", "--brokers", "127.0.0.1:9"], "unknown store URL"),
        (["--store", "sqlite:///x.db", "--brokers", "127.0.0.1:9", "--allow-changes"], "needs a token"),
        (
            ["--store", "sqlite:///x.db", "--brokers", "127.0.0.1:9", "--allow-changes", "--token-file", "no"],
            "cannot be read",
        ),
        (["--store", "sqlite:///x.db", "--brokers", "127.0.0.1:9", "--host", "nohost.invalid"], "cannot be listened"),
    ],
    ids=str,
)
def test_wrong_settings_are_refused_at_the_start(
    options: list[str], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SettingsError, match=told):
        refused(*options)


def refused(*options: str) -> None:
    """Run the command, and raise what it raised."""
    result = CliRunner().invoke(app, ["serve", *options])
    assert result.exception is not None
    raise result.exception


RULE = '[[alerts.rules]]\nname = "far"\nrecords = 5\n'
HOOK = '[alerts]\nwebhook = "https://hooks.example.com/T0P/s3cret"\n'


@pytest.mark.parametrize(
    ("toml", "told"),
    [(RULE, "no webhook is set"), (HOOK, "a webhook is set and no rule"), (HOOK + RULE, ""), ("", "")],
    ids=["rules", "webhook", "both", "none"],
)
def test_half_of_what_alarms_need_is_told_at_the_start(
    toml: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "offsetkeeper.toml").write_text(toml, "utf-8")
    (tmp_path / "offsetkeeper.toml").chmod(0o600)
    monkeypatch.chdir(tmp_path)
    asked = ["--store", "sqlite:///x.db", "--brokers", "127.0.0.1:9", "--host", "nohost.invalid"]
    result = CliRunner().invoke(app, ["serve", *asked])
    warned = [line for line in result.output.splitlines() if "WARNING" in line and "nohost" not in line]
    assert [told in line for line in warned] == [True] * bool(told)
    assert "s3cret" not in result.output


def test_another_address_than_loopback_is_said_loudly(scene: Scene) -> None:
    with Served(scene.store, scene.server.bootstrap, "--host", "0.0.0.0") as server:  # noqa: S104 - what is tested
        pass
    assert "WARNING: everyone who reaches 0.0.0.0 can see all groups;" in server.output


def test_a_free_port_is_needed(served: Served) -> None:
    port = served.url.rpartition(":")[2]
    with pytest.raises(SettingsError, match="cannot be listened on"):
        refused("--store", "memory://x", "--brokers", "127.0.0.1:9", "--port", port)


def test_what_serve_needs_is_loaded_by_nothing_else() -> None:
    code = "import sys; import offsetkeeper.cli.serve; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-I", "-c", code], check=True, capture_output=True, text=True, timeout=60)
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert "offsetkeeper" in loaded
    assert not loaded & HEAVY


@pytest.mark.parametrize("library", ["starlette", "uvicorn", "jinja2", "prometheus_client"])
def test_without_the_extra_it_says_which_to_install(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith(("offsetkeeper.monitor", library))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr("sys.meta_path", [Hidden(library), *sys.meta_path])
    with pytest.raises(MissingExtra, match=rf"{library}.*offsetkeeper\[serve\]"):
        refused("--store", "memory://x", "--brokers", "127.0.0.1:9")


class Hidden:
    """Makes a library one that is not installed."""

    def __init__(self, library: str) -> None:
        self.library = library

    def find_spec(self, name: str, *_: object) -> None:
        """Find nothing of it."""
        if name.partition(".")[0] == self.library:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
