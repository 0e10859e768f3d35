"""`adopt`: the command that a refused start prints, as an operator runs it."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from offsetkeeper import Ledger, OffsetRange, Position, TopicPartition, open_store
from offsetkeeper.cli.main import app
from offsetkeeper.core import model
from offsetkeeper.core.commands import command
from offsetkeeper.core.mark import OutputMark, check_marks
from offsetkeeper.core.model import MAX_ADOPTED, Landed, Snapshot
from offsetkeeper.errors import Fenced, MarkAhead, MarkBehind, MarkError, NotAllowed, Refused, SettingsError
from offsetkeeper.operate import words
from offsetkeeper.operate.forget import forget_command

A = TopicPartition("a", 0)


@pytest.fixture
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ledger:
    """A group that has committed three batches into the output `shop`, and has begun a fourth."""
    url = f"sqlite:///{tmp_path}/offsets.db"
    monkeypatch.setenv("OFFSETKEEPER_STORE", url)
    ledger = Ledger(open_store(url), "my orders")
    ledger.acquire()
    ledger.place({A: Position(0)})
    for number in range(4):
        batch = ledger.batch([OffsetRange(*A, number, number + 1)])
        ledger.begin(batch, ["shop"])
        if number < 3:
            ledger.commit(batch)
    ledger.release()
    return ledger


def run(command: str, *more: str) -> str:
    result = CliRunner().invoke(app, [*shlex.split(command)[1:], *more])
    if result.exception is not None:
        raise result.exception
    return result.stdout


def refused(ledger: Ledger, mark: OutputMark | None, error: type[MarkError]) -> str:
    """Return the command that a refused start prints."""
    with pytest.raises(error) as caught:
        check_marks(ledger.load(), {"shop": mark})
    return str(caught.value).rpartition("as they are: ")[2]


def after(ledger: Ledger) -> Snapshot:
    return ledger.store.load(ledger.group)


def test_a_store_that_was_restored_goes_on_after_the_batches_that_the_output_has(ledger: Ledger) -> None:
    mark = OutputMark(9, "token", "digest")
    command = refused(ledger, mark, MarkAhead)
    assert command == "offsetkeeper adopt 'my orders' --output shop --sequence 9"
    before = after(ledger)
    shown = run(command)
    assert "the ledger says that output 'shop' has batch 3; it will say batch 9" in shown
    assert "the next batch gets the number 10 instead of 5" in shown
    assert f"batch {before.pending and before.pending.id} was begun and not committed: it is dropped" in shown
    assert after(ledger) == before
    assert run(command, "--execute", "--reason", "backup of Monday").endswith("Done.\n")
    found = after(ledger)
    assert (found.sequence, found.landed, found.pending) == (9, {"shop": Landed(9)}, None)
    assert found.unsettled == before.pending
    check_marks(found, {"shop": mark})
    assert ledger.history(1)[0].reason.startswith("mark 9 of output 'shop' is adopted backup of Monday (by ")
    assert run(command, "--execute").endswith("the ledger already has this value.\n")


def test_an_output_that_was_restored_is_written_on_from_the_pending_batch(ledger: Ledger) -> None:
    command = refused(ledger, OutputMark(2, "token", "digest"), MarkBehind)
    told = json.loads(run(command, "--execute", "--json"))
    assert told["executed"]
    assert (told["recorded"], told["came_to"], told["drops"]) == (3, 4, None)
    found = after(ledger)
    assert (found.sequence, found.landed) == (4, {"shop": Landed(2)})
    assert found.pending is not None


def test_a_target_that_was_made_again_under_the_mark_that_the_ledger_knows_is_accepted(ledger: Ledger) -> None:
    """A table of Delta that was restored keeps the mark: only the identity of the target shows it."""
    ledger.acquire()
    assert ledger.snapshot.pending is not None
    ledger.commit(ledger.snapshot.pending, targets={"shop": "7"})
    ledger.release()
    command = "offsetkeeper adopt 'my orders' --output shop --sequence 4"
    shown = run(command)
    assert "forgets the target that it knows of output 'shop', 7: it accepts the one that is there" in shown
    assert "it will say batch" not in shown
    run(command, "--execute")
    assert after(ledger).landed == {"shop": Landed(4)}
    assert run(command, "--execute").endswith("the ledger already has this value.\n")


def test_an_output_without_a_mark_is_written_on(ledger: Ledger) -> None:
    run(refused(ledger, None, MarkBehind), "--execute")
    check_marks(after(ledger), {"shop": None})


def test_an_output_that_has_lost_the_pending_batch_gets_it_again(ledger: Ledger) -> None:
    """Two outputs are written, one after the other; a backup of the first is put back before the second is."""
    ledger.acquire()
    ledger.abandon("other outputs")
    batch = ledger.batch([OffsetRange(*A, 3, 4)])
    ledger.begin(batch, ["shop", "two"])
    ledger.note_written(batch, "shop")
    ledger.release()
    older = OutputMark(3, "token", "digest")
    with pytest.raises(MarkBehind) as caught:
        check_marks(ledger.load(), {"shop": older, "two": older})
    command = str(caught.value).rpartition("as they are: ")[2]
    assert f"batch {batch.id}, which is pending, is written into output 'shop' again" in run(command)
    run(command, "--execute")
    check_marks(after(ledger), {"shop": older, "two": older})
    pending = after(ledger).pending
    assert pending is not None
    assert (pending.id, pending.written) == (batch.id, ())


def test_a_name_that_no_output_has_is_refused(ledger: Ledger) -> None:
    with pytest.raises(Refused, match="has no output 'shopp' that keeps a mark, only 'shop'"):
        run("offsetkeeper adopt 'my orders' --output shopp --sequence 4 --execute")
    assert after(ledger).landed == {"shop": Landed(3)}


def test_a_name_is_doubted_where_only_the_ledger_may_have_lost_it(ledger: Ledger) -> None:
    shown = run("offsetkeeper adopt 'my orders' --output shopp --sequence 9")
    assert "the ledger has committed nothing into output 'shopp' so far, only into 'shop': check the name" in shown
    assert after(ledger).landed == {"shop": Landed(3)}


def test_a_ledger_that_was_made_anew_accepts_the_marks_of_all_its_outputs(ledger: Ledger) -> None:
    anew = Ledger(ledger.store, "anew")
    marks = {"one": OutputMark(3, "token", "digest"), "two": OutputMark(4, "token", "digest")}
    for _ in marks:
        with pytest.raises(MarkAhead) as caught:
            check_marks(anew.load(), marks)
        run(str(caught.value).partition("\n")[0].rpartition("as they are: ")[2], "--execute")
    check_marks(anew.load(), marks)
    assert (anew.snapshot.sequence, anew.snapshot.landed) == (4, {"one": Landed(3), "two": Landed(4)})


def test_a_live_run_is_fenced_only_by_force(ledger: Ledger) -> None:
    ledger.acquire()
    command = "offsetkeeper adopt 'my orders' --output shop --sequence 9 --execute"
    with pytest.raises(Fenced):
        run(command)
    assert after(ledger).landed == {"shop": Landed(3)}
    run(command, "--force")
    with pytest.raises(Fenced):
        ledger.release()


def test_a_number_after_which_no_mark_could_be_read_is_refused(ledger: Ledger) -> None:
    before = after(ledger)
    for wrong in ("99999999999999999999", str(MAX_ADOPTED + 1)):
        for more in ((), ("--execute",)):
            with pytest.raises(SettingsError, match="is not the sequence of a batch: use an integer from 0 to 9"):
                run(f"offsetkeeper adopt 'my orders' --output shop --sequence={wrong}", *more)
    assert after(ledger) == before
    run(f"offsetkeeper adopt 'my orders' --output shop --sequence {MAX_ADOPTED} --execute")
    assert goes_on(ledger).sequence == MAX_ADOPTED + 1


def test_a_group_that_adopted_a_number_which_no_mark_can_hold_comes_down_again(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an older release let it do. The command is the one that the refused start prints."""
    with monkeypatch.context() as older:
        older.setattr(model, "MAX_ADOPTED", 10**30)
        run("offsetkeeper adopt 'my orders' --output shop --sequence 99999999999999999999 --execute")
    ledger.load()
    ledger.acquire()
    ledger.settle("the output does not have it")
    with pytest.raises(NotAllowed, match="no mark can hold a sequence after 99999999999999999999"):
        ledger.begin(ledger.batch([OffsetRange(*A, 3, 4)]), ["shop"])
    ledger.release()
    mark = OutputMark(3, "token", "digest")
    command = refused(ledger, mark, MarkBehind)
    assert "the next batch gets the number 4 instead of 100000000000000000000" in run(command)
    run(command, "--execute")
    check_marks(after(ledger), {"shop": mark})
    assert goes_on(ledger).sequence == 4
    assert run(command, "--execute") != ""
    two = OutputMark(7, "token", "digest")
    with pytest.raises(MarkAhead):  # an output that it had written further is no danger
        check_marks(after(ledger), {"shop": mark, "two": two})


