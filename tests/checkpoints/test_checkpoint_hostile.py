"""Whatever lies in a checkpoint's folder: a command answers, or ends with an error of ours. None waits for ever."""

from __future__ import annotations

import json
import os
import shutil
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from typer.testing import CliRunner

from checkpoints.test_checkpoint_commands import run, run_json
from checkpoints.written import content, offsets, put, write
from fixtures.foul import FOUL, SECRET, at_once
from offsetkeeper.checkpoint import LocalFiles, plan_move, read_checkpoint
from offsetkeeper.checkpoint.store import CheckpointStore
from offsetkeeper.cli.checkpoint import app
from offsetkeeper.core.offsets import TopicPartition
from offsetkeeper.errors import OffsetkeeperError, Refused, SettingsError

LONG = "9" * 5000
COMMANDS = (
    ["inspect"],
    ["inspect", "--batch", "3"],
    ["verify"],
    ["diff", "--against", "{other}"],
    ["export"],
    ["export", "--to", "memory://x", "--group", "g"],
    ["truncate", "--batch", "1", "--query-id", "new"],
    ["convert", "--to", "2", "--source", "orders"],
    ["complete"],
    ["undo"],
    ["seed", "--from-file", "{csv}"],
)


def instead(name: str, make: Callable[[Path], object]) -> Callable[[LocalFiles], None]:
    """Return what puts something else in the place of a file."""

    def spoil(files: LocalFiles) -> None:
        path = files.path / name
        if path.is_dir():
            shutil.rmtree(path)
        path.unlink(missing_ok=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        make(path)

    return spoil


def loop(path: Path) -> None:
    path.symlink_to(path.name)


def text(name: str, content: str) -> Callable[[LocalFiles], None]:
    return lambda files: put(files, name, content)


def not_utf8(files: LocalFiles) -> None:
    for folder in (b"offsets", b"commits", b"sources", b"state/0/0"):
        where = os.path.join(os.fsencode(files.path), folder)  # noqa: PTH118 - a name that is not text
        os.makedirs(where, exist_ok=True)  # noqa: PTH103 - as above
        Path(os.fsdecode(os.path.join(where, b"\xff"))).write_bytes(b"\xff")  # noqa: PTH118 - as above


PLACES = (
    "metadata",
    "offsets",
    "offsets/3",
    "offsets/4",
    "commits/3",
    "sources/0/0",
    "sources",
    "state",
    "state/0/0/4.delta",
)
KINDS: dict[str, Callable[[Path], object]] = {
    "a FIFO": os.mkfifo,
    "a folder": Path.mkdir,
    "a link to itself": loop,
    "bytes": lambda path: path.write_bytes(b"\xff\xfe\0"),
    "nothing": str,
}
HEADS = {
    "a watermark of 5,000 digits": f'{{"batchWatermarkMs":{LONG},"batchTimestampMs":1}}',
    "a time of 5,000 digits": f'{{"batchWatermarkMs":1,"batchTimestampMs":{LONG}}}',
    "a time that no calendar has": '{"batchWatermarkMs":1,"batchTimestampMs":9223372036854775807}',
    "NaN": '{"batchWatermarkMs":NaN,"batchTimestampMs":NaN}',
    "texts": '{"batchWatermarkMs":"1","batchTimestampMs":"2","conf":"x"}',
    "lists": '{"batchWatermarkMs":[],"batchTimestampMs":{},"conf":[]}',
    "settings that are null": '{"batchWatermarkMs":1,"conf":null}',
    "a list": "[]",
    "deep": "[" * 100_000,
}
ENDS = {
    "an offset of 5,000 digits": f'{{"orders":{{"0":{LONG}}}}}',
    "a partition of 5,000 digits": f'{{"orders":{{"{LONG}":1}}}}',
    "an offset below nothing": '{"orders":{"0":-5}}',
    "an offset that is a text": '{"orders":{"0":"1"}}',
    "half a character": '{"or\\ud800ders":{"0":1}}',
}
SPOILT: dict[str, Callable[[LocalFiles], None]] = {
    **{f"{what} at {name}": instead(name, make) for name in PLACES for what, make in KINDS.items()},
    **{f"{what} in a batch": text("offsets/3", f"v1\n{head}\n{offsets(40, 40)}") for what, head in HEADS.items()},
    **{f"{what} in a batch": text("offsets/3", f'v1\n{{"batchWatermarkMs":1}}\n{end}') for what, end in ENDS.items()},
    "a commit of NaN": text("commits/3", 'v1\n{"nextBatchWatermarkMs":NaN}'),
    "a state's id of lists": text("commits/3", 'v1\n{"nextBatchWatermarkMs":1,"stateUniqueIds":[[1]]}'),
    "a version of 5,000 digits": text("offsets/3", f"v{LONG}\n{{}}\n-"),
    "a batch of 200 digits": text(f"offsets/{'9' * 200}", "v1\n{}\n-"),
    "a partition of the state that is not there": text("state/0/999999999/9.delta", "x"),
    "an operator's metadata of lists": text(
        "state/0/_metadata/metadata", 'v1\n{"stateStoreInfo":[[],{"numPartitions":{}}]}'
    ),
    "an operator's metadata of 5,000 digits": text(
        "state/0/_metadata/metadata", f'v1\n{{"stateStoreInfo":[{{"numPartitions":{LONG}}}]}}'
    ),
    "names that are not UTF-8": not_utf8,
}


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalFiles:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "offsets.csv").write_text("orders,0,5\n")
    write(tmp_path / "other")
    return write(tmp_path / "checkpoint", stateful=True)


