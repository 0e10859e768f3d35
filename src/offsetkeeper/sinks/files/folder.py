"""Rows into files of a folder, local or on HDFS: only complete batches, each once.

    folder/batch=6/part-…, _offsetkeeper      a batch that landed, and its link
    folder/batch=5/_offsetkeeper              a dropped batch, or skipped numbers
    folder/_offsetkeeper/owner/_offsetkeeper  the first link: group and output of the folder
    folder/_offsetkeeper/7-5f3a9c0e1b7d2468/  an attempt to write a batch

A batch lands by a rename of its attempt's folder, which fails if the name is taken. A free name alone does not prove
that the mark is still the one that was read: sequences have gaps from the time when a program lacked this output. So
the names form a chain. Each link has the next name, which is the only one that may be taken, and never changes. To land
a later batch, a run first takes that next name for a link without rows, which has the batch's own name. Of all runs
that read the same last link, only one can take the name after it: this is compare-and-set.

An attempt for a number before the next name can never land, so it may be deleted at any time.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple, Protocol

from offsetkeeper.core import environment
from offsetkeeper.core.batch import Batch
from offsetkeeper.core.executors import our_error
from offsetkeeper.core.mark import OutputMark
from offsetkeeper.core.outside import load_json
from offsetkeeper.errors import MarkError, MarkMoved, OutcomeUnknown, Refused, SettingsError, SinkError, SinkMismatch
from offsetkeeper.sinks import held
from offsetkeeper.sinks.blame import judged, told_by_system
from offsetkeeper.sinks.files.link import NOTHING_TOLD, TIMES, Layout, Link, columns_of, grown
from offsetkeeper.sinks.sink import MarkKey, Seen

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

log = logging.getLogger("offsetkeeper")
HIDDEN = "_offsetkeeper"  # Spark's readers ignore names that start with _
_OWNER = f"{HIDDEN}/owner"
_BATCH = re.compile(r"batch=(0|[1-9][0-9]*)")
_ATTEMPT = re.compile(r"([0-9]+)-[0-9a-f]+")
_BROKEN = "spark.sql.columnNameOfCorruptRecord"
_MARKS_SUCCESS = "mapreduce.fileoutputcommitter.marksuccessfuljobs"
# By default Spark writes times as JSON in milliseconds, in the session's zone.
_EXACT: Mapping[str, Mapping[str, str]] = {
    "json": {
        "timeZone": "UTC",
        "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
        "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
        "dateFormat": "yyyy-MM-dd",
    }
}


class Tree(Protocol):
    """A folder of a file system; paths are relative to it. Each method raises SinkError if nothing was changed.

    Attributes:
        address: address of the folder for Spark.
    """

    address: str

    def make(self, path: str) -> None:
        """Create a folder and its parents, unless it exists."""

    def names(self, path: str) -> Sequence[str]:
        """Return the names in a folder; they are durable."""
        ...

    def read(self, path: str) -> bytes | None:
        """Return the content of a file, or None if it does not exist."""
        ...

    def write(self, path: str, content: bytes) -> None:
        """Write a file into an existing folder."""

    def sync(self, path: str) -> None:
        """Make everything in a folder and below it durable."""

    def move(self, source: str, target: str) -> None:
        """Rename a folder durably, in one step that fails if the target exists.

        Raises:
            OutcomeUnknown: the folder may be renamed, now or later.
        """

    def delete(self, path: str) -> None:
        """Delete a folder with its content, if it exists."""

    def folds(self, path: str) -> bool:
        """Whether an existing path is also found in capitals, as on file systems of other operating systems."""
        ...


class _Staged(NamedTuple):
    attempt: str
    columns: Mapping[str, str]
    offsets: str


@dataclass(slots=True)
class Output:
    """The opened folder.

    Attributes:
        tree: the folder.
        layout: layout of its batches.
        anywhere: whether executors on every machine reach it.
        mounted: whether they reach it by a mount, which may be missing: then each write is checked.
        reached: the next batch, when the folder was last read.
    """

    tree: Tree
    layout: Layout
    anywhere: bool
    mounted: bool = False
    reached: int = 0

    def check(self) -> None:
        """See `Files.prepare`."""
        self.tree.make(HIDDEN)
        last = self._last()
        if last is not None and last.layout != self.layout:
            raise Refused(f"{self.tree.address} has {last.layout}, not {self.layout}: give another folder")

    def stage(self, frame: DataFrame, batch: Batch) -> _Staged:
        """See `Lander`."""
        self._check_executors(frame)
        columns = columns_of(frame.schema.fields, self.layout)
        self._check_spelled(columns)
        last = self._last()
        if last is not None:
            grown(last.columns, columns)
            self._sweep(last.next)
        attempt = _attempt(batch.sequence)
        self.tree.make(attempt)
        try:
            self._write(frame, attempt)
        except Exception:
            with suppress(SinkError, Refused):  # frees a full disk; no other run uses this name
                self.tree.delete(attempt)
            raise
        self.tree.sync(attempt)
        return _Staged(attempt, columns, batch.lines())

    def seen(self, key: MarkKey) -> Seen:
        """See `Lander`."""
        last = self._last()
        if last is not None and last.key.group != key.group:
            raise Refused(
                f"{self.tree.address} is the folder of group {last.key.group!r}, not {key.group!r}: give each its own"
            )
        return Seen(None if last is None else last.mark, last, key=None if last is None else last.key)

    def land(self, key: MarkKey, seen: Seen, mark: OutputMark, staged: _Staged | None) -> None:
        """See `Lander`."""
        last: Link = seen.handle or Link(key, None, mark.sequence, self.layout, {})
        columns = grown(last.columns, staged.columns) if staged else last.columns
        if seen.handle is None:
            self._take(_OWNER, last)
        if mark.sequence < last.next:
            raise MarkMoved(f"{self.tree.address}: batch {mark.sequence} comes before the next one, {last.next}")
        if mark.sequence > last.next:
            self._take(_name(last.next), replace(last, next=mark.sequence))
        link = Link(key, mark, mark.sequence + 1, self.layout, columns)
        told = held.told(key, mark, staged and staged.offsets)
        self._take(_name(mark.sequence), link, staged.attempt if staged else None, told)

    def _take(self, name: str, link: Link, attempt: str | None = None, told: Mapping[str, str] = NOTHING_TOLD) -> None:
        """Take a name with a link, and with the rows of an attempt if there is one."""
        if attempt is None:
            attempt = _attempt(link.next)
            self.tree.make(attempt)
        content = link.dump(attempt, told)
        try:
            self.tree.write(f"{attempt}/{HIDDEN}", content)
            self.tree.move(attempt, name)
        except (SinkError, OutcomeUnknown) as error:
            there = self._peek(name)
            if there == content:
                raise OutcomeUnknown(
                    f"{self.tree.address}/{name} exists, although the rename failed: {error}"
                ) from error
            if there is not None:
                self._delete(attempt)
                raise MarkMoved(f"{self.tree.address}/{name} already exists: another run was first") from error
            raise

    def _peek(self, name: str) -> bytes | None:
        try:
            return self.tree.read(f"{name}/{HIDDEN}")
        except SinkError:
            return None

    def _last(self) -> Link | None:
        """Return the last link of the chain, or None if there is no chain yet."""
        last = self._find_last()
        reached = 0 if last is None else last.next
        if reached < self.reached:
            raise SinkError(
                f"{self.tree.address} has gone back behind batch {self.reached}, which was the next one: the folder "
                "was deleted or restored, or its file system is not mounted; nothing was written"
            )
        self.reached = reached
        return last

    def _find_last(self) -> Link | None:
        visible = [name for name in self.tree.names("") if name[0] not in "._"]
        numbers = _numbers(visible)
        name = _name(numbers[-1]) if numbers else _OWNER
        content = self.tree.read(f"{name}/{HIDDEN}")
        if content is not None:
            return Link.parse(content, f"{self.tree.address}/{name}/{HIDDEN}")
        if numbers:
            raise MarkError(
                f"{self.tree.address}/{name} was not written by offsetkeeper, or {HIDDEN}, which has the mark, was "
                "deleted in it"
            )
        if visible:
            raise Refused(
                f"{self.tree.address} contains {visible[0]!r}, which offsetkeeper did not write: give an empty folder"
            )
        return None

    def _check_executors(self, frame: DataFrame) -> None:
        master = "" if self.anywhere else frame.sparkSession.conf.get("spark.master", "")
        if not self.anywhere and not str(master).startswith("local"):
            raise SettingsError(
                f"{self.tree.address} is a local folder, but executors of {master} may be on other machines, and their "
                "files would be lost. Give a folder on HDFS, or shared=True if the folder is a mount that all have"
            )

    def _check_spelled(self, columns: Mapping[str, str]) -> None:
        """Check that texts which differ in capitals alone get different folders.

        Raises:
            SinkMismatch: they do not: all rows of one would come back with the text of the other.
        """
        texts = [name for name in self.layout.partition_by if columns[name] == "string"]
        if texts and self.tree.folds(HIDDEN):
            raise SinkMismatch(
                f"{self.tree.address} is on a file system that takes a and A for one name, so {texts[0]} in "
                "partition_by would change: rows with a would be read with A. Nothing was written. Partition by other "
                "columns, or give a folder elsewhere"
            )

    def _write(self, frame: DataFrame, attempt: str) -> None:
        from pyspark.errors import AnalysisException  # noqa: PLC0415 - loaded with Spark

        from offsetkeeper.sinks.files.tasks import watched  # noqa: PLC0415 - as above
        from offsetkeeper.sinks.files.values import checked, exact_times  # noqa: PLC0415 - as above

        self._check_session(frame)
        options = {_MARKS_SUCCESS: "true", **_EXACT.get(self.layout.format, {})}
        try:
            with exact_times(frame, self.layout):
                rows, tasks = checked(frame, self.layout), None
                if self.mounted:
                    rows, tasks = watched(rows)
                writer = rows.write.format(self.layout.format).mode("append").options(**options)
                writer.partitionBy(*self.layout.partition_by).save(f"{self.tree.address}/{attempt}")
        except AnalysisException as error:
            raise SinkMismatch(
                f"Spark cannot write the frame as {self.layout}: {error}; nothing was written"
            ) from error
        except Exception as error:
            if (ours := our_error(error)) is not None:
                raise ours from error
            if why := told_by_system(error):
                raise judged(error, f"{self.tree.address}: {why}; nothing was written") from error
            raise
        if "_SUCCESS" not in self.tree.names(attempt):
            raise SinkError(
                f"{self.tree.address}/{attempt}: Spark has written it, but this process does not see it: both "
                "must see the same folder; nothing was written"
            )
        if tasks is not None:
            self._check_seen(attempt, tasks())

    def _check_seen(self, attempt: str, tasks: frozenset[int]) -> None:
        """Check that the files of all tasks that had rows are in the folder."""
        from offsetkeeper.sinks.files.tasks import unseen  # noqa: PLC0415 - loads pyspark

        missing = unseen(tasks, self._files(attempt, len(self.layout.partition_by)))
        if missing:
            raise SinkError(
                f"{self.tree.address}/{attempt}: this process does not see what {len(missing)} of {len(tasks)} tasks "
                f"have written, such as task {missing[0]}: on the machine of such a task, as Spark's page shows it, "
                "another folder has this path, as where a mount is missing; nothing was written"
            )

    def _files(self, folder: str, depth: int) -> Iterator[str]:
        """Yield the names of the files that Spark wrote, below folders of columns to that depth."""
        for name in self.tree.names(folder):
            if not depth:
                yield name
            elif "=" in name:
                yield from self._files(f"{folder}/{name}", depth - 1)

    def _check_session(self, frame: DataFrame) -> None:
        """Check that the session does not cut values, and that Spark's readers find them.

        Parquet's writer has no option for the first.

        Raises:
            SinkMismatch: it does, or they do not.
        """
        if self.layout.format == "json":
            self._check_names(frame)
        times = [field.name for field in frame.schema.fields if "timestamp" in field.dataType.simpleString()]
        if self.layout.format == "parquet" and times:
            found = frame.sparkSession.conf.get(TIMES)
            if "MILLIS" in str(found):
                raise SinkMismatch(
                    f"{TIMES} is {found}, which cuts column {times[0]} to milliseconds; nothing was written. Set "
                    "it to TIMESTAMP_MICROS, or cut the column in the frame"
                )

    def _check_names(self, frame: DataFrame) -> None:
        filled = {"_corrupt_record", str(frame.sparkSession.conf.get(_BROKEN))}  # by default, and here
        taken = [name for name in frame.columns if name in filled - {*self.layout.partition_by}]
        if taken:
            raise SinkMismatch(
                f"the frame has a column {taken[0]}, where Spark's readers of JSON put broken lines ({_BROKEN}), "
                "so that they find no value of the frame there; nothing was written. Rename it in the frame"
            )

    def _sweep(self, following: int) -> None:
        """Delete the attempts that can never land."""
        for name in self.tree.names(HIDDEN):
            match = _ATTEMPT.fullmatch(name)
            if match and int(match[1]) < following:
                self._delete(f"{HIDDEN}/{name}")

    def _delete(self, attempt: str) -> None:
        try:
            self.tree.delete(attempt)
        except (SinkError, Refused) as error:  # a left-over attempt does no harm
            log.warning("%s: a left-over attempt could not be deleted: %s", self.tree.address, error)


def held_batches(tree: Tree) -> held.Held:
    """Return the batches that a folder tells of.

    Raises:
        MarkError: offsetkeeper has not written the folder, or a file in it is damaged.
        Refused, SinkError: the folder could not be read.
    """
    first = tree.read(f"{_OWNER}/{HIDDEN}")
    if first is None:
        raise MarkError(f"{tree.address} was not written by offsetkeeper: it has no {_OWNER}")
    numbers = _numbers(tree.names(""))
    begins = Link.parse(first, f"{tree.address}/{_OWNER}/{HIDDEN}").next
    found, lacks = [], []
    for number in numbers:
        name = _name(number)
        content = tree.read(f"{name}/{HIDDEN}")
        if content is None:
            raise MarkError(f"{tree.address}/{name}/{HIDDEN} was deleted")
        link = Link.parse(content, f"{tree.address}/{name}/{HIDDEN}")
        if number != begins:
            lacks.append(f"{_name(begins)} was deleted")
        begins = link.next
        if link.mark is not None and link.mark.sequence == number:  # else the number was only passed
            told = held.HeldBatch.of(name, load_json(content))
            found.append(told or held.HeldBatch.untold(name, link.key, link.mark))
    return held.Held(tuple(found), ", ".join(lacks))


def _numbers(names: Iterable[str]) -> list[int]:
    return sorted(int(match[1]) for name in names if (match := _BATCH.fullmatch(name)))


def _attempt(sequence: int) -> str:
    return f"{HIDDEN}/{sequence}-{environment.token()}"


def _name(sequence: int) -> str:
    # No leading zeros, so that a number has only one name.
    return f"batch={sequence}"
