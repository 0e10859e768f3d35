"""Changes of checkpoints: what is planned, what is refused, what a crash leaves, and the way back."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from checkpoints.queries import do
from checkpoints.written import A, B, Failing, Power, content, offsets, put, write
from offsetkeeper.checkpoint import (
    Edit,
    LocalFiles,
    apply,
    inspect,
    offsets_after,
    open_files,
    plan_complete,
    plan_convert,
    plan_move,
    plan_seed,
    plan_truncate,
    plan_undo,
    read_checkpoint,
    verify,
)
from offsetkeeper.checkpoint.contents import RECORD
from offsetkeeper.checkpoint.log_format import BARRIER
from offsetkeeper.checkpoint.logs import BatchLog
from offsetkeeper.core.offsets import TopicPartition
from offsetkeeper.core.topics import Topics
from offsetkeeper.errors import (
    CorruptStore,
    Fenced,
    NotAllowed,
    OutcomeUnknown,
    Refused,
    SettingsError,
    Stale,
    VersionConflict,
)

Plan = Callable[[LocalFiles], Edit]
PLANS: dict[str, Plan] = {
    "move": lambda files: plan_move(read_checkpoint(files), {A: 3, B: 99}),
    "truncate": lambda files: plan_truncate(read_checkpoint(files), 1, query_id="new"),
    "convert": lambda files: plan_convert(read_checkpoint(files), 2, ["a"]),
}


@pytest.fixture
def files(tmp_path: Path) -> LocalFiles:
    return write(tmp_path / "checkpoint")


@pytest.mark.parametrize("after", [False, True], ids=["before its effect", "after its effect"])
@pytest.mark.parametrize("plan", PLANS)
def test_a_crash_anywhere_leaves_all_or_nothing_or_what_no_query_starts_from(
    plan: str,
    after: bool,  # noqa: FBT001 - pytest passes it by name
    tmp_path: Path,
) -> None:
    """Also one while it is undone; and each can be taken back from there."""
    for nth in itertools.count(1):
        files = write(tmp_path / str(nth), 3, stateful=plan == "truncate")
        before, edit = content(files), PLANS[plan](files)
        failing = Failing(files, nth, after=after)
        try:
            apply(failing, edit, quiet_s=0, look_s=0)
        except Power:
            _whole_or_refused(files, before, edit)
        if not failing.fired:
            break
    assert nth > 5


def _whole_or_refused(files: LocalFiles, before: dict[str, bytes], edit: Edit) -> None:
    found = read_checkpoint(files)
    if not found.barrier:
        assert content(files) == before or found.fingerprint == edit.after
        return
    assert int(found.barrier.removeprefix("offsets/")) > max([*found.offsets, *found.commits])
    assert [each.harmless for each in verify(files)] == [False]
    for call in (lambda: plan_move(found, {A: 1}), lambda: plan_complete(found), found.next):
        with pytest.raises((NotAllowed, CorruptStore), match="not finished"):
            call()
    for nth in itertools.count(1):
        copy = LocalFiles(files.path.with_name(f"{files.path.name}-undo-{nth}"))
        shutil.copytree(files.path, copy.path)
        for backup in files.backups():
            shutil.copytree(files.backup(backup).path, copy.backup(backup).path)
        failing = Failing(copy, nth, after=False)
        try:
            apply(failing, plan_undo(copy), quiet_s=0, look_s=0)
        except Power:
            do(copy, plan_undo(copy))
        assert content(copy) == before
        assert verify(copy) == []
        if not failing.fired:
            break


def test_a_plan_changes_nothing_and_says_all(files: LocalFiles) -> None:
    before = content(files)
    edit = plan_move(read_checkpoint(files), {A: 3})
    assert str(edit).splitlines() == [
        f"move: {files.address}",
        "next: batch 4 (new) -> batch 5 (new)",
        "source 0 orders 0: 40 -> 3",
        "write commits/4, offsets/4",
    ]
    told = edit.as_dict()
    assert told["steps"] == [{"source": "0", "topic": "orders", "partition": 0, "old": 40, "new": 3}]
    assert told["next_batch"] == {"old": 4, "new": 5}
    assert content(files) == before
    assert files.backups() == []


def test_a_move_keeps_watermark_settings_and_order_of_the_batch_before(files: LocalFiles) -> None:
    do(files, plan_move(read_checkpoint(files), {A: 3}))
    version, head, line = (files.read("offsets/4") or b"").decode().split("\n")
    assert (version, line) == ("v1", '{"orders":{"1":40,"0":3}}')
    assert json.loads(head) == {"batchWatermarkMs": 20, "batchTimestampMs": 1003, "conf": {"x": "1"}}
    assert files.read("commits/4") == files.read("commits/3")
    assert read_checkpoint(files).next().watermark_ms == 20


def test_a_checkpoint_that_went_on_since_is_not_changed(files: LocalFiles) -> None:
    edit = plan_move(read_checkpoint(files), {A: 3})
    put(files, "offsets/4", (files.read("offsets/3") or b"").decode())
    before = content(files)
    with pytest.raises(VersionConflict, match="Make a new plan"):
        do(files, edit)
    assert content(files) == before
    assert files.backups() == []


@pytest.mark.parametrize("number", [4, 5], ids=["the next batch", "where the barrier was to be"])
def test_what_a_query_writes_at_the_last_moment_is_not_written_over(number: int, files: LocalFiles) -> None:
    """Nothing hinted at it, and it wakes up when the backup has been made."""
    edit, log = plan_move(read_checkpoint(files), {A: 3}), (files.read("offsets/3") or b"").decode()

    class Waking(LocalFiles):
        def create(self, name: str, content: bytes) -> bool:
            put(self, f"offsets/{number}", log)
            return super().create(name, content)

    with pytest.raises(VersionConflict, match="nothing was changed"):
        do(Waking(files.path), edit)
    assert read_checkpoint(files).offsets == [0, 1, 2, 3, number]
    assert read_checkpoint(files).commits == [0, 1, 2, 3]
    assert read_checkpoint(files).barrier == ""
    assert files.read(f"offsets/{number}") == log.encode()


class _Planning(LocalFiles):
    """A folder whose query wakes up under the barrier, and plans its next batch before the change writes a file."""

    batch = 4

    def write(self, name: str, content: bytes) -> None:
        self._wake(name)
        super().write(name, content)

    def create(self, name: str, content: bytes) -> bool:
        self._wake(name)
        return super().create(name, content)

    def _wake(self, name: str) -> None:
        if name == f"offsets/{self.batch}" and not (self.path / name).exists():
            put(self, name, f'v1\n{{"batchWatermarkMs":0,"batchTimestampMs":9}}\n{offsets(160, 160)}')


@pytest.mark.parametrize("change", ["a move", "an undo of a truncation"])
def test_a_batch_that_a_query_plans_under_the_barrier_is_not_written_over(change: str, files: LocalFiles) -> None:
    planning = _Planning(files.path)
    edit = plan_move(read_checkpoint(files), {A: 3})
    if change != "a move":
        do(files, plan_truncate(read_checkpoint(files), 1, query_id="keep"))
        edit, planning.batch = plan_undo(files), 2
    before = content(files)
    with pytest.raises(VersionConflict, match="nothing was changed"):
        do(planning, edit)
    planned = f"offsets/{planning.batch}"
    after = content(files)
    assert after.pop(planned).decode().endswith(offsets(160, 160))
    assert after == before
    assert read_checkpoint(files).next().batch == planning.batch
    with pytest.raises(NotAllowed):
        plan_undo(files)


def test_a_later_file_that_is_taken_is_not_written_over_and_no_query_starts(files: LocalFiles) -> None:
    before, edit = content(files), plan_move(read_checkpoint(files), {A: 3})

    class Committing(LocalFiles):
        def create(self, name: str, content: bytes) -> bool:
            if name == "commits/4":
                put(self, name, "v1\n{}")
            return super().create(name, content)

    with pytest.raises(OutcomeUnknown, match="Both changes are mixed, so no query starts"):
        do(Committing(files.path), edit)
    assert files.read("commits/4") == b"v1\n{}"
    assert read_checkpoint(files).barrier
    do(files, plan_undo(files))
    assert content(files) == before


def test_a_checksum_that_was_left_is_not_taken_for_one_of_a_new_file(files: LocalFiles) -> None:
    (files.path / "offsets/.4.crc").write_bytes(b"crc")
    do(files, plan_move(read_checkpoint(files), {A: 3}))
    assert verify(files) == []


def test_of_two_changes_at_once_one_is_refused(files: LocalFiles) -> None:
    edit = plan_move(read_checkpoint(files), {A: 3})

    class Late(LocalFiles):
        def create(self, name: str, content: bytes) -> bool:
            LocalFiles.create(self, name, f"{BARRIER}the other's".encode())
            return super().create(name, content)

    with pytest.raises(VersionConflict, match="by another program"):
        do(Late(files.path), edit)
    assert read_checkpoint(files).barrier == "offsets/5"
    assert (files.read("offsets/5") or b"").endswith(b"the other's")
    assert read_checkpoint(files).offsets == [0, 1, 2, 3]


def test_a_backup_of_what_another_change_deletes_meanwhile_is_none(tmp_path: Path) -> None:
    """Both were planned at once. An undo takes the whole backup, not the one that lacks the state."""
    files = write(tmp_path / "checkpoint", stateful=True)
    before, edit = content(files), plan_truncate(read_checkpoint(files), 1, query_id="keep")

    class Slow(LocalFiles):
        def copy(self, name: str, source: str, target: str) -> None:
            if name == next(each for each in edit.deletes if each.startswith("state/")):
                do(files, edit)
            super().copy(name, source, target)

    with pytest.raises(VersionConflict, match="nothing was changed"):
        do(Slow(files.path), edit)
    with pytest.raises(NotAllowed, match="no change to undo"):
        plan_undo(files, files.backups()[0])
    do(files, plan_undo(files))
    assert content(files) == before


def test_a_change_that_others_mix_with_is_not_called_done(files: LocalFiles) -> None:
    """A query that runs writes its next commit meanwhile. No query starts until the change is undone."""
    before, edit = content(files), plan_move(read_checkpoint(files), {A: 3})

    class Mixed(LocalFiles):
        def create(self, name: str, content: bytes) -> bool:
            created = super().create(name, content)
            if name == "offsets/4":
                put(self, "commits/7", "v1\n{}")
            return created

    with pytest.raises(OutcomeUnknown, match="Both changes are mixed, so no query starts"):
        do(Mixed(files.path), edit)
    assert read_checkpoint(files).barrier
    do(files, plan_undo(files))
    assert content(files) == before


def test_an_undo_keeps_the_commit_of_a_batch_that_ended_during_the_change(files: LocalFiles) -> None:
    """A long batch without state leaves nothing in the checkpoint until it ends: its rows would come twice."""
    put(files, "offsets/4", f'v1\n{{"batchWatermarkMs":0,"batchTimestampMs":9}}\n{offsets(160, 160)}')
    before, edit = content(files), plan_convert(read_checkpoint(files), 2)

    class Ending(LocalFiles):
        def write(self, name: str, content: bytes) -> None:
            super().write(name, content)
            if name == "offsets/0":
                put(self, "commits/4", "v1\n{}")

    with pytest.raises(OutcomeUnknown, match="then undo"):
        do(Ending(files.path), edit)
    undo = plan_undo(files)
    assert undo.notes == ()
    do(files, undo)
    assert content(files) == {**before, "commits/4": b"v1\n{}"}
    assert (read_checkpoint(files).next().batch, verify(files)) == (5, [])


def test_an_undo_names_the_batches_that_another_program_ran_during_the_change(files: LocalFiles) -> None:
    before, edit = content(files), plan_move(read_checkpoint(files), {A: 3})

    class Running(LocalFiles):
        def create(self, name: str, content: bytes) -> bool:
            created = super().create(name, content)
            if name == "commits/4":
                put(self, "offsets/6", f"v1\n{{}}\n{offsets(160, 160)}")
                put(self, "commits/6", "v1\n{}")
            return created

    with pytest.raises(OutcomeUnknown, match="then undo"):
        do(Running(files.path), edit)
    undo = plan_undo(files)
    assert undo.notes == (
        "another program has run batch 6 during the change: what the output has of it stays, and it runs again",
    )
    do(files, undo)
    assert content(files) == before


def test_an_undo_of_a_change_by_an_older_release_is_done(files: LocalFiles) -> None:
    before = content(files)
    backup = files.backup(do(files, plan_move(read_checkpoint(files), {A: 3})))
    record = json.loads(backup.read(RECORD) or b"")
    assert record.pop("writes") == ["offsets/4", "commits/4"]
    backup.write(RECORD, json.dumps(record).encode())
    assert plan_undo(files).notes == ()
    do(files, plan_undo(files))
    assert content(files) == before


def test_an_undo_of_a_change_that_is_still_under_way_is_noticed(files: LocalFiles) -> None:
    """It stalls, is undone by force, and wakes up: nothing that is half done is left for a query."""
    before, edit = content(files), plan_truncate(read_checkpoint(files), 1, query_id="keep")

    class Stalling(LocalFiles):
        def delete(self, name: str) -> None:
            if name == edit.deletes[-1]:
                with pytest.raises(Fenced, match="may be running"):
                    apply(files, plan_undo(files), look_s=0)
                do(files, plan_undo(files))
            super().delete(name)

    with pytest.raises(OutcomeUnknown, match="no query starts"):
        do(Stalling(files.path), edit)
    with pytest.raises(CorruptStore, match="a change of the checkpoint was not finished"):
        BatchLog(files, Topics.of([A.topic]), {}, packed=True).ends(4)
    do(files, plan_undo(files))
    assert content(files) == before


@pytest.mark.parametrize(
    "edited",
    [
        {"restores": ["../../mine"]},
        {"restores": ["state/../../mine"]},
        {"restores": ["commits/0"]},
        {"restores": [3]},
        {"deletes": None},
        {"writes": [3]},
        {"before": 7},
        None,
    ],
)
def test_a_record_of_a_backup_that_is_no_record_changes_nothing(files: LocalFiles, edited: dict[str, object]) -> None:
    """Who may write beside the checkpoint had the undo delete any file that the operator may delete."""
    mine = files.path.parent.parent / "mine"
    mine.write_text("mine")
    do(files, plan_truncate(read_checkpoint(files), 1, query_id="new"))
    backup = files.backup(files.backups()[0])
    record = json.loads(backup.read(RECORD) or b"")
    backup.write(RECORD, json.dumps({**record, **edited} if edited else {}).encode())
    before = content(files)
    with pytest.raises(CorruptStore, match=r"is damaged.*use another backup"):
        plan_undo(files)
    assert (content(files), mine.read_text()) == (before, "mine")


@pytest.mark.parametrize(
    "barrier", [b"offsetkeeper\n", b"offsetkeeper\n\xff", b"offsetkeeper\nbackup-1/../../x", b"offsetkeeper\nx"]
)
def test_a_barrier_that_names_no_backup_is_told(files: LocalFiles, barrier: bytes) -> None:
    (files.path / "offsets" / "9").write_bytes(barrier)
    with pytest.raises(CorruptStore, match="names no backup"):
        plan_undo(files)


def test_a_plan_is_for_one_checkpoint(files: LocalFiles, tmp_path: Path) -> None:
    other = write(tmp_path / "other")
    with pytest.raises(Stale, match="the plan is for"):
        do(other, plan_move(read_checkpoint(files), {A: 3}))


def test_nothing_to_do_is_no_change(files: LocalFiles) -> None:
    found = read_checkpoint(files)
    for edit in (plan_move(found, {A: 40}), plan_truncate(found, 3), plan_convert(found, 1), plan_complete(found)):
        assert edit.empty
        assert do(files, edit) == ""
    assert files.backups() == []


def test_a_checkpoint_written_to_lately_is_not_changed_unless_forced(files: LocalFiles) -> None:
    """And one that was changed by nobody but a change is."""
    edit = plan_move(read_checkpoint(files), {A: 3})
    with pytest.raises(Fenced, match=r"less than 30 s\. Nothing was changed"):
        apply(files, edit, look_s=0)
    assert files.backups() == []
    assert apply(files, edit, force=True).startswith("backup-")
    assert apply(files, plan_undo(files), look_s=0).startswith("backup-")


def test_a_file_of_the_future_does_not_stop_who_needs_no_quiet(files: LocalFiles) -> None:
    """The clocks of servers are not this machine's."""
    later = time.time() + 60
    os.utime(files.path / "offsets/3", (later, later))
    edit = plan_move(read_checkpoint(files), {A: 3})
    with pytest.raises(Fenced, match=r"offsets/3 is dated \d+ s after now"):
        apply(files, edit, quiet_s=1, look_s=0)
    assert apply(files, edit, quiet_s=0, look_s=0)


