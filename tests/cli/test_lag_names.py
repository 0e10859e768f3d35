"""A group's name in an error of the command is one line, in the order in which it is written."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from offsetkeeper import Ledger, open_store
from offsetkeeper.cli.main import app
from offsetkeeper.cli.output import complain, say, shown
from offsetkeeper.testing.kafka import KafkaServer

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
