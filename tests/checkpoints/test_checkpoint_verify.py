"""What is wrong with a checkpoint after an accident."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from checkpoints.queries import do
from checkpoints.written import A, B, offsets, put, write
from offsetkeeper.checkpoint import (
    Edit,
    LocalFiles,
    offsets_after,
    plan_complete,
    plan_move,
    plan_truncate,
    read_checkpoint,
    verify,
)
from offsetkeeper.checkpoint.problems import way_back
from offsetkeeper.errors import NotAllowed, Refused

Spoil = Callable[[LocalFiles], object]
HEAD = '{"batchWatermarkMs":0,"batchTimestampMs":0,"conf":{}}'


def _deleted(*names: str) -> Spoil:
    return _all(*((lambda files, name=name: files.delete(name)) for name in names))


def _added(*names: str) -> Spoil:
    return _all(*((lambda files, name=name: put(files, name, "x")) for name in names))


def _all(*spoils: Spoil) -> Spoil:
    def spoil(files: LocalFiles) -> None:
        for each in spoils:
            each(files)

    return spoil


CASES: dict[str, tuple[Spoil, str, str]] = {
    "metadata is missing": (lambda f: f.delete("metadata"), "metadata", "it is missing"),
    "metadata is torn": (lambda f: f.write("metadata", b'{"id"'), "metadata", "damaged"),
    "offsets are torn": (lambda f: f.write("offsets/3", b"v1\n{"), "offsets/3", "ends before the first source"),
    "offsets are empty": (lambda f: f.write("offsets/2", b""), "offsets/2", "version of its format"),
    "offsets are no text": (lambda f: f.write("offsets/3", b"v1\n{}\n\xff"), "offsets/3", "not text"),
    "offsets cannot be": (
        lambda f: f.write("offsets/3", f'v1\n{HEAD}\n{{"orders":{{"0":-1}}}}'.encode()),
        "offsets/3",
        "not an offset",
    ),
    "metadata line is empty": (
        lambda f: f.write("offsets/3", f"v1\n\n{offsets(40, 40)}".encode()),
        "offsets/3",
        "continuous",
    ),
    "commit is torn": (lambda f: f.write("commits/3", b"v1\n{"), "commits/3", "damaged"),
    "commit without offsets": (lambda f: f.delete("offsets/3"), "commits/3", "batch 2 runs again at every start"),
    "offsets before the newest are missing": (lambda f: f.delete("offsets/2"), "offsets/2", "Spark needs it to start"),
    "a batch was never committed": (
        _deleted("commits/2", "commits/3"),
        "commits/2",
        "only batch 3 runs again",
    ),
    "the first batches were never committed": (
        _deleted(*(f"commits/{n}" for n in range(4))),
        "commits/0",
        "only batch 3 runs again",
    ),
    "checksum without file": (lambda f: (f.path / "commits/3").unlink(), "commits/.3.crc", "after the batch has run"),
    "checksum does not fit": (
        lambda f: (f.path / "offsets/1").write_text(f"v1\n{HEAD}\n{offsets(19, 20)}"),
        "offsets/.1.crc",
        "does not match offsets/1",
    ),
    "checksum is none": (lambda f: (f.path / ".metadata.crc").write_bytes(b"crc"), ".metadata.crc", "does not match"),
    "a batch ends before it starts": (
        _all(_deleted("commits/3"), lambda f: f.write("offsets/3", f"v1\n{HEAD}\n{offsets(40, 29)}".encode())),
        "offsets/3",
        "ends before it starts in orders 1",
    ),
    "another number of sources": (
        lambda f: f.write("offsets/3", f"v1\n{HEAD}\n{offsets(40, 40)}\n-".encode()),
        "offsets/3",
        "it has 2 sources, the one before 1",
    ),
    "state is missing": (
        _added(*(f"state/0/0/{n}.delta" for n in (1, 2, 4))),
        "state/0/0",
        "the state before batch 4 is missing",
    ),
    "a partition of the state is missing": (
        _added("state/0/0/4.snapshot", "state/0/2/4.snapshot"),
        "state/0/1",
        "state of the partition is missing",
    ),
}
NOTES: dict[str, tuple[Spoil, str]] = {
    "old offsets are torn": (lambda f: f.write("offsets/0", b"v1\n{}\n{"), "offsets/0"),
    "an old commit is torn": (lambda f: f.write("commits/2", b"v1\n{"), "commits/2"),
    "first offsets are torn": (lambda f: f.write("sources/0/0", b"\0v1\n{"), "sources"),
    "old offsets are missing": (lambda f: f.delete("offsets/1"), "offsets/1"),
    "a write was cut off": (lambda f: (f.path / "offsets" / ".4.x.tmp").write_text("v1"), "offsets/.4.x.tmp"),
}


@pytest.fixture
def files(tmp_path: Path) -> LocalFiles:
    return write(tmp_path / "checkpoint")


@pytest.mark.parametrize("case", CASES)
def test_what_is_wrong_is_named_with_its_remedy(case: str, files: LocalFiles) -> None:
    spoil, file, told = CASES[case]
    spoil(files)
    [finding] = verify(files)
    assert (finding.file, finding.harmless) == (file, False)
    assert told in finding.what
    assert finding.remedy
    assert str(finding).startswith(f"wrong {file}: ")


@pytest.mark.parametrize("case", NOTES)
def test_what_does_no_harm_is_a_note(case: str, files: LocalFiles) -> None:
    spoil, file = NOTES[case]
    spoil(files)
    [finding] = verify(files)
    assert (finding.file, finding.harmless) == (file, True)


REMEDIES: dict[str, Callable[[LocalFiles], Edit]] = {
    "offsets are torn": lambda f: plan_truncate(read_checkpoint(f), 2, query_id="keep"),
    "offsets are no text": lambda f: plan_truncate(read_checkpoint(f), 2, query_id="new"),
    "metadata line is empty": lambda f: plan_complete(read_checkpoint(f)),
    "a batch was never committed": lambda f: plan_move(read_checkpoint(f), offsets_after(read_checkpoint(f), 1)),
    "a batch ends before it starts": lambda f: plan_move(read_checkpoint(f), offsets_after(read_checkpoint(f), 1)),
    "another number of sources": lambda f: plan_truncate(read_checkpoint(f), 2, query_id="keep"),
    "commit without offsets": lambda f: plan_truncate(read_checkpoint(f), 2, query_id="keep"),
}


@pytest.mark.parametrize("case", REMEDIES)
def test_the_remedy_mends_it(case: str, files: LocalFiles) -> None:
    CASES[case][0](files)
    do(files, REMEDIES[case](files))
    assert verify(files) == []


@pytest.mark.parametrize("stateful", [False, True])
def test_a_copy_in_place_of_lost_offsets_is_not_taken_for_the_end_of_its_batch(
    tmp_path: Path,
    stateful: bool,  # noqa: FBT001 - pytest passes it by name
) -> None:
    """The records of batch 3 would be skipped: it would begin where it ends."""
    files = write(tmp_path / "stateful", stateful=stateful)
    files.delete("offsets/2")
    [finding] = verify(files)
    assert "Copy offsets/3 to it" in finding.remedy
    assert "truncate and move refuse batch 2" in finding.remedy
    files.write("offsets/2", files.read("offsets/3") or b"")
    assert verify(files) == []
    found = read_checkpoint(files)
    with pytest.raises(NotAllowed, match=r"offsets/2 is a copy of offsets/3.*possible batches: 0, 1, 3"):
        plan_truncate(found, 2, query_id="new")
    with pytest.raises(NotAllowed, match="where batch 2 ended is not known"):
        offsets_after(found, 2)
    assert way_back(found, 2).startswith(", or truncate to batch 1")
    assert plan_truncate(found, 3).empty


def test_batches_of_a_continuous_query_may_be_alike(files: LocalFiles) -> None:
    """It writes no time, and where nothing came the end is the same."""
    for batch in (2, 3):
        files.write(f"offsets/{batch}", f"v1\n\n{offsets(40, 40)}".encode())
    assert offsets_after(read_checkpoint(files), 2) == {A: 40, B: 40}
    do(files, plan_complete(read_checkpoint(files)))
    assert offsets_after(read_checkpoint(files), 1) == {A: 20, B: 20}


def test_old_offsets_that_are_empty_stop_no_truncation(files: LocalFiles) -> None:
    for batch in (0, 1):
        files.write(f"offsets/{batch}", b"")
    assert plan_truncate(read_checkpoint(files), 3).empty


def test_first_offsets_that_are_torn_and_needed_are_not_to_be_deleted_lightly(files: LocalFiles) -> None:
    files.write("sources/0/0", b"\0v1\n{")
    for batch in range(4):
        files.delete(f"offsets/{batch}")
        files.delete(f"commits/{batch}")
    [remedy] = [each.remedy for each in verify(files) if each.file == "sources"]
    assert "If they are latest, the default, it skips the records that have come since its first start" in remedy


def test_all_of_it_is_named_at_once(files: LocalFiles) -> None:
    for case in ("metadata is missing", "offsets are empty", "checksum without file", "a write was cut off"):
        (CASES | NOTES)[case][0](files)
    assert [each.file for each in verify(files)] == ["metadata", "offsets/2", "commits/.3.crc", "offsets/.4.x.tmp"]


def test_nothing_is_wrong_with_one_that_is_whole(files: LocalFiles, tmp_path: Path) -> None:
    (files.path / "offsets" / "9.bak").write_text("mine")
    (files.path / "offsets" / "_tmp").write_text("mine")
    assert verify(files) == []
    assert verify(write(tmp_path / "stateful", stateful=True)) == []


def test_what_may_not_be_read_is_told(tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("mine")
    for path in (tmp_path, tmp_path / "mistyped"):
        with pytest.raises(Refused, match="has no checkpoint: give the folder"):
            verify(LocalFiles(path))