def goes_on(ledger: Ledger) -> OutputMark:
    """Commit one more batch, and return its mark as an output reads it."""
    ledger.load()
    ledger.acquire()
    if ledger.snapshot.unsettled is not None:
        ledger.settle("the output does not have it")
    batch = ledger.batch([OffsetRange(*A, 3, 4)])
    ledger.begin(batch, ["shop"])
    ledger.commit(batch)
    ledger.release()
    return OutputMark.parse(str(OutputMark.of(batch)))


def test_show_tells_what_outputs_have(ledger: Ledger) -> None:
    assert "output shop has all committed batches, up to 3" in run("offsetkeeper show 'my orders'")
    assert "output shop may have it" in run("offsetkeeper show 'my orders'")
    ledger.load()
    ledger.rewind({A: Position(0)}, "again")
    shown = run("offsetkeeper show 'my orders'")
    assert "was dropped by a reset" in shown
    assert "the next start asks its outputs whether they have it. Whatever they answer, it reads from the" in shown
    assert json.loads(run("offsetkeeper show 'my orders' --json"))["unsettled"]["lands_in"] == ["shop"]


HYPHENS = ["-x", "-", "--", "--all-groups", "--version", "-x y"]


@pytest.mark.parametrize("group", HYPHENS)
def test_the_command_works_for_a_group_that_begins_with_a_hyphen(ledger: Ledger, group: str) -> None:
    other = Ledger(ledger.store, group)
    other.acquire()
    other.place({A: Position(0)})
    other.commit(other.batch([OffsetRange(*A, 0, 5)]))
    other.release()
    command = refused(other, OutputMark(9, "token", "digest"), MarkAhead)
    assert "it will say batch 9" in run(command)
    options, _, name = command.partition(" -- ")
    assert run(f"{options} --execute -- {name}").endswith("Done.\n")
    assert after(other).landed == {"shop": Landed(9)}
    assert run(forget_command(group, A)).splitlines()[-1].startswith("Nothing was changed.")


@pytest.mark.parametrize("group", [*HYPHENS, "orders", "my orders"])
def test_each_printed_command_is_for_its_group_alone(group: str) -> None:
    """`reset` of a group named `--all-groups` would address all groups."""
    code = [piece.text for text in words.NEXT.values() for piece in words.pieces(text, group) if piece.code]
    printed = [each for each in code if each.startswith("offsetkeeper ")]
    printed += [forget_command(group, A), command("reset", group, "--topic a:0 --to-offset 5 --execute")]
    assert len(printed) > 10
    for each in printed:
        _, name, *arguments = shlex.split(each)
        found = get_command(app).commands[name].make_context(name, arguments).params  # type: ignore[attr-defined]
        groups = found["group"] if "group" in found else found["groups"]
        assert groups in (group, [group]), each
        assert not found.get("all_groups")