@pytest.mark.timeout(30)  # a FIFO is waited for without an end
@pytest.mark.parametrize("what", SPOILT)
def test_a_command_answers_or_ends_with_an_error_of_ours_and_changes_nothing(files: LocalFiles, what: str) -> None:
    SPOILT[what](files)
    there = sorted(path.as_posix() for path in files.path.rglob("*"))
    named = {"other": str(files.path.with_name("other")), "csv": "offsets.csv"}
    for command, *arguments in COMMANDS:
        for as_json in ([], ["--json"]) if command in {"inspect", "verify"} else ([],):
            given = [each.format(**named) for each in arguments]
            found = CliRunner().invoke(app, [command, str(files.path), *given, *as_json])
            error = found.exception
            assert error is None or isinstance(error, OffsetkeeperError | SystemExit), (command, repr(error))
            assert found.exit_code in {0, 1}, command
            found.stdout.encode()
    assert sorted(path.as_posix() for path in files.path.rglob("*")) == there


@pytest.mark.timeout(30)  # as above
@pytest.mark.parametrize("what", FOUL)
@pytest.mark.parametrize("name", ["metadata", "offsets/3", "commits/3", "sources/0/0", "state/0/_metadata/metadata"])
def test_what_somebody_puts_in_place_of_a_file_is_not_followed_waited_for_or_quoted(
    files: LocalFiles, name: str, what: str
) -> None:
    instead(name, FOUL[what])(files)
    with at_once():
        if what == "a folder":
            assert files.read(name) is None
        else:
            with pytest.raises(Refused, match=f"{name} (is|has)") as raised:
                files.read(name)
            assert SECRET not in str(raised.value)
            assert ("what it leads to" in str(raised.value)) is what.startswith("a link")
        for command in (["inspect"], ["verify", "--json"], ["export"]):
            found = CliRunner().invoke(app, [*command[:1], str(files.path), *command[1:]])
            assert SECRET not in found.output + str(found.exception)
        with suppress(OffsetkeeperError):
            assert SECRET not in str(CheckpointStore(files).load("checkpoint"))


