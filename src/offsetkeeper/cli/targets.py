"""The options that say where offsets are moved to, shared by the commands that move them."""

from __future__ import annotations

import csv
import re
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import wraps
from inspect import Parameter, Signature, signature
from io import StringIO
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, get_type_hints

import typer

from offsetkeeper.core import environment
from offsetkeeper.core.duration import read_duration
from offsetkeeper.core.offsets import TopicPartition, check_offset, check_partition, check_topic
from offsetkeeper.core.outside import LARGEST_TABLE, read_text
from offsetkeeper.errors import SettingsError
from offsetkeeper.operate.reset import Shift, Target
from offsetkeeper.operate.scope import Scope

_WITH_GROUP = 4  # cells
_HEADER = ["group", "topic", "partition", "offset"]
_DIGITS = re.compile(r"[0-9]{1,19}")
_PARTITIONS = re.compile(r"([^:]+)(?::(\d{1,10}(?:,\d{1,10})*))?")

TopicOption = Annotated[
    list[str] | None,
    typer.Option("--topic", help="A whole topic, or some of its partitions as topic:0,1; may be repeated."),
]
Clip = Annotated[
    bool, typer.Option("--clip", help="If Kafka does not hold an offset, use the nearest offset that it holds.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only show the change. This is the default without --execute.")]


class Targets(NamedTuple):
    """The options that say where offsets are moved to; see `taking_targets`. One of them is given."""

    to_earliest: Annotated[bool, typer.Option("--to-earliest", help="Move to the first offset that Kafka holds.")] = (
        False
    )
    to_latest: Annotated[bool, typer.Option("--to-latest", help="Move to the end of each partition.")] = False
    to_current: Annotated[
        bool, typer.Option("--to-current", help="Keep the current positions. Use it with --clip, or to export them.")
    ] = False
    to_offset: Annotated[int | None, typer.Option(min=0, help="Move to this offset.")] = None
    to_datetime: Annotated[
        str, typer.Option(help="Move to the first record at or after this time, such as 2026-01-31T12:00:00+00:00.")
    ] = ""
    by_duration: Annotated[
        str,
        typer.Option(
            help="Move to the first record newer than this time span ago, such as P1DT2H30M, PT1.5H, P1W or 90m."
        ),
    ] = ""
    shift_by: Annotated[
        int | None, typer.Option(help="Move each position by this many offsets; a negative number moves back.")
    ] = None
    from_file: Annotated[
        Path | None, typer.Option(help="Move to the offsets in this CSV, with lines topic,partition,offset.")
    ] = None

    def given(self, group: str = "", *, grouped: bool = False) -> list[Target | Shift]:
        """Return the given targets, each as `plan_reset` takes it; for `group` and `grouped` see `read_csv`.

        Raises:
            SettingsError: a target is wrong.
        """
        found: list[Target | Shift] = [
            *["earliest"] * self.to_earliest,
            *["latest"] * self.to_latest,
            *["current"] * self.to_current,
        ]
        found += [] if self.to_offset is None else [self.to_offset]
        found += [parse_datetime(self.to_datetime)] if self.to_datetime else []
        found += [parse_duration(self.by_duration)] if self.by_duration else []
        found += [] if self.shift_by is None else [Shift(self.shift_by)]
        found += [read_csv(self.from_file, group, grouped=grouped)] if self.from_file else []
        return found


