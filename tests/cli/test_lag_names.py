"""A group's name in an error of the command is one line, in the order in which it is written."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import CliRunner

from offsetkeeper import Ledger, open_store
from offsetkeeper.cli.main import app
from offsetkeeper.cli.output import complain, say, shown
from offsetkeeper.testing.kafka import KafkaServer

EVERY = {
    "show": "",
    "plan": "",
    "history": "",
    "verify": "",
    "replay": "--version 1",
    "reset": "--to-earliest --all-topics",
    "rewind": "--version 1",
    "undo": "",
    "forget": "{topic}",
    "adopt": "--sequence 1",
    "copy": "--to memory://copied",
}
SIGNS = "\n\r\t\x1b\x85\u061c\u200e\u202e\u2028\u2029\u2066\ufeff"


def test_signs_that_turn_or_break_a_line_are_not_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert shown(f"a{SIGNS}b") == f"a{' ' * len(SIGNS)}b"
    for print_it in (say, complain):
        print_it(f"one\ntwo {SIGNS[2:]} three")
    out, err = capsys.readouterr()
    for text in (out, err):
        assert not set(SIGNS[1:]) & set(text)
        assert text.count("\n") == 2  # an error has lines of its own


def test_an_error_about_a_group_is_one_line(kafka_server: KafkaServer, tmp_path: Path) -> None:
    """Rows of other programs may have any name."""
    evil, store = f"sh{SIGNS}op", f"sqlite:///{tmp_path}/offsets.db"
    Ledger(open_store(store), "other").acquire()
    options = ["--store", store, "--brokers", kafka_server.bootstrap]
    result = CliRunner().invoke(app, ["lag", evil, *options])
    assert result.exception is not None
    assert not set(SIGNS) & set(str(result.exception))
    assert "sh" in str(result.exception)


EVIL = f"sh{SIGNS}op"
NO_GROUP = f"sh{SIGNS}\0op"


@pytest.mark.parametrize(
    ("command", "group"),
    [
        *((command, group) for command in EVERY for group in (NO_GROUP, "odd")),
        ("doctor", NO_GROUP),
        ("checkpoint seed", "odd"),
    ],
)
def test_an_error_of_any_command_is_one_line(
    command: str, group: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a group that no command can name, and of one with a topic that Kafka cannot have."""
    store = f"sqlite:///{tmp_path}/offsets.db"
    Ledger(open_store(store), "other").acquire()
    with closing(sqlite3.connect(tmp_path / "offsets.db")) as connection, connection:
        row = ("orders", group) if group == NO_GROUP else (EVIL, group)
        connection.execute("INSERT INTO kafka_offsets VALUES (?, ?, 0, 5, 0, NULL)", row)
    monkeypatch.setenv("OFFSETKEEPER_STORE", store)
    monkeypatch.setenv("OFFSETKEEPER_BROKERS", "127.0.0.1:1")
    where = [str(tmp_path / "new"), "--group"] if command == "checkpoint seed" else []
    more = [word.format(topic=EVIL) for word in EVERY.get(command, "").split()]
    result = CliRunner().invoke(app, [*command.split(), *where, group, *more])
    complain(result.exception)
    assert not result.output
    told = capsys.readouterr().err
    assert "op' is not a " in told
    assert len(told.splitlines()) == 1
    assert not set(SIGNS[1:]) & set(told)