@pytest.mark.parametrize("meanwhile", ["a query goes on", "an undo", "an interrupt"])
def test_what_happens_while_a_change_holds_refuses_it(
    files: LocalFiles, monkeypatch: pytest.MonkeyPatch, meanwhile: str
) -> None:
    before = content(files)
    made = plan_truncate(read_checkpoint(files), 1, query_id="new")

    def wait(_: float) -> None:
        assert read_checkpoint(files).barrier == "offsets/4"
        if meanwhile == "an interrupt":
            raise KeyboardInterrupt
        files.delete("offsets/4" if meanwhile == "an undo" else "commits/3")

    monkeypatch.setattr("offsetkeeper.core.environment.wait", wait)
    with pytest.raises((VersionConflict, KeyboardInterrupt)):
        apply(files, made, quiet_s=0, look_s=0, hold_s=600)
    gone = {"commits/3"} if meanwhile == "a query goes on" else set()
    assert content(files) == {name: each for name, each in before.items() if name not in gone}


def test_an_undo_of_an_edit_leads_back_and_can_be_undone(files: LocalFiles) -> None:
    before = content(files)
    do(files, plan_move(read_checkpoint(files), {A: 3}))
    moved = content(files)
    for expected in (before, moved, before):
        do(files, plan_undo(files))
        assert content(files) == expected


