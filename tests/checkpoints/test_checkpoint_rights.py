"""The rights on the page are enough for a checkpoint, and each is needed; who lacks one is told."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from checkpoints.written import write
from fixtures.nobody import nobody, open_up, set_letters
from fixtures.rights import rows
from fixtures.rights_suite import Lacking, RightsSuite, TryWithout
from fixtures.rights_tasks import LETTERS, granted
from fixtures.s3_gate import s3_gate
from offsetkeeper.checkpoint import (
    Files,
    LocalFiles,
    apply,
    inspect,
    open_files,
    plan_truncate,
    plan_undo,
    read_checkpoint,
    verify,
)
from offsetkeeper.errors import OffsetkeeperError
from offsetkeeper.testing.s3 import SECRET, S3Server


def look(files: Files) -> None:
    """Do what `inspect` and `verify` do."""
    assert inspect(read_checkpoint(files)).next.batch == 4
    verify(files)


def change(files: Files) -> None:
    """Take a query back to batch 1, and undo that."""
    edit = plan_truncate(read_checkpoint(files), 1, query_id="keep")
    backup = apply(files, edit, force=True, quiet_s=0, look_s=0)
    assert inspect(read_checkpoint(files)).next.batch == 2
    apply(files, plan_undo(files, backup), force=True, quiet_s=0, look_s=0)
    look(files)


FOLDER, S3 = "A Spark checkpoint in a folder", "A Spark checkpoint in S3"
DOES: dict[str, Callable[[Files], None]] = {
    "`checkpoint inspect`, `verify`, `diff`, `export`": look,
    "`checkpoint move`, `truncate`, `undo` and the others that change it": change,
}


def in_folder(task: str, folder: Path, lacking: Lacking | None) -> None:
    above = folder / "above"
    files = write(above / "orders", stateful=True)
    paths = [files.path, *files.path.rglob("*")]
    words = {
        "the folder above": [above],
        "its folders": [path for path in paths if path.is_dir()],
        "its files": [path for path in paths if path.is_file()],
    }
    letters = dict.fromkeys([above, *paths], 0)
    for right, word in granted(rows(FOLDER), task, lacking):
        for path in words[word]:
            letters[path] |= LETTERS[right]
    set_letters(above, letters)
    try:
        with nobody():
            DOES[task](LocalFiles(files.path))
    finally:
        open_up(above)


def in_s3(task: str, server: S3Server, lacking: Lacking | None) -> None:
    bucket = server.create_bucket()
    with TemporaryDirectory() as name, closing(open_files(server.url(bucket, "prefix/orders"))) as there:
        local = write(Path(name), stateful=True)
        for each in local.stamps(""):
            there.write(each, local.read(each) or b"")
    allowed = [(action, on.replace("bucket", bucket)) for action, on in granted(rows(S3), task, lacking)]
    with (
        s3_gate(server.port, allowed) as port,
        closing(open_files(server.url(bucket, "prefix/orders", port=port))) as files,
    ):
        DOES[task](files)


class TestCheckpoint(RightsSuite):
    """Edits of a checkpoint, and looks at it."""

    headings = (FOLDER, S3)
    tasks = DOES
    error = OffsetkeeperError
    secret = SECRET

    @pytest.fixture
    def try_without(self, reachable_folder: Path, s3_server: S3Server) -> TryWithout:
        """See `RightsSuite`."""

        def work(heading: str, task: str, lacking: Lacking | None) -> None:
            if heading == FOLDER:
                in_folder(task, reachable_folder, lacking)
            else:
                in_s3(task, s3_server, lacking)

        return work
