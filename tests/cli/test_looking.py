"""Commands that only look, without a broker: what they find, what they refuse, and that a live group is no alarm."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from offsetkeeper import Ledger, OffsetRange, Position, TopicPartition, open_store
from offsetkeeper.cli.main import app
from offsetkeeper.model import Entry

A = TopicPartition("a", 0)


@pytest.fixture(autouse=True)
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A store that does not exist yet, in the environment."""
    url = f"sqlite:///{tmp_path}/offsets.db"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OFFSETKEEPER_STORE", url)
    return url


def run(*arguments: str) -> Result:
    """Run a command, and raise what it raised."""
    result = CliRunner().invoke(app, arguments)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def group(url: str, name: str = "shop") -> Ledger:
    """A group that has read the first ten offsets, held by a run."""
    ledger = Ledger(open_store(url), name, name="host:1")
    ledger.acquire("start")
    ledger.place({A: Position(0)})
    commit(ledger, 10)
    return ledger


def commit(ledger: Ledger, size: int) -> None:
    """Commit so many offsets more."""
    at = ledger.snapshot.positions[A].offset
    ledger.commit(ledger.batch([OffsetRange(*A, at, at + size)]))


def execute(url: str, statement: str) -> None:
    """Change the store from outside."""
    connection = sqlite3.connect(url.removeprefix("sqlite:///"))
    with connection:
        assert connection.execute(statement).rowcount == 1
    connection.close()


def test_a_commit_between_two_requests_of_verify_is_no_overlap(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    live = group(url)
    read = Ledger.history

    def history(self: Ledger, limit: int = 100) -> Sequence[Entry]:
        if self is not live:
            commit(live, 10)
        return read(self, limit)

    monkeypatch.setattr(Ledger, "history", history)
    assert run("verify", "shop").stdout == "3 changes looked through, 0 gaps and overlaps found\n"


def test_what_nothing_in_the_history_explains_is_exit_code_1(url: str) -> None:
    group(url)
    execute(url, 'UPDATE kafka_offsets SET "offset" = 7')
    found = run("verify", "shop")
    assert found.exit_code == 1
    assert "overlap a 0 7 10: nothing in the history explains it (version 3)" in found.stdout
    told = run("verify", "shop", "--json")
    assert (told.exit_code, [each["explained"] for each in json.loads(told.stdout)["findings"]]) == (1, [False])