@pytest.mark.parametrize("name", ["offsets", "sources/0"])
def test_a_link_in_place_of_a_folder_is_not_followed(files: LocalFiles, name: str) -> None:
    where = files.path / name
    away = where.rename(files.path.parent / "away")
    where.symlink_to(away)
    for act in (lambda: files.names(name), lambda: files.read(f"{name}/0"), lambda: read_checkpoint(files)):
        with pytest.raises(Refused, match=f"{name} is a link, and links are not followed here: remove it"):
            act()


def test_no_backup_has_what_a_link_leads_to(files: LocalFiles, tmp_path: Path) -> None:
    """The backup would belong to the operator, with a copy that everybody may read."""
    (tmp_path / "secret").write_text(SECRET)
    (tmp_path / "secret").chmod(0o600)
    (files.path / "offsets" / "3").unlink()
    (files.path / "offsets" / "3").symlink_to(tmp_path / "secret")
    with pytest.raises(Refused, match="offsets/3 is a link"):
        files.copy("offsets/3", "", "backup-1")
    assert SECRET not in "".join(
        path.read_text() for path in files.backup("backup-1").path.rglob("*") if path.is_file()
    )


def test_a_copy_keeps_the_mode_and_the_time(files: LocalFiles) -> None:
    source = files.path / "offsets" / "3"
    source.chmod(0o640)
    os.utime(source, ns=(10**18, 10**18))
    files.copy("offsets/3", "", "backup-1")
    made = (files.backup("backup-1").path / "offsets" / "3").stat()
    assert (stat.S_IMODE(made.st_mode), made.st_mtime_ns) == (0o640, 10**18)


@pytest.mark.parametrize("content", [SECRET, f'{{"id": ["{SECRET}"]}}', f"v1\n{SECRET}", f"v1\n{{}}\n{SECRET}"])
@pytest.mark.parametrize("name", ["metadata", "offsets/3", "commits/3", "sources/0/0"])
def test_what_could_not_be_parsed_of_a_checkpoint_is_not_quoted(files: LocalFiles, name: str, content: str) -> None:
    put(files, name, content)
    for command in COMMANDS[:3]:
        found = CliRunner().invoke(app, [command[0], str(files.path), *command[1:]])
        assert SECRET not in found.output + str(found.exception), command


@pytest.mark.timeout(30)  # as above
@pytest.mark.parametrize("what", SPOILT)
def test_a_move_is_planned_or_ends_with_an_error_of_ours(tmp_path: Path, what: str) -> None:
    """The command asks Kafka first; what it makes of the answer is this plan."""
    files = write(tmp_path / "checkpoint")
    SPOILT[what](files)
    with suppress(OffsetkeeperError):
        assert str(plan_move(read_checkpoint(files), {TopicPartition("orders", 0): 5}))


def test_a_folder_of_the_state_that_the_operator_does_not_have_hides_no_version(tmp_path: Path) -> None:
    """Spark reads the partitions that it has written down, and no others."""
    files = write(tmp_path / "checkpoint", stateful=True)
    put(files, "state/0/_metadata/metadata", 'v1\n{"stateStoreInfo":[{"storeName":"default","numPartitions":2}]}')
    usual = run_json("inspect", str(files.path))["state_versions"]
    put(files, "state/0/999999999/1.delta", "x")
    assert run_json("inspect", str(files.path))["state_versions"] == usual == {"0": [1, 2, 3, 4]}
    assert (
        "Done" in run("truncate", str(files.path), "--batch", "2", "--query-id", "new", "--execute", "--force").stdout
    )
    said = run("verify", str(files.path)).stdout
    assert (
        "note state/0/999999999: operator 0 has 2 partitions: Spark does not read this one. No action is needed" in said
    )


