"""Executes an `Edit` completely or not at all, and undoes it.

The order is: a backup beside the checkpoint; a barrier file in `offsets` with the highest number, which Spark cannot
read, so that a query that starts now fails and reads nothing; the changes; then the barrier is deleted. After a crash
the checkpoint is unchanged, or completely changed, or Spark refuses it until the change is undone.

Spark has no locks. A working query leaves fresh files; a query that waits for data or for its trigger leaves none, and
looks like a stopped one. So the check finds many running queries, but can never prove that no query runs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from offsetkeeper.checkpoint.contents import RECORD, Checkpoint, read_checkpoint
from offsetkeeper.checkpoint.files import Files, Stamp, checksum_of
from offsetkeeper.checkpoint.log_format import BARRIER
from offsetkeeper.checkpoint.plans import Edit, make_edit
from offsetkeeper.core import environment
from offsetkeeper.core.outside import load_json, reason
from offsetkeeper.errors import CorruptStore, Fenced, NotAllowed, OutcomeUnknown, Stale, VersionConflict

_STATE = re.compile(r"state(/(?!\.{1,2}(/|$))[^/\0]+)+")  # what a backup's record may have deleted
_BACKUP = re.compile(rb"\s(backup-[\w.-]+)\s*\Z")  # at the end of a barrier

QUIET_S = 30.0
LOOK_S = 1.0
_POLL_S = 0.1
_SKEW_S = 5.0
_SHOWN = 20


def apply(
    files: Files,
    edit: Edit,
    *,
    force: bool = False,
    quiet_s: float = QUIET_S,
    look_s: float = LOOK_S,
    hold_s: float = 0.0,
) -> str:
    """Execute a plan; return the name of the backup, or "" if there was nothing to do.

    Args:
        files: the checkpoint's folder.
        edit: the plan, made for the current checkpoint.
        force: execute it even if a query seems to run. If one runs, its writes and these writes mix.
        quiet_s: seconds before now in which nothing may have been written.
        look_s: seconds to watch whether something is written.
        hold_s: seconds to block queries before a file is changed. A query that waits for its trigger or for data, and
            gets them in that time, fails before it reads if the change is a truncation; any other change is then
            refused.

    Raises:
        VersionConflict: the checkpoint has changed since the plan was made; nothing was changed.
        Fenced: a query may be running; nothing was changed.
        OutcomeUnknown: another program, such as a query, has changed the checkpoint meanwhile. Both changes are mixed;
            Spark refuses the checkpoint until `plan_undo` is applied.
        StoreUnavailable: the file system failed. Spark refuses the checkpoint until `plan_undo` is applied; or nothing
            was changed; or all is done, if only the last answer was lost: `inspect` and `verify` show it.
    """
    found = read_checkpoint(files, may_be_new=True)
    if edit.where != found.where:
        raise Stale(f"the plan is for {edit.where}, not for {found.where}")
    if edit.empty and not found.barrier:
        return ""
    if not force:
        check_quiet(files, found, quiet_s=0 if _ours(files, found) else quiet_s, look_s=look_s)
        found = read_checkpoint(files, may_be_new=True)
    _check_same(found, edit)
    backup = "" if found.barrier else _back_up(files, found, edit)
    barrier = found.barrier or _put_barrier(files, found, edit, backup)
    if hold_s and not found.barrier:
        _hold(files, edit, barrier, backup, hold_s)
    _create(files, found, edit, barrier, backup)
    _carry_out(files, found, edit)
    _check_done(files, edit, barrier, backup or edit.origin)
    files.delete(barrier)
    return backup


def plan_undo(files: Files, backup: str = "") -> Edit:
    """Return the plan that undoes a change: the interrupted one, or the newest one. The undo can be undone too.

    Args:
        files: the checkpoint's folder.
        backup: the change to undo, by the name of its backup.

    Raises:
        NotAllowed: the backup does not exist, there is nothing to undo, or a query has run since the change.
    """
    found = read_checkpoint(files, may_be_new=True)
    if backup and backup not in (kept := files.backups()):
        raise NotAllowed(f"{found.where} has no backup {backup!r}; its backups: {_newest(kept)}")
    if found.barrier:
        backup = _origin(files, found.barrier, backup)
    for name in [backup] if backup else files.backups()[::-1]:
        record = _record(files, name)
        if record is None or (not found.barrier and record["before"] == found.fingerprint):
            continue  # made by a run that did not change anything
        if not found.barrier and record["after"] != found.fingerprint:
            raise NotAllowed(
                f"{found.where} has new batches since the change of backup {name} ({record['action']}): an undo now "
                "would run batches again with used numbers. Nothing was changed. Move the offsets instead"
            )
        return _back(files, found, name, record)
    raise NotAllowed(f"{found.where} has no change to undo, or it is already undone")


def _ours(files: Files, found: Checkpoint) -> bool:
    """Whether the newest file is from a finished change, so that no query has written since."""
    if found.barrier:
        return False  # the change may still be running
    record = next((each for name in files.backups()[::-1] if (each := _record(files, name))), None)
    return record is not None and record["after"] == found.fingerprint


def _back(files: Files, found: Checkpoint, name: str, record: dict[str, Any]) -> Edit:
    kept = files.backup(name)
    then = read_checkpoint(kept)
    gone = [log for log in found.logs if log not in then.logs and not _has_ended(log, found, then, record)]
    notes = _again(gone, record)
    gone += record["restores"]
    state = [each for each in then.state if each in record["deletes"]]
    edit = make_edit(found, f"undo of {record['action']}", then.logs, gone, restores=state, origin=name, notes=notes)
    return replace(edit, deletes=tuple(each for each in edit.deletes if each not in state))


def _has_ended(log: str, found: Checkpoint, then: Checkpoint, record: dict[str, Any]) -> bool:
    """Whether it is the commit of a batch that ran during the change, which has left the batch there."""
    planned = log.replace("commits/", "offsets/")
    return planned != log and planned in found.logs and planned in then.logs and _is_others(log, record)


def _again(gone: Sequence[str], record: dict[str, Any]) -> list[str]:
    """Return a note on each batch that another program has planned or finished during the change."""
    logs = [each for each in gone if each.startswith(("offsets/", "commits/")) and _is_others(each, record)]
    return [
        f"another program has run batch {batch} during the change: what the output has of it stays, and it runs again"
        for batch in sorted({int(each.partition("/")[2]) for each in logs})
    ]


def _is_others(log: str, record: dict[str, Any]) -> bool:
    """Whether the change has not written a file; of a change by an older release that is not known."""
    return log not in record.get("writes", [log])


def _back_up(files: Files, found: Checkpoint, edit: Edit) -> str:
    """Back up the logs and the state to delete. The record is written last; a folder without it is not a backup."""
    now = datetime.fromtimestamp(environment.now_ms() / 1000, UTC)
    name = f"backup-{now:%Y%m%dT%H%M%S.%fZ}-{environment.token(2)}"
    state = [each for each in edit.deletes if each.startswith("state/")]
    for each in (*found.logs, *state):
        files.copy(each, "", name)
    kept = read_checkpoint(files.backup(name), may_be_new=True)
    if kept.fingerprint != edit.before or not set(state) <= set(kept.state):
        raise _changed(found)  # it changed during the copy: this backup is incomplete
    record = {
        "action": edit.action,
        "before": edit.before,
        "after": edit.after,
        "writes": list(edit.writes),
        "deletes": list(edit.deletes),
        "restores": list(edit.restores),
    }
    files.backup(name).write(RECORD, json.dumps(record, indent=1).encode())
    return name


def _put_barrier(files: Files, found: Checkpoint, edit: Edit, backup: str) -> str:
    """Write the barrier: from now on no query starts, but a running query may have written before."""
    numbers = [*found.offsets, *found.changed(edit.writes, ()).offsets, *found.commits]
    name = f"offsets/{max(numbers, default=-1) + 1}"
    created = files.create(name, _barrier(backup))
    now = read_checkpoint(files)
    if created and now.fingerprint != edit.before:
        files.delete(name)
    _check_same(now, edit)
    if not created:
        raise VersionConflict(
            f"{found.where} is being changed by another program. Nothing was changed: try again later"
        )
    return name


def _hold(files: Files, edit: Edit, barrier: str, backup: str, hold_s: float) -> None:
    """Wait for a sleeping query: the barrier has the number of its next batch, so the query fails there."""
    try:
        environment.wait(hold_s)
        _check_same(read_checkpoint(files), edit, barrier)
    except BaseException:
        _lift(files, barrier, backup)
        raise


def _lift(files: Files, barrier: str, backup: str) -> None:
    """Delete the barrier if this change has written it."""
    if files.read(barrier) == _barrier(backup):
        files.delete(barrier)


def _barrier(backup: str) -> bytes:
    return f"{BARRIER}A change is under way; the backup is {backup}\n".encode()


def _check_done(files: Files, edit: Edit, barrier: str, backup: str) -> None:
    now = read_checkpoint(files)
    if now.fingerprint == edit.after and now.barrier == barrier:
        return
    if not now.barrier:  # an undo deleted it during this change
        files.create(barrier, _barrier(backup))
    raise _mixed(edit, backup)


def _mixed(edit: Edit, backup: str) -> OutcomeUnknown:
    return OutcomeUnknown(
        f"{edit.where}: another program, such as a running query, has changed it during this change. Both changes are "
        f"mixed, so no query starts. Stop that program, then undo the change of backup {backup}"
    )


def _check_same(found: Checkpoint, edit: Edit, barrier: str = "") -> None:
    """Check that the logs have not changed, and that an undo has not deleted the barrier."""
    if found.fingerprint != edit.before or (barrier and found.barrier != barrier):
        raise _changed(found)


def _changed(found: Checkpoint) -> VersionConflict:
    return VersionConflict(f"{found.where} has changed since the plan was made; nothing was changed. Make a new plan")


def _create(files: Files, found: Checkpoint, edit: Edit, barrier: str, backup: str) -> None:
    """Write the new files before all others: a query that wakes up now takes the name of its next batch."""
    new = [name for name in edit.writes if name not in found.logs]
    for name in new:
        if not files.create(name, edit.writes[name]):
            if name != new[0]:
                raise _mixed(edit, backup or edit.origin)
            _lift(files, barrier, backup)
            raise _changed(found)
        if (checksum := checksum_of(name)) in found.listed:  # of a file that is gone
            files.delete(checksum)


def _carry_out(files: Files, found: Checkpoint, edit: Edit) -> None:
    for name in edit.restores:
        files.copy(name, edit.origin, "")
    for name in edit.writes:
        if name in found.logs:
            files.write(name, edit.writes[name])
    for name in edit.deletes:
        files.delete(name)


def _origin(files: Files, barrier: str, named: str) -> str:
    """Return the name of the backup that an interrupted change has made; the named one if the barrier tells none."""
    found = _BACKUP.search(files.read(barrier) or b"")
    if found is not None:
        return found[1].decode()
    if named:
        return named
    raise CorruptStore(
        f"{files.address}, {barrier}, names no backup, and a change may be half done: undo it by --backup. The "
        f"backups: {_newest(files.backups())}"
    )


def _newest(backups: Sequence[str]) -> str:
    return ", ".join(backups[-_SHOWN:]) or "none"


def _record(files: Files, name: str) -> dict[str, Any] | None:
    content = files.backup(name).read(RECORD)
    if content is None:
        return None
    try:
        record: dict[str, Any] = dict(load_json(content))
        _check_record(record)
    except (ValueError, TypeError, KeyError) as error:
        where = f"{files.backup(name).address}, {RECORD},"
        raise CorruptStore(f"{where} is damaged: {reason(error)}. Nothing was changed: use another backup") from None
    return record


def _check_record(record: dict[str, Any]) -> None:
    if not all(isinstance(record[name], str) for name in ("action", "before", "after")):
        raise TypeError("it has a number where a text belongs")
    if not all(isinstance(name, str) for name in (*record["deletes"], *record.get("writes", ()))):
        raise TypeError("a name of a file is a number")
    if not all(map(_STATE.fullmatch, record["restores"])):
        raise ValueError("it names a file that does not belong to the state")


def check_quiet(files: Files, checkpoint: Checkpoint, *, quiet_s: float, look_s: float) -> None:
    """Return if there is no sign of a running query.

    Args:
        files: the checkpoint's folder.
        checkpoint: its content.
        quiet_s: seconds before now in which nothing may have been written, by this machine's clock.
        look_s: seconds to watch.

    Raises:
        Fenced: a file was written recently, or while watching.
    """
    first = _stamps(files, checkpoint)
    deadline = environment.monotonic() + look_s
    while (left := deadline - environment.monotonic()) > 0:
        environment.wait(min(_POLL_S, left))
        now = _stamps(files, checkpoint)
        if changed := sorted(name for name in first.keys() | now.keys() if first.get(name) != now.get(name)):
            raise _runs(checkpoint, f"{changed[0]} has changed during the check")
    now_s = environment.now_ms() / 1000
    ages = ((name, max(0.0, now_s - stamp.at_s)) for name, stamp in first.items())  # clocks differ a little
    name, age_s = min(ages, key=_second, default=("", 0.0))
    ahead_s = max((stamp.at_s - now_s for stamp in first.values()), default=0.0)
    if quiet_s and ahead_s > _SKEW_S:
        ahead = next(each for each, stamp in first.items() if stamp.at_s - now_s == ahead_s)
        raise _runs(checkpoint, f"{ahead} is dated {ahead_s:.0f} s after now, so the time of its write is unknown")
    if name and age_s < quiet_s:
        raise _runs(checkpoint, f"{name} was written {age_s:.0f} s ago, less than {quiet_s:.0f} s")


def _stamps(files: Files, checkpoint: Checkpoint) -> dict[str, Stamp]:
    """Return the stamps of the logs; of the state too if a batch runs: a long batch writes only state."""
    under_way = checkpoint.offsets and checkpoint.offsets[-1] not in checkpoint.commits
    folders = ["offsets", "commits", "sources", *(["state"] if under_way else [])]
    return {
        name: stamp for folder in folders for name, stamp in files.stamps(folder).items() if name != checkpoint.barrier
    }


def _runs(checkpoint: Checkpoint, sign: str) -> Fenced:
    return Fenced(
        f"{checkpoint.where}: a query may be running on it: {sign}. Nothing was changed. Stop the query and try again, "
        "or use force if you are sure that no query runs"
    )


def _second(pair: tuple[str, float]) -> float:
    return pair[1]
