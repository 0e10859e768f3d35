"""Where offsets are to be moved, as the commands that move them are told it."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated

import typer

from offsetkeeper.core import environment
from offsetkeeper.core.duration import read_duration
from offsetkeeper.core.model import TopicPartition, check_offset, check_partition, check_topic
from offsetkeeper.core.outside import read_text
from offsetkeeper.errors import SettingsError
from offsetkeeper.operate.reset import Shift, Target

_WITH_GROUP = 4  # cells
_DIGITS = re.compile(r"[0-9]{1,19}")
_PARTITIONS = re.compile(r"([^:]+)(?::(\d{1,10}(?:,\d{1,10})*))?")

Scope = Annotated[list[str] | None, typer.Option("--topic", help="topic, or topic:0,1; may be repeated.")]
ToEarliest = Annotated[bool, typer.Option("--to-earliest", help="To the beginning.")]
ToLatest = Annotated[bool, typer.Option("--to-latest", help="To the end.")]
ToCurrent = Annotated[bool, typer.Option("--to-current", help="To where they are: for --clip, and for reset --export.")]
ToOffset = Annotated[int | None, typer.Option(min=0, help="To an offset.")]
ToDatetime = Annotated[str, typer.Option(help="To the first record at or after 2026-01-31T12:00:00+00:00.")]
ByDuration = Annotated[str, typer.Option(help="To so long ago, such as P1DT2H30M, PT1.5H, P1W or 90m.")]
Clip = Annotated[
    bool, typer.Option("--clip", help="Take the nearest offset where Kafka does not hold the one asked for.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only show it, as is done without --execute.")]
ShiftBy = Annotated[int | None, typer.Option(help="Forwards or, if negative, backwards.")]
FromFile = Annotated[Path | None, typer.Option(help="To a CSV's lines topic,partition,offset.")]


def targets(
    *,
    to_earliest: bool,
    to_latest: bool,
    to_offset: int | None,
    to_datetime: str,
    by_duration: str,
    shift_by: int | None,
    from_file: Path | None,
    to_current: bool = False,
    group: str = "",
    grouped: bool = False,
) -> list[Target | Shift]:
    """Return the targets that were given, each as `operations.plan_reset` takes it; for the last two see `read_csv`.

    Raises:
        SettingsError: one of them is wrong.
    """
    given: list[Target | Shift] = [*["earliest"] * to_earliest, *["latest"] * to_latest, *["current"] * to_current]
    given += [] if to_offset is None else [to_offset]
    given += [parse_datetime(to_datetime)] if to_datetime else []
    given += [parse_duration(by_duration)] if by_duration else []
    given += [] if shift_by is None else [Shift(shift_by)]
    given += [read_csv(from_file, group, grouped=grouped)] if from_file else []
    return given


def only(given: list[Target | Shift]) -> Target | Shift:
    """Return the one target.

    Raises:
        SettingsError: there is none, or more than one.
    """
    if len(given) != 1:
        raise SettingsError(f"give exactly one target, such as --to-earliest; {len(given)} were given")
    return given[0]


def parse_scope(texts: list[str]) -> tuple[set[TopicPartition], set[str]]:
    """Return the partitions and the whole topics that `--topic` names.

    Raises:
        SettingsError: one names neither.
    """
    partitions: set[TopicPartition] = set()
    topics: set[str] = set()
    for text in texts:
        match = _PARTITIONS.fullmatch(text)
        if match is None:
            raise SettingsError(f"--topic {text}: write topic, or topic:0,1")
        if match[2] is None:
            topics.add(match[1])
        else:
            partitions |= {TopicPartition(match[1], int(number)) for number in match[2].split(",")}
    return partitions, topics


def parse_datetime(text: str, option: str = "--to-datetime") -> datetime:
    """Return the time that an option names.

    Raises:
        SettingsError: it is none, or has no time zone.
    """
    try:
        found = datetime.fromisoformat(text)
    except ValueError as error:
        raise SettingsError(f"{option} {text}: write it like 2026-01-31T12:00:00+00:00") from error
    if found.tzinfo is None:
        raise SettingsError(f"{option} {text} has no time zone: add one, such as +00:00 or Z")
    return found


def parse_duration(text: str) -> datetime:
    """Return the time that lies as long ago as `--by-duration` says.

    Raises:
        SettingsError: it names no time span, or one that is too long.
    """
    seconds = read_duration(text, "--by-duration")
    try:
        return datetime.fromtimestamp(environment.now_ms() / 1000, UTC) - timedelta(seconds=seconds)
    except (OverflowError, ValueError):
        raise SettingsError(f"--by-duration {text:.40} is too long ago: use --to-earliest for all there is") from None


def check_execute(*, execute: bool, dry_run: bool) -> None:
    """Check that not both are given.

    Raises:
        SettingsError: both are.
    """
    if execute and dry_run:
        raise SettingsError("--dry-run shows what --execute does: give one of them")


def read_csv(path: Path, group: str = "", *, grouped: bool = False) -> dict[TopicPartition, int]:
    """Return the offsets in a file's lines `topic,partition,offset`, as Kafka's own tool writes and reads them.

    Where it has exported several groups, the group comes first: then the lines of `group` are taken. Blank lines are
    passed over, and so is the mark that spreadsheets put first.

    Args:
        path: of the file.
        group: whose lines are taken.
        grouped: whether lines that name no group are wrong.

    Raises:
        SettingsError: it cannot be read, or a line is wrong; the message names it; or no line is of the group.
    """
    found: dict[TopicPartition, int] = {}
    others = set()
    for number, row in _rows(path):
        cells = [cell.strip() for cell in row]
        if not any(cells):
            continue
        if len(cells) == _WITH_GROUP and not group:
            raise SettingsError(f"{path}, line {number} begins with a group: say which one is meant, with --group")
        if grouped and len(cells) != _WITH_GROUP:
            raise SettingsError(
                f"{path}, line {number} names no group: write group,topic,partition,offset in each line"
            )
        if len(cells) == _WITH_GROUP and cells.pop(0) != group:
            others.add(row[0].strip())
            continue
        try:
            topic, partition, offset = cells
            tp, new = TopicPartition(topic, _number(partition)), check_offset(_number(offset))
            check_topic(check_partition(tp).topic)
        except ValueError:
            raise SettingsError(
                f"{path}, line {number}: write topic,partition,offset, the last two as whole numbers from 0 on"
            ) from None
        if tp in found:
            raise SettingsError(f"{path}, line {number}: an earlier line has the same partition")
        found[tp] = new
    if others and not found:
        raise SettingsError(f"{path} has no line of group {group!r}, only of {', '.join(sorted(others))}")
    if not found:
        raise SettingsError(f"{path} has no line: write topic,partition,offset")
    return found


def dump_csv(offsets: Mapping[TopicPartition, int], group: str = "") -> str:
    """Return the lines that `read_csv` reads, each with the group first where one is given."""
    first = f"{group}," if group else ""
    return "\n".join(f"{first}{tp.topic},{tp.partition},{offset}" for tp, offset in sorted(offsets.items()))


def write_text(path: Path, text: str) -> None:
    """Write a file.

    Raises:
        SettingsError: it cannot be written.
    """
    try:
        if path.exists() and not path.is_file():  # a FIFO would wait for a reader
            raise SettingsError(f"{path} is not a regular file, and nothing was changed: give another path")
        path.write_text(text, "utf-8")
    except (OSError, ValueError) as error:
        raise SettingsError(f"{path} cannot be written, and nothing was changed: {error}") from error


def _number(text: str) -> int:
    if not _DIGITS.fullmatch(text):  # `int` takes 1_000 and the digits of other scripts
        raise ValueError
    return int(text)


def _rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield the number of each line of a CSV and its cells."""
    for number, line in enumerate(read_text(path).splitlines(), 1):
        try:
            yield from ((number, row) for row in csv.reader([line]))
        except csv.Error:  # a cell of more than 131,072 characters, or a NUL
            raise SettingsError(f"{path}, line {number} is not a line of a CSV: write topic,partition,offset") from None