def test_the_offsets_of_each_batch_that_is_there_are_shown(tmp_path: Path) -> None:
    files = write(tmp_path / "checkpoint")
    files.delete("offsets/1")
    files.delete("commits/3")
    shown = run("inspect", str(files.path), "--batch", "3").stdout.splitlines()
    what = "batch 3, planned at 1970-01-01T00:00:01Z, not committed; watermark 15 ms"
    assert shown[0] == f"{what} at 1970-01-01T00:00:00Z"
    assert shown[-2:] == ["0\torders\t0\t30\t40", "0\torders\t1\t30\t40"]
    starts = {
        batch: [row["start"] for row in run_json("inspect", str(files.path), "--batch", batch)["partitions"]]
        for batch in ("0", "2", "3")
    }
    assert starts == {"0": [0, 0], "2": [None, None], "3": [30, 30]}
    assert run_json("inspect", str(files.path), "--batch", "2") == {
        "checkpoint": str(files.path),
        "batch": 2,
        "committed": True,
        "planned_at_ms": 1002,
        "watermark_ms": 10,
        "partitions": [
            {"source": "0", "topic": "orders", "partition": partition, "start": None, "end": 30} for partition in (0, 1)
        ],
        "others": {},
    }
    with pytest.raises(Refused, match=r"checkpoint does not have the offsets of batch 1: it has 0, 2-3$"):
        run("inspect", str(files.path), "--batch", "1")


def test_a_source_of_another_kind_is_shown_as_it_has_written_it(tmp_path: Path) -> None:
    files = write(tmp_path / "checkpoint")
    put(files, "offsets/3", f'v1\n{{"batchWatermarkMs":0}}\n{offsets(40, 40)}\n{{"logOffset":7}}')
    assert run_json("inspect", str(files.path), "--batch", "3")["others"] == {"1": '{"logOffset":7}'}


@pytest.mark.parametrize(
    "command",
    [
        ["truncate", "--batch", "1", "--query-id", "new"],
        ["convert", "--to", "2", "--source", "orders"],
        ["seed", "--from-file", "offsets.csv"],
        ["complete"],
        ["undo"],
        ["move", "--to-batch", "1"],
        ["export", "--to", "memory://x", "--group", "g"],
    ],
    ids=" ".join,
)
def test_a_dry_run_is_what_is_done_without_execute(files: LocalFiles, command: list[str]) -> None:
    before = content(files)
    name, *given = command
    with pytest.raises(SettingsError, match="--dry-run only shows the change, --execute makes it: give one of them"):
        run(name, str(files.path), *given, "--dry-run", "--execute")
    usual = run(name, str(files.path), *given, ok=False)
    assert run(name, str(files.path), *given, "--dry-run", ok=False).stdout == usual.stdout
    assert content(files) == before
    assert "--dry-run" in run(name, "--help").stdout


def test_the_batch_of_a_number_that_is_too_long_is_refused(files: LocalFiles) -> None:
    assert run("inspect", str(files.path), "--batch", LONG, ok=False).exit_code != 0
    assert json.loads(run("inspect", str(files.path), "--json").stdout)["planned"] == 3


FOLDERS = ("offsets", "commits", "sources", "sources/0", "state", "state/0", "state/0/0")
CHANGES = (
    ["truncate", "--batch", "1", "--query-id", "new"],
    ["convert", "--to", "2", "--source", "orders"],
    ["complete"],
    ["undo"],
)


def linked(files: LocalFiles, name: str) -> Path:
    """Put a link in the place of a folder of the checkpoint, and return the folder that it leads to."""
    away = files.path.parent / "away"
    shutil.copytree(files.path / name, away)
    shutil.rmtree(files.path / name)
    (files.path / name).symlink_to(away)
    return away


