"""What the history says of the end of a query: the class of the error, wherever it came from."""

from __future__ import annotations

import secrets
from contextlib import AbstractContextManager
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark.errors import StreamingQueryException

from offsetkeeper.core.ledger import Ledger
from offsetkeeper.engines.query import Query, Stream
from offsetkeeper.errors import CheckpointMismatch
from offsetkeeper.stores.memory import MemoryStore

SPARKS = StreamingQueryException("the server has ended the query")
OURS = StreamingQueryException(
    "There are [1] sources in the checkpoint offsets and now there are [3] sources requested"
)


def held() -> Ledger:
    """Return the ledger of a group that a run holds."""
    ledger = Ledger(MemoryStore(f"memory://{secrets.token_hex(8)}"), "g")
    ledger.acquire()
    return ledger


def stream_of(ledger: Ledger, error: BaseException | None = None) -> Stream:
    """Return the stream of the run that holds a group; `error` is that of its last batch, in this process."""
    write = SimpleNamespace(error=error, close=lambda: None, wait=lambda _: True)
    asked = SimpleNamespace(pace=SimpleNamespace(retry_timeout_s=1.0))
    delivery = SimpleNamespace(ledger=ledger, asked=asked)
    return Stream(cast("Any", None), cast("Any", write), "/checkpoint", cast("Any", delivery))


def reasons(ledger: Ledger) -> list[str]:
    return [entry.reason for entry in ledger.history() if entry.event == "release"]


class Spark:
    """A query that has ended, with an error or without one."""

    isActive = False  # noqa: N815 - Spark's name

    def __init__(self, raised: Exception | None) -> None:
        self.raised = raised

    def stop(self) -> None:
        """Do nothing: it has ended."""

    def awaitTermination(self, _: int | None) -> bool:  # noqa: N802 - Spark's name
        """Say that it has ended, or raise its error."""
        if self.raised is not None:
            raise self.raised
        return True


@pytest.mark.parametrize(
    ("raised", "of_batch", "kind"),
    [
        (None, None, None),
        (SPARKS, None, StreamingQueryException),  # also of a batch, with Spark Connect: it ran in another process
        (OURS, None, CheckpointMismatch),
        (SPARKS, ZeroDivisionError(), ZeroDivisionError),
    ],
)
def test_the_history_says_which_error_ended_a_query(
    raised: Exception | None, of_batch: Exception | None, kind: type[Exception] | None
) -> None:
    """It said `end` of all errors but those of a batch in the same process."""
    ledger = held()
    query = Query(cast("Any", Spark(raised)), stream_of(ledger, of_batch))
    if kind is None:
        assert query.awaitTermination()
    else:
        with pytest.raises(kind):
            query.awaitTermination()
    assert reasons(ledger) == ["end" if kind is None else f"ended by {kind.__name__}"]


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("raised", [SPARKS, ZeroDivisionError("of the program")])
def test_the_history_says_which_error_ended_the_block_of_a_query(raised: Exception, *, own: bool) -> None:
    def block(ledger: Ledger) -> AbstractContextManager[object]:
        stream = stream_of(ledger)
        return stream if own else Query(cast("Any", Spark(None)), stream)

    ledger = held()
    with pytest.raises(type(raised)), block(ledger):
        raise raised
    assert reasons(ledger) == [f"ended by {type(raised).__name__}"]
    ledger = held()
    with block(ledger):
        pass
    assert reasons(ledger) == ["end"]