def test_changes_are_undone_one_by_one(files: LocalFiles) -> None:
    """The older one by its name, once the newer is undone."""
    start = content(files)
    first = do(files, plan_move(read_checkpoint(files), {A: 3}))
    do(files, plan_move(read_checkpoint(files), {A: 7}))
    with pytest.raises(NotAllowed, match="has new batches since"):
        plan_undo(files, first)
    do(files, plan_undo(files))
    do(files, plan_undo(files, first))
    assert content(files) == start


def test_what_a_query_has_gone_on_from_is_not_undone(files: LocalFiles) -> None:
    do(files, plan_move(read_checkpoint(files), {A: 3}))
    put(files, "offsets/5", (files.read("offsets/4") or b"").decode())
    with pytest.raises(NotAllowed, match="would run batches again with used numbers"):
        plan_undo(files)


def test_without_a_change_there_is_nothing_to_undo(files: LocalFiles) -> None:
    with pytest.raises(NotAllowed, match="no change to undo"):
        plan_undo(files)


def test_a_seed_is_one_file_and_is_undone(tmp_path: Path) -> None:
    files = LocalFiles(tmp_path / "not" / "there" / "new")
    do(files, plan_seed(read_checkpoint(files, may_be_new=True), {"0": {B: 7, A: 3}}))
    assert content(files) == {"sources/0/0": b'\0v1\n{"orders":{"0":3,"1":7}}'}
    do(files, plan_undo(files))
    assert content(files) == {}


