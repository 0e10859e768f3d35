"""The product's first command, run as a user runs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from offsetkeeper.cli.main import main
from offsetkeeper.demo.poison import KINDS

COMMAND = str(Path(sys.executable).with_name("offsetkeeper"))


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run `offsetkeeper` with a changed environment."""
    return subprocess.run(
        [COMMAND, *arguments], capture_output=True, text=True, check=False, env={**os.environ, **environment}
    )


FURTHER = (
    ("sqlite", "table", 3),
    ("postgresql", "table", 1),
    *(("sqlite", sink, 3) for sink in ("topic", "files", "delta", "iceberg")),
)


@pytest.mark.parametrize(
    ("store", "sink", "kills"),
    [("sqlite", "table", 1), *(pytest.param(*each, marks=pytest.mark.soak) for each in FURTHER)],
)
def test_nothing_is_lost_or_doubled(store: str, sink: str, kills: int) -> None:
    """Drivers are killed, a stale one is fenced, and every order is in the output once."""
    done = run("demo", "--json", "--store", store, "--sink", sink, "--kills", str(kills), "--rate", "300")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["ok"] is True
    assert result["produced"] == result["rows"] == result["distinct"] > 0
    assert (result["lost"], result["doubled"], result["wrong"]) == (0, 0, 0)
    assert (result["kills"], result["fenced"], result["partitions"]) == (kills, 1, 6)


@pytest.mark.parametrize(
    ("store", "sink"),
    [("sqlite", "table"), *(pytest.param(*each[:2], marks=pytest.mark.soak) for each in FURTHER[1:])],
)
def test_bad_orders_are_dead_letters_and_all_others_in_the_output(store: str, sink: str) -> None:
    """Each kind of bad order, through kills while batches are cut."""
    done = run("demo", "--json", "--poison", "--store", store, "--sink", sink, "--kills", "2", "--rate", "100")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["produced"] == result["rows"] == result["distinct"] > 0
    assert (result["lost"], result["doubled"], result["wrong"], result["positions_behind"]) == (0, 0, 0, 0)
    assert result["dead_letters"] == result["bad"] >= len(KINDS)
    assert result["wrong_letters"] == 0


def test_without_java_it_says_so_in_one_line(tmp_path: Path) -> None:
    """No JDK: one line that says how to get one, exit code 2, no traceback."""
    done = run("demo", PATH=str(tmp_path), JAVA_HOME="")
    assert done.returncode == 2
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1
    assert "Java 17" in lines[0] or "JDK 17" in lines[0]


def test_without_pyspark_it_says_so_before_a_broker_is_started(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    monkeypatch.setattr(sys, "argv", ["offsetkeeper", "demo"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    told = capsys.readouterr()
    assert "pip install 'offsetkeeper[spark]'" in told.err
    assert "Starting" not in told.out + told.err


def test_the_version_is_told() -> None:
    """`--version` needs nothing."""
    done = run("--version", PATH="")
    assert done.returncode == 0
    assert done.stdout.startswith("offsetkeeper ")