def contents(folder: Path) -> dict[str, tuple[bytes, int]]:
    return {str(path): (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("name", FOLDERS)
def test_no_operation_goes_through_a_link_to_another_folder(files: LocalFiles, name: str) -> None:
    away = linked(files, name)
    before, file = contents(away), f"{name}/3"
    files.backup("backup-1").write(file, b"of the backup")
    operations: dict[str, Callable[[], object]] = {
        "names": lambda: files.names(name),
        "stamps": lambda: files.stamps(name),
        "stamps from above": lambda: files.stamps(name.partition("/")[0]),
        "read": lambda: files.read(file),
        "write": lambda: files.write(file, b"ours"),
        "create": lambda: files.create(f"{name}/new", b"ours"),
        "delete": lambda: files.delete(file),
        "back up": lambda: files.copy(file, "", "backup-2"),
        "restore": lambda: files.copy(file, "backup-1", ""),
    }
    for what, operate in operations.items():
        with pytest.raises(Refused, match=f"{name} is a link, and links are not followed here: remove it"):
            pytest.fail(f"{what} was done: {operate()}")
    assert contents(away) == before


@pytest.mark.parametrize("command", CHANGES, ids=" ".join)
@pytest.mark.parametrize("name", FOLDERS)
def test_a_change_of_a_checkpoint_does_not_reach_what_a_link_leads_to(
    files: LocalFiles, name: str, command: list[str]
) -> None:
    if command == ["undo"]:
        run("truncate", str(files.path), "--batch", "2", "--query-id", "keep", "--execute", "--force")
    away = linked(files, name)
    before = contents(away)
    what, *given = command
    found = run(what, str(files.path), *given, "--execute", "--force", ok=False)
    assert isinstance(found.exception, Refused), found.output
    assert "is a link, and links are not followed here: remove it" in str(found.exception)
    assert contents(away) == before


def test_a_link_in_place_of_a_file_is_replaced_or_deleted_itself(files: LocalFiles, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text(SECRET)
    for name in ("offsets/3", "offsets/.3.crc", "commits/3", "state/0/0/4.delta"):
        (files.path / name).unlink(missing_ok=True)
        (files.path / name).symlink_to(victim)
    files.write("offsets/3", b"ours")
    assert not files.create("commits/3", b"ours")
    files.delete("state/0/0/4.delta")
    files.backup("backup-1").write("commits/3", b"of the backup")
    files.copy("commits/3", "backup-1", "")
    assert [files.read(name) for name in ("offsets/3", "offsets/.3.crc", "commits/3", "state/0/0/4.delta")] == [
        b"ours",
        None,
        b"of the backup",
        None,
    ]
    assert victim.read_text() == SECRET


def test_a_link_in_place_of_a_backup_is_not_followed(files: LocalFiles, tmp_path: Path) -> None:
    """An undo would put into the checkpoint what another folder has."""
    run("truncate", str(files.path), "--batch", "2", "--query-id", "keep", "--execute", "--force")
    [name] = files.backups()
    backup = files.backup(name).path
    away = backup.rename(tmp_path / "away")
    backup.symlink_to(away)
    before = contents(away), content(files)
    for act in (
        lambda: files.copy("offsets/3", name, ""),
        lambda: files.copy("offsets/3", "", name),
        lambda: files.backup(name).read("offsets/3"),
        lambda: files.backup(name).stamps("state"),
        lambda: run("undo", str(files.path), "--execute", "--force"),
    ):
        with pytest.raises(Refused, match=f"{name} is a link, and links are not followed here: remove it"):
            act()
    assert (contents(away), content(files)) == before


def test_a_link_of_the_user_to_the_checkpoint_or_above_it_is_followed(files: LocalFiles, tmp_path: Path) -> None:
    (tmp_path / "linked").symlink_to(files.path)
    (tmp_path / "above").symlink_to(tmp_path)
    for named in (tmp_path / "linked", tmp_path / "above" / "checkpoint"):
        run("truncate", str(named), "--batch", "2", "--query-id", "keep", "--execute", "--force")
        assert "Done" in run("undo", str(named), "--execute", "--force").stdout
        assert LocalFiles(named).stamps("state") == files.stamps("state")


def test_folders_without_an_end_are_refused(files: LocalFiles) -> None:
    (files.path / "state" / "/".join("a" * 150)).mkdir(parents=True)
    with at_once(), pytest.raises(Refused, match=r"a is a folder 100 levels deep: remove it"):
        files.stamps("state")
