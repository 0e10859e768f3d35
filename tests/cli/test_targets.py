"""Where offsets are to be moved, as files and options say it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from offsetkeeper.cli.targets import dump_csv, parse_duration, parse_scope, read_csv, write_text
from offsetkeeper.core.offsets import TopicPartition
from offsetkeeper.errors import SettingsError

A, B = TopicPartition("a", 0), TopicPartition("a", 1)


def file(folder: Path, content: str) -> Path:
    """Write a file as it is, without any change to its line ends."""
    path = folder / "offsets.csv"
    path.write_bytes(content.encode())
    return path


@pytest.mark.parametrize(
    "content",
    [
        "a,0,15\na,1,5\n",
        "a,0,15\r\n\r\n\r\na,1,5\r\n , \r\n",
        "\ufeffg,a,0,15\r\ng,a,1,5\r\n",
        "g,a,0,15\nh,a,1,9\ng,a,1,5",
    ],
    ids=["plain", "blank lines", "a spreadsheet's mark, and the group", "two groups"],
)
def test_every_line_of_the_group_is_read(tmp_path: Path, content: str) -> None:
    assert read_csv(file(tmp_path, content), "g") == {A: 15, B: 5}


@pytest.mark.parametrize(
    "group",
    [
        "g",
        "a,b",
        "a,a,0,15",
        '"q',
        '"q"',
        'q"q',
        " lead",
        "#x",
        "trail ",
        "a\nb",
        "a\r",
        "\ta",
        "a\x85b",
        "a\u2028b",
        "team/orders:v2",
    ],
)
def test_what_is_exported_is_read_again(tmp_path: Path, group: str) -> None:
    offsets = {A: 15, B: 5}
    lines = [dump_csv(offsets, group), dump_csv({A: 1, TopicPartition("c", 0): 1}, "other")]
    assert read_csv(file(tmp_path, "\n".join(lines)), group, grouped=True) == offsets


@pytest.mark.parametrize(
    ("content", "group", "told"),
    [
        ("", "g", "is empty: write lines topic,partition,offset"),
        ("\r\n\r\n", "g", "is empty: write lines"),
        ("a,0\n", "g", "line 1: write topic,partition,offset"),
        ("a,0,1\na,0,2\n", "g", "line 2: an earlier line has the same partition"),
        ("h,a,0,1\n", "g", "has no line of group 'g'; it has groups h"),
        (" g,a,0,1\n", "g", "has no line of group 'g'; it has groups  g"),
        ("h,a,0,1\n", "", "line 1 begins with a group: select one with --group"),
    ],
)
def test_a_file_that_says_too_little_or_too_much_is_refused(
    tmp_path: Path, content: str, group: str, told: str
) -> None:
    with pytest.raises(SettingsError, match=told):
        read_csv(file(tmp_path, content), group)


def test_a_group_that_no_line_names_is_refused_where_it_had_to_be_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="line 1 names no group: write group,topic,partition,offset"):
        read_csv(file(tmp_path, "a,0,15\n"), "g", grouped=True)


def test_a_duration_is_a_time_that_long_ago() -> None:
    assert abs(parse_duration("P1DT2H3M4S") - datetime.now(UTC) + timedelta(1, 7384)) < timedelta(minutes=5)


@pytest.mark.parametrize("text", ["P99999999999D", "P800000D", f"P{'9' * 5000}D"], ids=["days", "years", "digits"])
def test_a_duration_of_before_the_calendar_is_refused(text: str) -> None:
    with pytest.raises(SettingsError, match=r"is too long ago|write a time span"):
        parse_duration(text)


def test_a_partition_of_too_many_digits_is_none() -> None:
    with pytest.raises(SettingsError, match="write topic, or topic:0,1"):
        parse_scope([f"a:{'9' * 5000}"])


def test_a_file_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"x\.json cannot be written; nothing was changed"):
        write_text(tmp_path / "nowhere" / "x.json", "{}")