def test_checksums_go_with_their_files(files: LocalFiles) -> None:
    do(files, plan_truncate(read_checkpoint(files), 1, query_id="keep"))
    assert files.names("commits") == [".0.crc", ".1.crc", "0", "1"]
    assert files.names("offsets") == [".0.crc", ".1.crc", "0", "1"]
    do(files, plan_convert(read_checkpoint(files), 2))
    assert files.names("offsets") == ["0", "1"]


def test_a_truncation_deletes_newer_state_and_needs_that_of_then(tmp_path: Path) -> None:
    files = write(tmp_path / "stateful", stateful=True)
    put(files, "state/0/0/2.snapshot", "x")
    files.delete("state/0/1/1.delta")
    with pytest.raises(NotAllowed, match=r"state/0/1 no longer has version 2.*with their state: none"):
        plan_truncate(read_checkpoint(files), 1, query_id="keep")
    put(files, "state/0/1/2.snapshot", "x")
    with pytest.raises(NotAllowed, match=r"no longer has version 1.*with their state: 1, 2, 3"):
        plan_truncate(read_checkpoint(files), 0, query_id="keep")
    do(files, plan_truncate(read_checkpoint(files), 1, query_id="keep"))
    left = [
        "state/0/0/1.delta",
        "state/0/0/2.delta",
        "state/0/0/2.snapshot",
        "state/0/1/2.delta",
        "state/0/1/2.snapshot",
    ]
    assert sorted(name for name in content(files) if name.startswith("state")) == left
    assert verify(files) == []


