"""`offsetkeeper check-trace`: traces of runs, on the command line."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from offsetkeeper import Ledger, OffsetRange, Position, TopicPartition, open_store
from offsetkeeper.core import trace


def ask(*arguments: str) -> tuple[int, str, str]:
    """Run the command; return its exit code and what it prints."""
    command = [sys.executable, "-m", "offsetkeeper", "check-trace", *arguments]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout, done.stderr


@pytest.fixture
def traced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, str]:
    """Return the trace of a run that has committed one batch, and the URL of its store."""
    url = f"sqlite:///{tmp_path}/offsets.db"
    with monkeypatch.context() as patched, closing(open_store(url)) as store:
        patched.setenv(trace.VARIABLE, str(tmp_path / "traces"))
        ledger = Ledger(store, "orders", retry_timeout_s=0)
        ledger.acquire()
        ledger.place({TopicPartition("t", 0): Position(0)})
        batch = ledger.batch([OffsetRange("t", 0, 0, 5)])
        ledger.begin(batch)
        ledger.commit(batch)
        ledger.release()
    [path] = (tmp_path / "traces").iterdir()
    return path, url


def test_a_trace_without_a_broken_rule_is_told_with_what_was_checked(traced: tuple[Path, str]) -> None:
    path, url = traced
    code, told, _ = ask(str(path), "--store", url)
    assert (code, told.splitlines()[-1]) == (0, "no rule is broken")
    assert "5 changes were made, 5 of them are in the traces" in told
    assert "The history in the store has the changes of the trace" in told
    code, told, _ = ask(str(path), "--json")
    found = json.loads(told)
    assert (code, found["ok"], found["broken"], found["notes"]) == (0, True, [], [])
    assert found["checked"]["table"] == 5
    assert "history" not in found["checked"]


def test_a_broken_rule_is_told_with_its_lines_and_exit_code_1(traced: tuple[Path, str]) -> None:
    path, _ = traced
    lines = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    [at] = [at for at, line in enumerate(lines) if line.get("entry", {}).get("event") == "begin"]
    lines[at]["owner"] = "somebody"
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines), "utf-8")
    code, told, _ = ask(str(path))
    assert code == 1
    assert "BROKEN owner: Only the owner of a group changes it" in told
    assert f"{path.name}:{at + 1}" in told
    code, told, _ = ask(str(path), "--json")
    [first, *_] = json.loads(told)["broken"]
    assert (code, first["rule"], first["lines"]) == (1, "owner", [f"{path.name}:{at + 1}"])


def test_a_store_that_lacks_a_change_of_the_trace_is_told(traced: tuple[Path, str], tmp_path: Path) -> None:
    path, url = traced
    (tmp_path / "offsets.db").unlink()
    with closing(open_store(url)) as store:
        Ledger(store, "orders").acquire()
    code, told, _ = ask(str(path), "--store", url, "--json")
    assert code == 1
    assert {each["rule"] for each in json.loads(told)["broken"]} == {"history"}


def test_another_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("password\n", "utf-8")
    code, told, wrong = ask(str(path))
    assert (code, told) == (2, "")
    assert "notes.txt:1 is not a line of a trace" in wrong
    assert "password" not in wrong
    assert ask(str(tmp_path / "none"))[0] == 2
