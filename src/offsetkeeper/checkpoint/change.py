"""Does what an `Edit` says, all or nothing, and takes it back.

In this order: a backup beside the checkpoint; a file in `offsets` with the highest number that no Spark can read, so
that a query which is started now fails and reads nothing; the changes; then that file is deleted. A crash leaves the
checkpoint as it was, or done, or refused by Spark until the change is undone.

Spark locks nothing. A query that works leaves fresh files; one that waits for data, or for its trigger, leaves none,
and cannot be told from one that was stopped. So the check finds many running queries, and never proves that none runs.
"""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from offsetkeeper.checkpoint.contents import RECORD, Checkpoint, read_checkpoint
from offsetkeeper.checkpoint.files import Files, Stamp
from offsetkeeper.checkpoint.log_format import BARRIER
from offsetkeeper.checkpoint.plans import Edit, make_edit
from offsetkeeper.core import environment
from offsetkeeper.core.outside import load_json
from offsetkeeper.errors import CorruptStore, Fenced, NotAllowed, OutcomeUnknown, Stale, VersionConflict

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
    """Do what a plan says; return the name of the backup, or "" where there was nothing to do.

    Args:
        files: the checkpoint's folder.
        edit: the plan, made for the checkpoint as it is.
        force: whatever hints at a query that runs. If one does, what it writes and what this writes mix.
        quiet_s: for how many seconds nothing may have been written.
        look_s: for how many seconds to look on whether anything is.
        hold_s: for how many seconds to keep queries from going on before a file is changed. A query that waits for its
            trigger or for data, and gets them in that time, fails before it reads, where the change is a truncation;
            any other change is refused then.

    Raises:
        VersionConflict: the checkpoint has changed since the plan was made; nothing was changed.
        Fenced: a query may be running; nothing was changed.
        OutcomeUnknown: somebody else, such as a query, has changed the checkpoint meanwhile. Both changes are mixed;
            Spark refuses the checkpoint until `plan_undo` is applied.
        StoreUnavailable: the file system failed; Spark refuses the checkpoint until `plan_undo` is applied, or nothing
            was changed, or, where only the last answer was lost, all is done: `inspect` and `verify` tell.
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
    _carry_out(files, edit)
    _check_done(files, edit, barrier, backup or edit.origin)
    files.delete(barrier)
    return backup


def plan_undo(files: Files, backup: str = "") -> Edit:
    """Return the plan that takes a change back: the one cut off, or the newest one. It can be undone like any other.

    Args:
        files: the checkpoint's folder.
        backup: the change to take back, by the name of its backup.

    Raises:
        NotAllowed: there is no such backup, nothing to undo, or a query has gone on from the change.
    """
    found = read_checkpoint(files, may_be_new=True)
    if backup and backup not in (kept := files.backups()):
        raise NotAllowed(f"{found.where} has no backup {backup!r}: there are {', '.join(kept[-_SHOWN:]) or 'none'}")
    if found.barrier:
        backup = (files.read(found.barrier) or b"").decode().split()[-1]
    for name in [backup] if backup else files.backups()[::-1]:
        record = _record(files, name)
        if record is None or (not found.barrier and record["before"] == found.fingerprint):
            continue  # made by something that did not get as far as to change anything
        if not found.barrier and record["after"] != found.fingerprint:
            raise NotAllowed(
                f"{found.where} has gone on since the change of backup {name} ({record['action']}): undone now, "
                "batches would run again under numbers that were used. Nothing was changed. Move the offsets instead"
            )
        return _back(files, found, name, record)
    raise NotAllowed(f"{found.where} has no change to undo, or it is undone already")


def _ours(files: Files, found: Checkpoint) -> bool:
    """Whether the newest file is of a change that is done: no query has written since."""
    if found.barrier:
        return False  # whoever makes that change may still be at work
    record = next((each for name in files.backups()[::-1] if (each := _record(files, name))), None)
    return record is not None and record["after"] == found.fingerprint


def _back(files: Files, found: Checkpoint, name: str, record: dict[str, Any]) -> Edit:
    kept = files.backup(name)
    then = read_checkpoint(kept)
    gone = [log for log in found.logs if log not in then.logs] + list(record["restores"])
    state = [each for each in then.state if each in record["deletes"]]
    edit = make_edit(found, f"undo of {record['action']}", then.logs, gone, restores=state, origin=name)
    return replace(edit, deletes=tuple(each for each in edit.deletes if each not in state))


def _back_up(files: Files, found: Checkpoint, edit: Edit) -> str:
    """Keep the logs, and the state that will be deleted; what the record is missing in is no backup."""
    now = datetime.fromtimestamp(environment.now_ms() / 1000, UTC)
    name = f"backup-{now:%Y%m%dT%H%M%S.%fZ}-{environment.token(2)}"
    state = [each for each in edit.deletes if each.startswith("state/")]
    for each in (*found.logs, *state):
        files.copy(each, "", name)
    kept = read_checkpoint(files.backup(name), may_be_new=True)
    if kept.fingerprint != edit.before or not set(state) <= set(kept.state):
        raise _changed(found)  # while it was copied: to undo by this backup would be to lose what is missing in it
    record = {
        "action": edit.action,
        "before": edit.before,
        "after": edit.after,
        "deletes": list(edit.deletes),
        "restores": list(edit.restores),
    }
    files.backup(name).write(RECORD, json.dumps(record, indent=1).encode())
    return name


def _put_barrier(files: Files, found: Checkpoint, edit: Edit, backup: str) -> str:
    """From here on no query starts; one that runs may have written until now."""
    numbers = [*found.offsets, *found.changed(edit.writes, ()).offsets, *found.commits]
    name = f"offsets/{max(numbers, default=-1) + 1}"
    created = files.create(name, _barrier(backup))
    now = read_checkpoint(files)
    if created and now.fingerprint != edit.before:
        files.delete(name)
    _check_same(now, edit)
    if not created:
        raise VersionConflict(f"{found.where} is being changed by somebody else. Nothing was changed: look again later")
    return name


def _hold(files: Files, edit: Edit, barrier: str, backup: str, hold_s: float) -> None:
    """Wait for a query that sleeps: the number of the barrier is that of its next batch, so it fails there."""
    try:
        environment.wait(hold_s)
        _check_same(read_checkpoint(files), edit, barrier)
    except BaseException:
        if files.read(barrier) == _barrier(backup):
            files.delete(barrier)
        raise


def _barrier(backup: str) -> bytes:
    return f"{BARRIER}A change is under way; the backup is {backup}\n".encode()


def _check_done(files: Files, edit: Edit, barrier: str, backup: str) -> None:
    now = read_checkpoint(files)
    if now.fingerprint == edit.after and now.barrier == barrier:
        return
    if not now.barrier:  # an undo took it away while this change was still under way
        files.create(barrier, _barrier(backup))
    raise OutcomeUnknown(
        f"{edit.where}: somebody else has changed it during this change, such as a query that runs. Both changes are "
        f"mixed, so no query starts. Stop what runs, then undo the change of backup {backup}"
    )


def _check_same(found: Checkpoint, edit: Edit, barrier: str = "") -> None:
    """Check that nobody has changed the logs, or has taken away the barrier, as an undo does."""
    if found.fingerprint != edit.before or (barrier and found.barrier != barrier):
        raise _changed(found)


def _changed(found: Checkpoint) -> VersionConflict:
    return VersionConflict(f"{found.where} has changed since the plan was made: nothing was changed. Make a new plan")


def _carry_out(files: Files, edit: Edit) -> None:
    for name in edit.restores:
        files.copy(name, edit.origin, "")
    for name, content in edit.writes.items():
        files.write(name, content)
    for name in edit.deletes:
        files.delete(name)


def _record(files: Files, name: str) -> dict[str, Any] | None:
    content = files.backup(name).read(RECORD)
    if content is None:
        return None
    try:
        record: dict[str, Any] = dict(load_json(content))
    except (ValueError, TypeError) as error:
        where = f"{files.backup(name).address}, {RECORD},"
        raise CorruptStore(f"{where} is torn ({error!r:.100}). Nothing was changed: take another backup") from error
    return record


def check_quiet(files: Files, checkpoint: Checkpoint, *, quiet_s: float, look_s: float) -> None:
    """Return if nothing hints at a query that runs.

    Args:
        files: the checkpoint's folder.
        checkpoint: what it holds.
        quiet_s: for how many seconds nothing may have been written, by this machine's clock.
        look_s: for how many seconds to look on.

    Raises:
        Fenced: a file was written lately, or while looking on.
    """
    first = _stamps(files, checkpoint)
    deadline = environment.monotonic() + look_s
    while (left := deadline - environment.monotonic()) > 0:
        environment.wait(min(_POLL_S, left))
        now = _stamps(files, checkpoint)
        if changed := sorted(name for name in first.keys() | now.keys() if first.get(name) != now.get(name)):
            raise _runs(checkpoint, f"{changed[0]} has changed while it was looked at")
    now_s = environment.now_ms() / 1000
    ages = ((name, max(0.0, now_s - stamp.at_s)) for name, stamp in first.items())  # clocks are never quite alike
    name, age_s = min(ages, key=_second, default=("", 0.0))
    ahead_s = max((stamp.at_s - now_s for stamp in first.values()), default=0.0)
    if quiet_s and ahead_s > _SKEW_S:
        ahead = next(each for each, stamp in first.items() if stamp.at_s - now_s == ahead_s)
        raise _runs(checkpoint, f"{ahead} is dated {ahead_s:.0f} s after now, so nobody knows when it was written")
    if name and age_s < quiet_s:
        raise _runs(checkpoint, f"{name} was written {age_s:.0f} s ago, less than {quiet_s:.0f} s")


def _stamps(files: Files, checkpoint: Checkpoint) -> dict[str, Stamp]:
    """A long batch writes state, and nothing else; only then are its many files looked at."""
    under_way = checkpoint.offsets and checkpoint.offsets[-1] not in checkpoint.commits
    folders = ["offsets", "commits", "sources", *(["state"] if under_way else [])]
    return {
        name: stamp for folder in folders for name, stamp in files.stamps(folder).items() if name != checkpoint.barrier
    }


def _runs(checkpoint: Checkpoint, sign: str) -> Fenced:
    return Fenced(
        f"{checkpoint.where}: a query may be running on it: {sign}. Nothing was changed. Stop the query and try again, "
        "or use force if you know that none runs"
    )


def _second(pair: tuple[str, float]) -> float:
    return pair[1]