@pytest.mark.parametrize(
    ("plan", "told"),
    [
        (lambda found: plan_truncate(found, 1), "Choose the query id"),
        (
            lambda found: plan_truncate(found, 7, query_id="new"),
            "batch 7 cannot be the last one; possible batches: 0, 1, 2, 3",
        ),
        (lambda found: plan_move(found, {TopicPartition("other", 0): 1}), "has begun to read topic other"),
        (lambda found: plan_move(found, {A: -1}), "not an offset"),
        (lambda found: plan_seed(found, {"0": {A: 1}}), "a query has begun here"),
        (lambda found: plan_convert(found, 3), "unknown version 3"),
        (lambda found: plan_convert(found, 2, ["a", "b"]), "it has 1 sources"),
        (lambda found: plan_convert(found, 1, ["a"]), "give its sources 0 in the order"),
        (lambda found: offsets_after(found, 9), "offsets/9 is missing"),
    ],
)
def test_what_cannot_be_done_is_refused(plan: Plan, told: str, files: LocalFiles) -> None:
    with pytest.raises((NotAllowed, SettingsError, CorruptStore), match=told):
        plan(read_checkpoint(files))  # type: ignore[arg-type]


def test_offsets_of_a_query_with_state_are_not_moved(tmp_path: Path) -> None:
    files = write(tmp_path / "stateful", stateful=True)
    with pytest.raises(NotAllowed, match="its state belongs to its offsets"):
        plan_move(read_checkpoint(files), {A: 3})


