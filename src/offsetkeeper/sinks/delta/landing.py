"""A Delta Lake table as an output that keeps a mark.

Each commit is for one version of the table: the one after the version that was read. deltalake does not retry by
itself, so only the first commit of a version succeeds. After a conflict the mark is read again. If others have changed
the table but not the mark, the commit is tried for the next version.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote

import deltalake
import pyarrow as pa
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction
from pyarrow import dataset

from offsetkeeper import errors
from offsetkeeper.core import environment, urls
from offsetkeeper.core.batch import Batch
from offsetkeeper.core.executors import our_error
from offsetkeeper.core.mark import OutputMark, above, lowered
from offsetkeeper.core.model import Landed
from offsetkeeper.core.outside import read_file
from offsetkeeper.core.pickle_by_value import ship
from offsetkeeper.core.spark_session import collected, map_in_arrow
from offsetkeeper.errors import (
    GuaranteeRefused,
    MarkMoved,
    OffsetkeeperError,
    OutcomeUnknown,
    Refused,
    SinkError,
)
from offsetkeeper.sinks import held, limits, synced
from offsetkeeper.sinks.delta import marks, task
from offsetkeeper.sinks.delta.columns import (
    columns_of,
    finds_files,
    limits_of,
    misfit,
    partitions_misfit,
    written_by_merge,
)
from offsetkeeper.sinks.delta.opened import UNKNOWN, USER_METADATA, has_batch, load, restored_to, standing, telling
from offsetkeeper.sinks.delta.probe import check_refuses
from offsetkeeper.sinks.lake import LakeColumn, StagedFile, check_seen, shaped
from offsetkeeper.sinks.sink import MarkKey, Seen, another_kind
from offsetkeeper.sinks.table import Target, match_columns, ordered, same_key

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

log = logging.getLogger(__name__)

_TRIES = 20  # others may change the table between a read and a commit
_LONGEST_S = 1.0
_WRITTEN_BACK_S = 3600.0  # whatever is older is on the disk, whoever wrote it
_OF_FILES = ("add", "cdc")  # actions that name a new file: of rows, and of changes that others read
_LARGEST_ENTRY = 2**30  # bytes of a commit: some 500,000 files
_SHIPPED = (errors, environment, urls, limits, synced, task)
_FEATURES = frozenset(
    {"appendOnly", "changeDataFeed", "checkConstraints", "columnMapping", "deletionVectors", "domainMetadata"}
    | {"generatedColumns", "identityColumns", "invariants", "timestampNtz", "v2Checkpoint", "vacuumProtocolCheck"}
)
"""Features of a table that need no work of a writer, or that `_demands` finds if they are in use."""


class Shape(NamedTuple):
    """The identity and the settings of a table: if both are the same, the table was not altered."""

    table: str
    schema: str
    partitions: tuple[str, ...]
    settings: str

    @classmethod
    def of(cls, table: deltalake.DeltaTable) -> Shape:
        """Return the shape of a table."""
        about = table.metadata()
        settings = f"{sorted(about.configuration.items())} {table.protocol()}"
        return cls(str(about.id), table.schema().to_json(), tuple(about.partition_columns), settings)


class Staged(NamedTuple):
    """Rows that are in files but not in the table yet, for a table of that shape, and the offsets that they are of."""

    shape: Shape
    files: list[task.File]
    columns: list[str]
    offsets: str


@dataclass(frozen=True)
class DeltaTarget:
    """See `Lander`.

    Attributes:
        address: a path, or a URI of deltalake.
        options: deltalake's storage options.
        target: the target; its name is the address.
        durable: the marks that are on the disk, as this run knows.
        warned: versions of the table after which its log lacks entries, as this run has said.
    """

    address: str
    options: Mapping[str, str] = field(repr=False)
    target: Target
    durable: dict[MarkKey, OutputMark] = field(default_factory=dict, repr=False, compare=False)
    warned: set[int] = field(default_factory=set, repr=False, compare=False)

    @property
    def folder(self) -> task.Folder:
        """The folder of the table."""
        return task.Folder(self.address, self.options)

    def check(self) -> None:
        """See `DeltaTable.prepare`."""
        for name, value in [*self.options.items(), *os.environ.items()]:
            if name.lower().endswith("allow_unsafe_rename") and value.lower() not in {"false", "0", ""}:
                raise GuaranteeRefused(f"{self.address}: with {name}, two commits may get the same version: remove it")
        self._writable()
        check_refuses(self.address, self.options)

    def stage(self, frame: DataFrame, batch: Batch) -> Staged:
        """See `Lander`."""
        table = self._writable()
        shape = Shape.of(table)
        columns = columns_of(shape.schema)
        match_columns(frame.schema.fields, columns, self.target, misfit)
        partitions = [] if self.target.mode == "upsert" else [*shape.partitions]
        chosen = _chosen(columns, frame.columns, partitions)
        names = [each.name for each in chosen]
        rows = shaped(frame, chosen, partitions, self.target)
        schema = pa.schema(table.schema().to_arrow())
        plan = task.FilePlan(
            pa.schema([schema.field(name) for name in names]),
            tuple(partitions),
            tuple(limits_of(each, shape.partitions, self.target.key) for each in chosen),
            f"part-{environment.token()}",
            str(same_key(self.target, in_order=ordered(frame.schema.fields, self.target))),
        )
        write = ship(task.write_files, (self.folder, plan), _SHIPPED)
        try:
            done = collected(map_in_arrow(rows, write, task.RESULT))
        except Exception as error:
            ours = our_error(error)
            if ours is None:
                raise
            raise ours from error
        files = [task.File(*row) for row in done]
        if self.folder.local:
            seen = (StagedFile(str(Path(self.address, each.path)), each.size, each.host) for each in files)
            check_seen(self.address, seen)
        return Staged(shape, files, names, batch.lines())

    def seen(self, key: MarkKey) -> Seen:
        """See `Lander`. The handle is the table, loaded at one version."""
        table = load(self.folder)
        with telling(self.folder):
            mark = marks.read(table.transaction_version, key)
        if mark is not None:  # the run that landed it may have died, or failed, before it was on the disk
            self._settle(key, mark, table.version(), SinkError)
        return Seen(mark, table, str(table.version()), key)

    def lost(self, landed: Landed, seen: Seen) -> str:
        """See `Lander`. A table that is restored keeps the marks of the rows that it drops, and its version rises."""
        why, new = lowered(landed, seen.mark), above(landed, seen.mark)
        if why or seen.target == landed.target or not (landed.target or new):
            return why
        if landed.target and not landed.target.isdecimal():
            return another_kind(landed)
        version, known = seen.handle.version(), int(landed.target or UNKNOWN)
        if version < known:
            return f"it is at version {version}, and had the batch in version {known}: it was created again or restored"
        since = self._since(seen.handle, known)
        oldest = since[-1]["version"] if since else version + 1
        lacking = f"its log begins with version {oldest}" if oldest > known + 1 else ""
        why = _restored(since, known, "the batch") if landed.target else ""
        if lacking and not why and landed.sequence and landed.target:
            self._warn(known, lacking)
        return why or (_taken_back(since, seen, lacking if _may_be_new(landed, seen) else "") if new else "")

    def land(self, key: MarkKey, seen: Seen, mark: OutputMark, staged: Staged | None) -> str:
        """See `Lander`. Returns the version of the commit; empty if it is not known."""
        for number in range(_TRIES):
            if staged is not None and Shape.of(seen.handle) != staged.shape:
                raise SinkError(f"{self.address} was altered while rows were staged for it; nothing was written")
            try:
                self._commit(seen.handle, key, mark, staged)
            except Exception as error:  # noqa: BLE001 - whatever the error is, the table shows the outcome
                again = self._after(error, key, seen, mark)
                if isinstance(again, str):
                    return again
                seen = again
                environment.wait(environment.chance() * min(0.01 * 2**number, _LONGEST_S))
            else:
                version = seen.handle.version() + 1
                self._settle(key, mark, version, OutcomeUnknown)
                return str(version)
        raise SinkError(f"{self.address}: other writers keep changing the table; nothing was written")

    def _after(self, error: Exception, key: MarkKey, seen: Seen, mark: OutputMark) -> Seen | str:
        """Return the state for another try after a failed commit; if the commit is done after all, its version."""
        why, conflict = self.folder.why(error), isinstance(error, CommitFailedError)
        try:
            now = self.seen(key)
        except (SinkError, Refused) as lost:
            raise OutcomeUnknown(f"{why}; the read after it failed too: {lost}") from None
        if now.mark == mark and not conflict:
            log.warning("batch %s has landed, but then an error came: %s", mark.sequence, why)
            return self._version_of(key, seen, now, mark)
        if now.mark != seen.mark:
            raise MarkMoved(f"{self.address}: the mark of {key.group!r} is '{now.mark}' now; nothing was written")
        if conflict and now.handle.version() != seen.handle.version():
            since = self._since(now.handle, seen.handle.version())
            if restores := [each["version"] for each in since if restored_to(each) is not None]:
                raise SinkError(
                    f"{self.address} was restored by version {restores[0]} while rows were landing; nothing was written"
                )
            return now
        if self.folder.local:
            raise SinkError(f"{why}; nothing was written") from None
        raise OutcomeUnknown(why) from None

    def _version_of(self, key: MarkKey, seen: Seen, now: Seen, mark: OutputMark) -> str:
        """Return the version of a commit that has landed since a look; empty if that cannot be found out."""
        with suppress(SinkError, Refused):
            since = self._since(now.handle, seen.handle.version())
            return next((str(each["version"]) for each in since if has_batch(each, key, mark)), "")
        return ""

    def _warn(self, known: int, lacking: str) -> None:
        if known not in self.warned:
            self.warned.add(known)
            log.warning(
                "%s: %s, and the ledger knows the last batch in version %d: a RESTORE between them would not show. If "
                "somebody has restored the table, stop the run, and compare the rows with the ledger's positions",
                *(self.address, lacking, known),
            )

    def _since(self, table: deltalake.DeltaTable, version: int) -> list[dict[str, Any]]:
        """Return the commits after a version, the newest first; old ones may be deleted."""
        with telling(self.folder):
            found = table.history(table.version() - version)
        return [each for each in found if each["version"] > version]

    def _commit(self, table: deltalake.DeltaTable, key: MarkKey, mark: OutputMark, staged: Staged | None) -> None:
        transactions = [deltalake.Transaction(*each) for each in marks.transactions(key, mark).items()]
        about = {USER_METADATA: json.dumps(held.told(key, mark, staged and staged.offsets))}
        properties = deltalake.CommitProperties(about, max_commit_retries=0, app_transactions=transactions)
        version = table.version()
        if staged is not None and staged.files and self.target.mode == "upsert":
            self._merge(version, staged, properties)
        else:
            names = table.metadata().partition_columns
            now = environment.now_ms()
            added: list[Any] = [_added(file, names, now) for file in (staged.files if staged is not None else [])]
            table.create_write_transaction(
                added, "append", table.schema(), partition_by=names, commit_properties=properties
            )

    def _settle(self, key: MarkKey, mark: OutputMark, newest: int, failed: type[OffsetkeeperError]) -> None:
        """Wait until the commit of a mark and the files that it adds are on the disk: deltalake waits for none."""
        if not self.folder.local or self.durable.get(key) == mark:
            return
        entry = ""
        try:
            for version in range(newest, -1, -1):  # others may have committed since
                entry = f"_delta_log/{version:020}.json"
                if environment.now_ms() / 1000 - Path(self.address, entry).stat().st_mtime > _WRITTEN_BACK_S:
                    break  # so all older ones are on the disk too
                content, _ = read_file(Path(self.address, entry), _LARGEST_ENTRY, root=Path(self.address))
                if b'"txn"' not in content:
                    continue
                actions = [json.loads(line) for line in content.splitlines() if line.strip()]
                if any(each["txn"]["appId"] == key.path for each in actions if "txn" in each):
                    added = [unquote(each[of]["path"]) for each in actions for of in _OF_FILES if of in each]
                    there = [path for path in added if Path(self.address, path).exists()]  # VACUUM may have come since
                    self.folder.sync(*there, entry)
                    break
        except FileNotFoundError:
            log.debug("%s: %s, which may have the mark of %s, was cleaned up", self.address, entry, key.path)
        except OSError as error:
            raise failed(f"{self.address}: {entry} exists, but may not be durable: {error}") from error
        self.durable[key] = mark

    def _merge(self, version: int, staged: Staged, properties: deltalake.CommitProperties) -> None:
        # A merge moves its table object to the next version, but the handle must stay at the version that was read.
        table = deltalake.DeltaTable(self.address, version, storage_options=dict(self.options))
        files = self.folder.files()
        paths = [file.path for file in staged.files]
        rows = dataset.dataset(paths, format="parquet", filesystem=files).scanner(columns=staged.columns).to_reader()
        values = {_quoted(name): f"s.{_quoted(name)}" for name in staged.columns}
        same = " and ".join(f"t.{_quoted(name)} = s.{_quoted(name)}" for name in self.target.key)
        streamed = not finds_files(staged.shape.schema, self.target.key)  # streamed, it looks into each file
        merger = table.merge(
            rows,
            same,
            source_alias="s",
            target_alias="t",
            writer_properties=written_by_merge(staged.shape.schema),
            streamed_exec=streamed,
            commit_properties=properties,
        )
        # Keys are updated too: a merge without changes would make no commit, and so no mark.
        done = merger.when_matched_update(values).when_not_matched_insert(values).execute()
        if table.version() != version + 1:
            raise SinkError(f"{self.address}: deltalake merged rows without a commit")
        self._compare(sum(file.rows for file in staged.files), done)
        for path in paths:
            with suppress(OSError):
                files.delete_file(path)

    def _compare(self, rows: int, done: Mapping[str, Any]) -> None:
        """Hold the rows of a batch against what a merge says that it has done; it says so after its commit."""
        inserted, updated = done["num_target_rows_inserted"], done["num_target_rows_updated"]
        if inserted + updated != rows:
            log.warning(
                "%s: a batch of %d rows has inserted %d and replaced %d: the table had several rows of the same key, "
                "and now has the batch's row as often: delete them",
                *(self.address, rows, inserted, updated),
            )

    def _writable(self) -> deltalake.DeltaTable:
        table = load(self.folder)
        demands = [*_demands(table, self.target)]
        if demands:
            raise Refused(f"{self.address} cannot be written: {'; '.join(demands)}")
        return table


def _restored(since: Sequence[Mapping[str, Any]], known: int, what: str) -> str:
    """Return why a table lacks, or may lack, what it had at a version, by the commits since; empty if it does not."""
    has = f"version {known}, which has {what}"
    for entry in standing(since):
        to, by = restored_to(entry), entry["version"]
        if by > known and to == UNKNOWN:
            return f"version {by} restored the table to a time: it is unknown whether it kept {has}"
        if by > known and to is not None and to < known:
            return f"version {by} restored the table to before {has}, and it keeps the mark"
    return ""


def _may_be_new(landed: Landed, seen: Seen) -> bool:
    """Whether a mark may be of a batch under way. The ledger may not know an output that has a mark of any age."""
    return landed != Landed() or (seen.mark is not None and seen.mark.sequence == 1)


def _taken_back(since: Sequence[Mapping[str, Any]], seen: Seen, lacking: str) -> str:
    """Return why a table lacks, or may lack, the batch of its mark: a RESTORE is later in the log than its commit.

    Args:
        since: the commits of the log since a version without the batch.
        seen: the mark.
        lacking: why older commits since that version are not in the log any more; empty if all are there.
    """
    assert seen.key is not None  # noqa: S101 - it is of this module
    assert seen.mark is not None  # noqa: S101 - as above
    mine = [each["version"] for each in since if has_batch(each, seen.key, seen.mark)]
    batch = f"batch {seen.mark.sequence}"
    if lacking and not mine:
        return f"{lacking}, without {batch}: it is unknown whether a RESTORE took the batch back; the mark stays"
    whys = [_restored(since, version, batch) for version in mine]
    return whys[0] if whys and all(whys) else ""


def _chosen(columns: Sequence[LakeColumn], given: Sequence[str], partitions: Sequence[str]) -> list[LakeColumn]:
    """Return the columns of a table that rows are written with: those of a frame, and what its files need."""
    names = {*given, *partitions}
    if names <= {*partitions}:  # values of these are in the log alone, and a file without a column has no rows
        names.add(next(each.name for each in columns if each.name not in partitions))
    return [each for each in columns if each.name in names]


def _demands(table: deltalake.DeltaTable, target: Target) -> Iterator[str]:
    """Yield the demands of a table that this writer does not support."""
    about, schema = table.metadata(), table.schema().to_json()
    settings = {name.lower(): str(value) for name, value in about.configuration.items()}
    yield from (f"it has feature {name}" for name in sorted({*(table.protocol().writer_features or ())} - _FEATURES))
    yield from (f"it has {name}" for name in settings if name.startswith("delta.constraints."))
    if settings.get("delta.columnmapping.mode", "none") != "none":
        yield "it maps its columns to other names"
    if "delta.settransactionretentionduration" in settings:
        yield "with delta.setTransactionRetentionDuration it would forget the mark: remove that property"
    if target.mode == "upsert" and settings.get("delta.appendonly", "false") == "true":
        yield "it is append-only, but upsert replaces rows"
    fields = json.loads(schema)["fields"]
    for each in fields:
        yield from (f"column {each['name']} has {name}" for name in each["metadata"] if name.startswith("delta."))
    columns = {each.name: each for each in columns_of(schema)}
    for name in about.partition_columns:
        if partitions_misfit(columns[name]):
            yield f"it is partitioned by {name}, which is {columns[name].type}"
    if len(about.partition_columns) == len(columns):
        yield "it is partitioned by all its columns, so its files would have no rows: add a column to it"
    yield from (f"it has no column {name}, which is in the key" for name in target.key if name not in columns)


def _added(file: task.File, names: list[str], now_ms: int) -> AddAction:
    values = dict(zip(names, json.loads(file.partition), strict=True))
    return AddAction(file.path, file.size, values, now_ms, True, json.dumps({"numRecords": file.rows}))  # noqa: FBT003 - new rows


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
