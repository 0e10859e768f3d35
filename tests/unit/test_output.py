"""Tables of the command: no offset, partition or topic is ever cut, however narrow the terminal is."""

from __future__ import annotations

import logging

import pytest

from offsetkeeper.cli.output import LogFormatter, complain, say, say_table

COLUMNS = ("topic", "partition", "position", "end", "records", "age", "read/s")
BIG = 12_345_678_901
ROWS = [("orders.of.the.northern.warehouse", n, BIG + n, BIG + 10 * n, 9 * n, "3 min", "1.2e+03") for n in range(3)]


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setattr("offsetkeeper.cli.output.on_terminal", lambda: True)
    return monkeypatch


@pytest.mark.parametrize("columns", [48, 60, 80, 90, 100, 140])
def test_no_number_and_no_name_is_cut(
    columns: int, terminal: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    terminal.setenv("COLUMNS", str(columns))
    say_table(COLUMNS, ROWS, title="shop: ok", spare=("read/s", "age"))
    said = capsys.readouterr().out
    assert said.startswith("shop: ok\n")
    for row in ROWS:
        assert all(str(cell) in said for cell in row[:5])
    assert "…" not in said
    assert max(map(len, said.splitlines())) <= columns


@pytest.mark.parametrize(("columns", "left"), [(140, ""), (96, "read/s"), (88, "read/s, age")])
def test_columns_are_left_out_by_their_rank_and_that_is_said(
    columns: int, left: str, terminal: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    terminal.setenv("COLUMNS", str(columns))
    say_table(COLUMNS, ROWS, spare=("read/s", "age"))
    said = capsys.readouterr().out
    assert (f"too narrow: {left}\n" in said) is bool(left)
    assert ("3 min" in said) is ("age" not in left)
    assert "partition" in said


def test_texts_go_over_several_lines(terminal: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    terminal.setenv("COLUMNS", "60")
    why = "a release was bad, and a day of orders had to be read once more by the operator on duty"
    say_table(("version", "offset", "why"), [(7, BIG, why)], wrap=("why",))
    said = capsys.readouterr().out
    assert str(BIG) in said
    assert all(word in said for word in why.split())
    assert max(map(len, said.splitlines())) <= 60


@pytest.mark.parametrize("on_terminal", [True, False])
def test_control_characters_of_a_text_reach_no_terminal_and_break_no_line(
    *, on_terminal: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whoever may write a reason or a name could else change what an operator sees."""
    monkeypatch.setattr("offsetkeeper.cli.output.on_terminal", lambda: on_terminal)
    say_table(("version", "why"), [(7, "a\tb\nc\x1b[2Jd\x9be")], title="shop\x1b[2J: ok")
    say("note: \x1b]0;title\x07 and\na line")
    complain("not \x1b[2J done")
    said = capsys.readouterr()
    assert "a b c [2Jd e" in said.out
    assert "note:  ]0;title  and\na line" in said.out
    assert not {"\x1b", "\x07", "\x9b"} & {*said.out, *said.err}
    assert on_terminal or len(said.out.splitlines()) == 5


def test_a_name_in_the_log_breaks_no_line_and_reaches_no_terminal() -> None:
    name = "shop\n2026-01-01 ERROR all is lost\x1b]0;x\x07\u202e"
    record = logging.LogRecord("a", logging.WARNING, "", 0, "group %s", (name,), None)
    first, *more = LogFormatter().format(record).splitlines()
    assert first.endswith("WARNING a: group shop")
    assert more == ["  2026-01-01 ERROR all is lost ]0;x  "]


def test_in_a_pipe_all_columns_stay_and_the_title_is_a_remark(capsys: pytest.CaptureFixture[str]) -> None:
    say_table(COLUMNS, ROWS[:1], title="shop: ok", spare=("read/s", "age"))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "# shop: ok"
    assert lines[1].split("\t") == [*COLUMNS]
    assert lines[2].split("\t") == [*map(str, ROWS[0])]
