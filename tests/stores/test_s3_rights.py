"""The actions on the page are enough for a store in S3, and each is needed; who lacks one is told.

The gate is a fake, as S3Proxy has no policies; all that it lets through is answered by S3Proxy.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fixtures.rights import Row, rows
from fixtures.rights_tasks import each_right, granted, keeps, looks, name_of
from fixtures.s3_gate import s3_gate
from offsetkeeper.errors import OffsetkeeperError
from offsetkeeper.testing.s3 import SECRET, S3Server

ROWS = rows("S3: `s3://`")
STORE = "store"


def keeps_few(url: str) -> None:
    """Make so many changes that old ones are deleted."""
    keeps(f"{url}&history=1", batches=10)


DOES: dict[str, Callable[[str], None]] = {
    STORE: keeps_few,
    "store, only looked at: `show`, `lag`, `history`, `groups`": looks,
}


def try_without(server: S3Server, task: str, lacking: tuple[Row, str] | None = None) -> None:
    bucket = server.create_bucket()
    if task != STORE:
        keeps(server.url(bucket, "prefix"))
    allowed = [(action, on.replace("bucket", bucket)) for action, on in granted(ROWS, task, lacking)]
    with s3_gate(server.port, allowed) as port:
        DOES[task](server.url(bucket, "prefix", port=port))


def test_the_page_has_each_task() -> None:
    assert {row.task for row in ROWS} == DOES.keys()


@pytest.mark.parametrize("task", DOES)
def test_the_actions_on_the_page_are_enough(task: str, s3_server: S3Server, caplog: pytest.LogCaptureFixture) -> None:
    try_without(s3_server, task)
    assert caplog.text == ""


@pytest.mark.parametrize("lacking", each_right(ROWS), ids=name_of)
def test_without_an_action_of_the_page_it_is_told(
    lacking: tuple[Row, str], s3_server: S3Server, caplog: pytest.LogCaptureFixture
) -> None:
    row, _ = lacking
    said = ""
    try:
        try_without(s3_server, row.task, lacking)
    except OffsetkeeperError as error:
        said = f"{type(error).__name__}: {error}"
    said += caplog.text
    assert row.without in said
    assert SECRET not in said