def test_a_checkpoint_without_batches_is_neither_moved_nor_converted(tmp_path: Path) -> None:
    found = read_checkpoint(LocalFiles(tmp_path / "none"), may_be_new=True)
    with pytest.raises(NotAllowed, match="no batch was planned yet"):
        plan_move(found, {A: 1})
    with pytest.raises(NotAllowed, match="no batch was planned yet"):
        plan_convert(found, 2)
    wrong: list[dict[str, dict[TopicPartition, int]]] = [{}, {"0": {}}, {"../0": {A: 1}}]
    for offsets_by_source in wrong:
        with pytest.raises(SettingsError):
            plan_seed(found, offsets_by_source)


def test_commits_without_offsets_are_mended_before_anything_is_moved(files: LocalFiles) -> None:
    files.delete("offsets/3")
    with pytest.raises(NotAllowed, match="batch 3 is committed without offsets"):
        plan_move(read_checkpoint(files), {A: 3})


def test_every_source_that_reads_a_partition_is_moved_and_the_others_stay(files: LocalFiles) -> None:
    lines = f'{offsets(40, 40)}\n{{"logOffset":7}}\n{offsets(30, 30)}\n-'
    put(files, "offsets/3", f'v1\n{{"batchWatermarkMs":0}}\n{lines}')
    assert read_checkpoint(files).next().positions == {A: 30, B: 30}
    edit = plan_move(read_checkpoint(files), {A: 5})
    assert [(step.source, step.old, step.new) for step in edit.steps] == [("0", 40, 5), ("2", 30, 5)]
    do(files, edit)
    assert (files.read("offsets/4") or b"").decode().split("\n")[2:] == [
        '{"orders":{"1":40,"0":5}}',
        '{"logOffset":7}',
        '{"orders":{"1":30,"0":5}}',
        "-",
    ]
    with pytest.raises(NotAllowed, match="source 1 is not a Kafka source"):
        plan_convert(read_checkpoint(files), 2, ["a", "b", "c", "d"])


