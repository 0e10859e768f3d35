"""Rows into files of a folder, local or of HDFS: whole batches only, and each once.

    folder/batch=6/part-…, _offsetkeeper      a batch that landed, and its link
    folder/batch=5/_offsetkeeper              one that was dropped, or numbers that are left out
    folder/_offsetkeeper/owner/_offsetkeeper  the first link: whose folder it is
    folder/_offsetkeeper/7-5f3a9c0e1b7d2468/  an attempt to write a batch

A batch lands by the rename of its attempt's folder, which fails where the name is taken. A free name alone does not say
that the mark is the one that was looked at: sequences leave gaps, where a batch went out while a program did not have
this output. So names are a chain. Each link names the next name, the only one that may be taken, and is never changed.
Whoever lands a later batch first takes that name for a link without rows, which names the batch's own. Of all who saw
the same link at the end, one takes the name after it: that is compare-and-set.

An attempt that comes before the next name can never land, so it is deleted at any time, whoever writes there.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple, Protocol

from offsetkeeper.core import environment
from offsetkeeper.core.mark import OutputMark
from offsetkeeper.core.model import Batch
from offsetkeeper.errors import MarkError, MarkMoved, OutcomeUnknown, Refused, SettingsError, SinkError, SinkMismatch
from offsetkeeper.sinks.files.link import Layout, Link, columns_of, grown
from offsetkeeper.sinks.sink import MarkKey, Seen

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

log = logging.getLogger("offsetkeeper")
_HIDDEN = "_offsetkeeper"  # Spark's readers pass over names that begin so
_OWNER = f"{_HIDDEN}/owner"
_BATCH = re.compile(r"batch=(0|[1-9][0-9]*)")
_ATTEMPT = re.compile(r"([0-9]+)-[0-9a-f]+")
_FULL = "No space left on device", "Disk quota exceeded", "DSQuotaExceededException", "NSQuotaExceededException"
_MARKS_SUCCESS = "mapreduce.fileoutputcommitter.marksuccessfuljobs"


class Tree(Protocol):
    """A folder of a file system, in which paths are relative. Each method raises SinkError where nothing was changed.

    Attributes:
        address: of the folder, as Spark takes it.
    """

    address: str

    def make(self, path: str) -> None:
        """Make a folder, unless it is there, with those above it."""

    def names(self, path: str) -> Sequence[str]:
        """Return the names in a folder, which are durable."""
        ...

    def read(self, path: str) -> bytes | None:
        """Return what is in a file, or None where it is missing."""
        ...

    def write(self, path: str, content: bytes) -> None:
        """Write a file into a folder that is there."""

    def sync(self, path: str) -> None:
        """Make durable all that is in a folder and below it."""

    def move(self, source: str, target: str) -> None:
        """Rename a folder, in one step that fails where the target is there; it is durable then.

        Raises:
            OutcomeUnknown: it may be renamed, now or later.
        """

    def delete(self, path: str) -> None:
        """Delete a folder with all that is in it, unless it is missing."""


class _Staged(NamedTuple):
    attempt: str
    columns: Mapping[str, str]


@dataclass(slots=True)
class Output:
    """The folder, opened.

    Attributes:
        tree: the folder.
        layout: of its batches.
        anywhere: whether executors reach it wherever they are.
        reached: the next batch, when it was looked at last.
    """

    tree: Tree
    layout: Layout
    anywhere: bool
    reached: int = 0

    def check(self) -> None:
        """See `Files.prepare`."""
        self.tree.make(_HIDDEN)
        last = self._last()
        if last is not None and last.layout != self.layout:
            raise Refused(f"{self.tree.address} holds {last.layout}, not {self.layout}: give another folder")

    def stage(self, frame: DataFrame, batch: Batch) -> _Staged:
        """See `Lander`."""
        self._check_executors(frame)
        columns = columns_of(frame.schema.fields, self.layout)
        last = self._last()
        if last is not None:
            grown(last.columns, columns)
            self._sweep(last.next)
        attempt = _attempt(batch.sequence)
        self.tree.make(attempt)
        try:
            self._write(frame, attempt)
        except Exception:
            with suppress(SinkError, Refused):  # else a disk that is full stays so; nobody else has this name
                self.tree.delete(attempt)
            raise
        self.tree.sync(attempt)
        return _Staged(attempt, columns)

    def seen(self, key: MarkKey) -> Seen:
        """See `Lander`."""
        last = self._last()
        if last is not None and last.key != key:
            raise Refused(
                f"{self.tree.address} is the folder of group {last.key.group!r} and output {last.key.output!r}, not of "
                f"group {key.group!r} and output {key.output!r}: give each a folder of its own"
            )
        return Seen(None if last is None else last.mark, last)

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
        self._take(_name(mark.sequence), link, staged.attempt if staged else None)

    def _take(self, name: str, link: Link, attempt: str | None = None) -> None:
        """Take a name with a link, and the rows of an attempt where there is one."""
        if attempt is None:
            attempt = _attempt(link.next)
            self.tree.make(attempt)
        content = link.dump(attempt)
        try:
            self.tree.write(f"{attempt}/{_HIDDEN}", content)
            self.tree.move(attempt, name)
        except (SinkError, OutcomeUnknown) as error:
            there = self._peek(name)
            if there == content:
                raise OutcomeUnknown(f"{self.tree.address}/{name} is there, though: {error}") from error
            if there is not None:
                self._delete(attempt)
                raise MarkMoved(f"{self.tree.address}/{name} is there: another run was first") from error
            raise

    def _peek(self, name: str) -> bytes | None:
        try:
            return self.tree.read(f"{name}/{_HIDDEN}")
        except SinkError:
            return None

    def _last(self) -> Link | None:
        """Return the link at the end of the chain, or None where nobody has begun one."""
        last = self._find_last()
        reached = 0 if last is None else last.next
        if reached < self.reached:
            raise SinkError(
                f"{self.tree.address} had come to where batch {self.reached} is next, and has gone back: it was "
                "deleted or restored, or its file system is not mounted; nothing was written"
            )
        self.reached = reached
        return last

    def _find_last(self) -> Link | None:
        visible = [name for name in self.tree.names("") if name[0] not in "._"]
        numbers = [int(match[1]) for name in visible if (match := _BATCH.fullmatch(name))]
        name = _name(max(numbers)) if numbers else _OWNER
        content = self.tree.read(f"{name}/{_HIDDEN}")
        if content is not None:
            return Link.parse(content, f"{self.tree.address}/{name}/{_HIDDEN}")
        if numbers:
            raise MarkError(
                f"{self.tree.address}/{name} is not of offsetkeeper, or {_HIDDEN} was deleted in it: it has the mark"
            )
        if visible:
            raise Refused(
                f"{self.tree.address} has {visible[0]!r} in it, which is not of offsetkeeper: give an empty folder"
            )
        return None

    def _check_executors(self, frame: DataFrame) -> None:
        master = "" if self.anywhere else frame.sparkSession.conf.get("spark.master", "")
        if not self.anywhere and not str(master).startswith("local"):
            raise SettingsError(
                f"{self.tree.address} is a local folder, and executors of {master} may be on other machines: what they "
                "write there would be lost. Give a folder of HDFS, or shared=True where it is a mount that all have"
            )

    def _write(self, frame: DataFrame, attempt: str) -> None:
        from pyspark.errors import AnalysisException  # noqa: PLC0415 - loaded with Spark

        writer = frame.write.format(self.layout.format).mode("append").option(_MARKS_SUCCESS, "true")
        try:
            writer.partitionBy(*self.layout.partition_by).save(f"{self.tree.address}/{attempt}")
        except AnalysisException as error:
            raise SinkMismatch(
                f"Spark cannot write the frame as {self.layout}: {error}; nothing was written"
            ) from error
        except Exception as error:
            full = next((text for text in _FULL if text in str(error)), None)
            if full is not None:  # no fault of the records, as an error of Spark's would be
                raise SinkError(f"{self.tree.address}: {full}; nothing was written") from error
            raise
        if "_SUCCESS" not in self.tree.names(attempt):
            raise SinkError(
                f"{self.tree.address}/{attempt}: Spark has written it, and this process does not see it: the "
                "folder must be the same one for both; nothing was written"
            )

    def _sweep(self, following: int) -> None:
        """Delete the attempts that can never land."""
        for name in self.tree.names(_HIDDEN):
            match = _ATTEMPT.fullmatch(name)
            if match and int(match[1]) < following:
                self._delete(f"{_HIDDEN}/{name}")

    def _delete(self, attempt: str) -> None:
        try:
            self.tree.delete(attempt)
        except (SinkError, Refused) as error:  # no batch needs it gone
            log.warning("%s: an attempt that is left over is not deleted: %s", self.tree.address, error)


def _attempt(sequence: int) -> str:
    return f"{_HIDDEN}/{sequence}-{environment.token()}"


def _name(sequence: int) -> str:
    # No zeros before it, as a number must have one name.
    return f"batch={sequence}"
