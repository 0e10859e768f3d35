"""The actions on the page are enough for a store in S3, and each is needed; who lacks one is told.

The gate is a fake, as S3Proxy has no policies; all that it lets through is answered by S3Proxy.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fixtures.rights import rows
from fixtures.rights_suite import Lacking, RightsSuite, TryWithout
from fixtures.rights_tasks import granted, keeps, looks
from fixtures.s3_gate import s3_gate
from offsetkeeper.errors import OffsetkeeperError
from offsetkeeper.testing.s3 import SECRET, S3Server

HEADING = "S3: `s3://`"
STORE = "store"


def keeps_few(url: str) -> None:
    """Make so many changes that old ones are deleted."""
    keeps(f"{url}&history=1", batches=10)


DOES: dict[str, Callable[[str], None]] = {
    STORE: keeps_few,
    "store, only looked at: `show`, `lag`, `history`, `groups`": looks,
}


def try_without(server: S3Server, task: str, lacking: Lacking | None) -> None:
    bucket = server.create_bucket()
    if task != STORE:
        keeps(server.url(bucket, "prefix"))
    allowed = [(action, on.replace("bucket", bucket)) for action, on in granted(rows(HEADING), task, lacking)]
    with s3_gate(server.port, allowed) as port:
        DOES[task](server.url(bucket, "prefix", port=port))


class TestS3(RightsSuite):
    """The user of a bucket."""

    headings = (HEADING,)
    tasks = DOES
    error = OffsetkeeperError
    secret = SECRET
    logged = True

    @pytest.fixture
    def try_without(self, s3_server: S3Server) -> TryWithout:
        """See `RightsSuite`."""
        return lambda _, task, lacking: try_without(s3_server, task, lacking)