def test_a_batch_that_was_not_committed_is_replaced_and_not_passed_over(files: LocalFiles) -> None:
    """Were the batch of a number of its own, a crash between its two files would pass over the one before."""
    files.delete("commits/3")
    edit = plan_move(read_checkpoint(files), {A: 33})
    assert set(edit.writes) == {"offsets/3", "commits/3"}
    do(files, edit)
    assert read_checkpoint(files).next().positions == {A: 33, B: 30}


def test_a_query_with_asynchronous_progress_tracking_is_seen_and_moved(files: LocalFiles) -> None:
    """It leaves out batches; only Spark's start wants the one before the newest."""
    files.delete("offsets/2")
    assert inspect(read_checkpoint(files)).next.batch == 4
    assert [each.file for each in verify(files)] == ["offsets/2"]
    do(files, plan_move(read_checkpoint(files), {A: 3}))
    assert [each.harmless for each in verify(files)] == [True]


def test_a_glance_shows_what_ran_and_what_is_next(files: LocalFiles) -> None:
    files.delete("commits/3")
    found = inspect(read_checkpoint(files))
    assert (found.planned, found.committed, found.next.batch, found.next.kind) == (3, 2, 3, "again")
    assert [(r.ran_from, r.ran_to, r.next_from, r.next_to) for r in found.rows] == [(20, 30, 30, 40)] * 2
    assert found.formats == {"offset log": "v1", "commit log": "v1"}
    assert "next: batch 3, again with the same ranges" in str(found)
    assert found.as_dict()["partitions"][1]["next_to"] == 40


def test_state_is_shown_by_the_versions_that_can_be_loaded(tmp_path: Path) -> None:
    files = write(tmp_path / "stateful", stateful=True)
    put(files, "state/0/0/_metadata/schema", "x")
    put(files, "state/1/0/left/3.zip", "x")
    put(files, "state/1/0/left/SSTs/000001-x.sst", "x")
    put(files, "state/1/0/right/2_5a5a.zip", "x")
    put(files, "state/1/0/right/3_5b5b.changelog", "x")
    files.delete("state/0/1/2.delta")
    found = inspect(read_checkpoint(files))
    assert found.state_versions == {0: [1], 1: [3]}
    assert "state of operator 1: versions 3" in str(found)


def test_file_systems_that_cannot_be_reached_are_told(tmp_path: Path) -> None:
    assert open_files(f"file://{tmp_path}/a%20b").address == f"{tmp_path}/a b"
    assert open_files(str(tmp_path)).address == str(tmp_path)
    for location in ("abfss://user:secret@host/c", "file://host/c", "gs://bucket/c"):
        with pytest.raises(SettingsError, match="only local folders, webhdfs:// and s3://") as told:
            open_files(location)
        assert "secret" not in str(told.value)
    (tmp_path / "notes").write_text("mine")
    for path in (tmp_path, tmp_path / "none"):
        with pytest.raises(Refused, match="has no checkpoint"):
            read_checkpoint(LocalFiles(path))
    with pytest.raises(Refused, match="has no checkpoint"):
        read_checkpoint(LocalFiles(tmp_path), may_be_new=True)
