"""The lines of traces: read from files, and given meaning."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from offsetkeeper.core.codec import GARBAGE, read_entry
from offsetkeeper.core.ledger_document import read_document
from offsetkeeper.core.mark import OutputMark
from offsetkeeper.core.model import Entry, Snapshot
from offsetkeeper.core.offsets import OffsetRange
from offsetkeeper.core.outside import load_json, open_file
from offsetkeeper.core.trace import FORMAT
from offsetkeeper.errors import CorruptStore, SettingsError

LARGEST = 2**32
"""Bytes of one file."""
_LONGEST = 2**28  # bytes of one line

Key = tuple[int, str]
"""A ledger at one version: the version, and the id of the change that made it."""
Moment = tuple[int, int]
"""When a line was written: milliseconds since 1970, and its number among all lines that are read."""
NOTHING: Key = (0, "")


class Place(NamedTuple):
    """A group in a store."""

    group: str
    store: str


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a trace.

    Attributes:
        where: file and number of the line, for people.
        moment: when it was written.
        stream: file and ledger of its run; the lines of one are in their order.
        place: group and store.
        owner: id of the owner as whom the run works.
        event: what happened.
        about: all that the line says.
        ledger: the ledger that was read, or that a change is made to; None if no line has its content.
        after: the ledger after a change.
        entry: the entry of a change.
    """

    where: str
    moment: Moment
    stream: tuple[str, str]
    place: Place
    owner: str
    event: str
    about: Mapping[str, Any] = field(repr=False)
    ledger: Snapshot | None = field(default=None, repr=False)
    after: Snapshot | None = field(default=None, repr=False)
    entry: Entry | None = field(default=None, repr=False)

    @property
    def failed(self) -> bool:
        """Whether it is the error of a call."""
        return "error" in self.about

    @property
    def key(self) -> Key:
        """Version and change of the ledger that was read, or that a change is made to."""
        return _key(self.about["ledger"])

    @property
    def change(self) -> Key:
        """Version and id of a change."""
        return _key(self.about["change"])

    @property
    def output(self) -> str:
        """Name of an output."""
        return str(self.about["output"])

    @property
    def batch(self) -> str:
        """Id of a batch."""
        return str(self.about["batch"])

    @property
    def ranges(self) -> tuple[OffsetRange, ...]:
        """Ranges of a batch."""
        return tuple(OffsetRange(*each) for each in self.about["ranges"])

    def mark(self, name: str = "mark") -> OutputMark | None:
        """Return a mark of an output."""
        found = self.about[name]
        return None if found is None else OutputMark(**found)


def read_files(paths: Iterable[Path]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the lines of files, and where each is. The last line of a file may be cut off: its process has died.

    Raises:
        SettingsError: a file cannot be read, or is not a trace.
    """
    for path in paths:
        try:
            file, _ = open_file(path, LARGEST)
        except OSError as error:
            raise SettingsError(f"{path} cannot be read: {error.strerror}") from error
        with file:
            yield from _objects(path.name, file)


def _objects(name: str, file: BinaryIO) -> Iterator[tuple[str, dict[str, Any]]]:
    for number, text in enumerate(iter(partial(file.readline, _LONGEST), b""), 1):
        where = f"{name}:{number}"
        try:
            yield where, _object(load_json(text))
        except ValueError:
            if text.endswith(b"\n") or number == 1:
                raise _no_trace(where) from None


def given_meaning(raw: Iterable[tuple[str, dict[str, Any]]]) -> list[Line]:
    """Return lines with the ledgers that they name, ordered by their time.

    Raises:
        SettingsError: they are not those of a trace, or of a newer release.
    """
    found: list[Line] = []
    contents: dict[tuple[str, str], dict[Key, Snapshot]] = {}
    reached: dict[str, int] = {}  # of each file: a clock that is set back does not change the order of its lines
    where, newer = "", False
    for number, (where, about) in enumerate(raw):
        try:
            if about["event"] == "file":
                newer = int(about["format"]) > FORMAT
                if newer:
                    break
                continue
            file = where.rpartition(":")[0]
            reached[file] = max(int(about["at_ms"]), reached.get(file, 0))
            found.append(_line(where, (reached[file], number), about, contents))
        except (*GARBAGE, CorruptStore):
            raise _no_trace(where) from None
    if newer:
        raise SettingsError(f"{where} is of a newer offsetkeeper: check it with that one")
    return sorted(found, key=lambda line: line.moment)


def _line(
    where: str, moment: tuple[int, int], about: dict[str, Any], contents: dict[tuple[str, str], dict[Key, Snapshot]]
) -> Line:
    stream = where.rpartition(":")[0], str(about["run"])
    known = contents.setdefault(stream, {})
    group, event = str(about["group"]), str(about["event"])
    if "content" in about:
        known[_key(about["ledger"])] = _ledger(about, "content", "ledger", group, where)
    if "before" in about and event == "send":
        known[_key(about["ledger"])] = _ledger(about, "before", "ledger", group, where)
    if "after" in about:
        known[_key(about["change"])] = _ledger(about, "after", "change", group, where)
    sent = event == "send"
    line = Line(
        where,
        moment,
        stream,
        Place(group, str(about["store"])),
        str(about["owner"]),
        event,
        about,
        ledger=known.get(_key(about["ledger"])) if "ledger" in about else None,
        after=known.get(_key(about["change"])) if sent else None,
        entry=_entry(about, where) if sent else None,
    )
    _check(line)
    return line


def _check(line: Line) -> None:
    """Read once all that a line of its kind says; raise one of `GARBAGE` if it is something else."""
    if not line.failed or line.event in {"answer", "told", "wrote", "landed"}:
        _READ.get(line.event, str)(line)


_READ: Mapping[str, Callable[[Line], object]] = {
    "send": lambda line: (line.key, line.change),
    "open": lambda line: line.change,
    "answer": lambda line: (line.change, line.about["outcome"]),
    "told": lambda line: (line.change, line.about["outcome"], line.about["of"]),
    "load": lambda line: (line.key, int(line.about["asked_ms"])),
    "history": lambda line: [_key(each) for each in line.about["entries"]],
    "read": lambda line: (line.batch, line.ranges),
    "join": lambda line: (line.output, line.batch, line.ranges),
    "write": lambda line: (line.output, line.batch, line.ranges),
    "wrote": lambda line: (line.output, line.batch, line.ranges, line.about["outcome"]),
    "look": lambda line: (line.output, line.mark(), line.about["target"]),
    "land": lambda line: (line.output, line.mark(), line.mark("before"), line.about["rows"]),
    "landed": lambda line: (line.output, line.mark(), line.mark("before"), line.about["rows"], line.about["target"]),
    "outputs": lambda line: [each["kind"] for each in line.about["outputs"].values()],
}


def _ledger(about: dict[str, Any], name: str, key: str, group: str, where: str) -> Snapshot:
    found = read_document(about[name], group, where)
    if (found.version, found.change_id) != _key(about[key]):
        raise ValueError("the ledger is not the one that the line names")
    return found


def _entry(about: dict[str, Any], where: str) -> Entry:
    return read_entry({**about["entry"], "actor": "", "reason": ""}, _key(about["change"])[0], where)


def _key(raw: Any) -> Key:
    version, change = raw
    return int(version), str(change)


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError("no object")  # noqa: TRY004 - as for other text
    return value


def _no_trace(where: str) -> SettingsError:
    return SettingsError(f"{where} is not a line of a trace: give the files that OFFSETKEEPER_TRACE has made")