def taking_targets(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of `Targets` in place of its parameter `targets`."""
    hints, options = (get_type_hints(each, include_extras=True) for each in (command, Targets))
    parameters: list[Parameter] = []
    for each in signature(command).parameters.values():
        if each.name == "targets":
            parameters += [
                Parameter(name, each.kind, default=Targets._field_defaults[name], annotation=options[name])
                for name in Targets._fields
            ]
        else:
            parameters.append(each.replace(annotation=hints[each.name]))

    @wraps(command)
    def wrapped(*arguments: Any, **given: Any) -> None:
        targets = Targets(**{name: given.pop(name) for name in Targets._fields})
        command(*arguments, targets=targets, **given)

    wrapped.__signature__ = Signature(parameters)  # type: ignore[attr-defined] # what Typer reads
    wrapped.__annotations__ = {each.name: each.annotation for each in parameters}
    return wrapped


def only(given: list[Target | Shift]) -> Target | Shift:
    """Return the one target.

    Raises:
        SettingsError: no target was given, or more than one.
    """
    if len(given) != 1:
        raise SettingsError(f"give exactly one target, such as --to-earliest; {len(given)} were given")
    return given[0]


def parse_scope(texts: list[str], option: str = "--topic ") -> Scope:
    """Return the partitions and the whole topics that `--topic`, or an argument, names.

    Raises:
        SettingsError: a text names neither a topic nor partitions.
    """
    partitions: set[TopicPartition] = set()
    topics: set[str] = set()
    for text in texts:
        match = _PARTITIONS.fullmatch(text)
        if match is None:
            raise SettingsError(f"{option}{text}: write topic, or topic:0,1")
        if match[2] is None:
            topics.add(match[1])
        else:
            partitions |= {TopicPartition(match[1], int(number)) for number in match[2].split(",")}
    return Scope(partitions, topics)


def parse_datetime(text: str, option: str = "--to-datetime") -> datetime:
    """Return the time that an option gives.

    Raises:
        SettingsError: the text is not a time, or has no time zone.
    """
    try:
        found = datetime.fromisoformat(text)
    except ValueError as error:
        raise SettingsError(f"{option} {text}: write it like 2026-01-31T12:00:00+00:00") from error
    if found.tzinfo is None:
        raise SettingsError(f"{option} {text} has no time zone: add one, such as +00:00 or Z")
    return found


def parse_duration(text: str) -> datetime:
    """Return the time that is `--by-duration` ago.

    Raises:
        SettingsError: the text is not a time span, or the span is too long.
    """
    seconds = read_duration(text, "--by-duration")
    try:
        return datetime.fromtimestamp(environment.now_ms() / 1000, UTC) - timedelta(seconds=seconds)
    except (OverflowError, ValueError):
        raise SettingsError(
            f"--by-duration {text:.40} is too long ago: use --to-earliest for the oldest record"
        ) from None


def check_execute(*, execute: bool, dry_run: bool) -> None:
    """Check that --execute and --dry-run are not both given.

    Raises:
        SettingsError: both are given.
    """
    if execute and dry_run:
        raise SettingsError("--dry-run only shows the change, --execute makes it: give one of them")


def read_csv(path: Path, group: str = "", *, grouped: bool = False) -> dict[TopicPartition, int]:
    """Return the offsets in a file's lines `topic,partition,offset`, as Kafka's own tool writes and reads them.

    If the file has several groups, the group is the first cell: then only the lines of `group` are read. Blank lines
    are skipped, and so are a header with these words and the byte order mark that spreadsheets write.

    Args:
        path: path of the file.
        group: the group whose lines are read.
        grouped: whether each line must name a group.

    Raises:
        SettingsError: the file cannot be read, a line is wrong (the message names it), or no line is of the group.
    """
    found: dict[TopicPartition, int] = {}
    others = set()
    for number, row in _rows(path):
        cells = [cell.strip() for cell in row]
        if not any(cells) or (number == 1 and [cell.lower() for cell in cells] in (_HEADER, _HEADER[1:])):
            continue
        if len(cells) == _WITH_GROUP and not group:
            raise SettingsError(f"{path}, line {number} begins with a group: select one with --group")
        if grouped and len(cells) != _WITH_GROUP:
            raise SettingsError(
                f"{path}, line {number} names no group: write group,topic,partition,offset in each line"
            )
        if len(cells) == _WITH_GROUP:
            del cells[0]
            if row[0] != group:  # exactly: a name may begin with a space
                others.add(row[0])
                continue
        tp, new = _read_cells(cells, f"{path}, line {number}")
        if tp in found:
            raise SettingsError(f"{path}, line {number}: an earlier line has the same partition")
        found[tp] = new
    if others and not found:
        raise SettingsError(f"{path} has no line of group {group!r}; it has groups {', '.join(sorted(others))}")
    if not found:
        raise SettingsError(f"{path} is empty: write lines topic,partition,offset")
    return found


def dump_csv(offsets: Mapping[TopicPartition, int], group: str = "") -> str:
    """Return the lines that `read_csv` reads; each starts with the group if one is given."""
    lines, first = StringIO(), [group] if group else []
    # Of a name with line ends all is quoted: the usual way leaves some of them bare.
    quoted: Literal[0, 1] = csv.QUOTE_MINIMAL if group.isprintable() else csv.QUOTE_ALL
    csv.writer(lines, lineterminator="\n", quoting=quoted).writerows(
        [*first, *tp, offset] for tp, offset in sorted(offsets.items())
    )
    return lines.getvalue().removesuffix("\n")


def write_text(path: Path, text: str) -> None:
    """Write a file that nobody else may change, whatever the umask is.

    Raises:
        SettingsError: the file cannot be written.
    """
    try:
        if path.exists() and not path.is_file():  # writing to a FIFO would wait for a reader
            raise SettingsError(f"{path} is not a regular file; nothing was changed. Give another path")
        path.write_text(text, "utf-8")
        with suppress(PermissionError):  # another user's file
            path.chmod(stat.S_IMODE(path.stat().st_mode) & ~0o022)
    except (OSError, ValueError) as error:
        raise SettingsError(f"{path} cannot be written; nothing was changed: {error}") from error


def _read_cells(cells: list[str], where: str) -> tuple[TopicPartition, int]:
    try:
        topic, partition, offset = cells
        tp, new = TopicPartition(topic, _number(partition)), check_offset(_number(offset))
        check_topic(check_partition(tp).topic)
    except ValueError:
        raise SettingsError(f"{where}: write topic,partition,offset, the last two as whole numbers from 0 on") from None
    return tp, new


def _number(text: str) -> int:
    if not _DIGITS.fullmatch(text):  # `int` also accepts 1_000 and the digits of other scripts
        raise ValueError
    return int(text)


def _rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield the number of each line of a CSV and its cells; the name of a group may have line ends."""
    rows = csv.reader(StringIO(read_text(path, most=LARGEST_TABLE), newline=""))
    while True:
        try:
            row = next(rows)
        except StopIteration:
            return
        except csv.Error:  # a cell of more than 131,072 characters, or a NUL
            told = f"{path}, line {rows.line_num} is not a CSV line: write topic,partition,offset"
            raise SettingsError(told) from None
        yield rows.line_num, row
