"""A running streaming query, with the group it works for."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self

from offsetkeeper.engines.deliver import Delivery
from offsetkeeper.engines.each_batch import EachBatch
from offsetkeeper.engines.progress import Watch
from offsetkeeper.engines.spark_gone import spark_gone, telling_spark_gone
from offsetkeeper.errors import Fenced, OffsetkeeperError, SparkGone
from offsetkeeper.readers import reading_error

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

log = logging.getLogger("offsetkeeper")


class Stream:
    """The two pieces for a query of your own; a context manager at whose end the group is given back.

    Attributes:
        records: a streaming frame with the columns of Spark's Kafka source, which begins where the ledger stands.
        write: for `foreachBatch`.
        checkpoint: to be given as `option("checkpointLocation", …)`.
    """

    def __init__(self, records: DataFrame, write: EachBatch, checkpoint: str, delivery: Delivery) -> None:
        self.records = records
        self.write = write
        self.checkpoint = checkpoint
        self._delivery: Delivery | None = delivery

    def close(self) -> None:
        """Give the group back, after the query has ended; may be called again."""
        delivery, self._delivery = self._delivery, None
        if delivery is None:
            return
        self.write.close()
        if not self.write.wait(delivery.pace.patience_s):
            log.warning("a batch of group %s is still under way: the group is not given back", delivery.ledger.group)
            return
        try:
            delivery.ledger.join(delivery.ledger.owner_id)  # another process may have written since
            delivery.release()
        except Fenced:
            pass  # the newer owner has the group, and its own word on it
        except OffsetkeeperError as error:
            log.warning("group %s could not be released, the next run takes it over: %s", delivery.ledger.group, error)
        finally:
            delivery.ledger.store.close()

    def error(self, raised: Exception) -> BaseException:
        """Return what went wrong in a batch, where Spark tells it as its own error."""
        return self.write.error or reading_error(raised) or spark_gone(raised) or raised

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Query:
    """Spark's streaming query, as `Pipeline.start` returns it; a context manager at whose end it is stopped.

    All that Spark's `StreamingQuery` has is there. What ends the query gives the group back, and what went wrong in a
    batch is raised as it was there.
    """

    def __init__(self, query: StreamingQuery, stream: Stream, watch: Watch | None = None) -> None:
        self._query = query
        self._stream = stream
        self._watch = watch

    def awaitTermination(self, timeout: int | None = None) -> bool | None:  # noqa: N802 - Spark's name
        """Wait until the query ends, or for `timeout` seconds; with a timeout, return whether it has ended.

        Raises:
            CheckpointMismatch: ledger and checkpoint do not fit; nothing was written.
            Fenced: another run has taken the group.
            SparkGone: Spark has died, and the query with it; the group is given back.
            OffsetkeeperError: see the tree in `errors`.
            Exception: what the output raised, or Spark's own error.
        """
        return self._told(lambda: self._query.awaitTermination(timeout))

    def processAllAvailable(self) -> None:  # noqa: N802 - Spark's name
        """Wait until all that is in Kafka now is processed. It raises as `awaitTermination` does."""
        self._told(self._query.processAllAvailable)

    def stop(self) -> None:
        """Stop the query: the batch under way is finished or left uncommitted, and the group is given back.

        Raises:
            SparkGone: Spark has died, and the query with it; the group is given back.
        """
        try:
            with telling_spark_gone():
                self._query.stop()
        except SparkGone:
            self._close(gone=True)
            raise
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not SparkGone:  # it is told already, and all is closed
            self.stop()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._query, name)

    def _told(self, call: Callable[[], bool | None]) -> bool | None:
        with self._ending():
            try:
                return call()
            except Exception as raised:
                error = self._stream.error(raised)
                if error is raised:
                    raise
                raise error from raised

    @contextmanager
    def _ending(self) -> Iterator[None]:
        gone = False
        try:
            yield
        except SparkGone:
            gone = True  # and is asked no more: with Spark Connect each question takes ten minutes then
            raise
        finally:
            if gone or self._has_ended():
                self._close(gone=gone)

    def _has_ended(self) -> bool:
        try:
            return not self._query.isActive
        except Exception as error:
            if spark_gone(error) is None:
                raise
            return True

    def _close(self, *, gone: bool = False) -> None:
        try:
            if self._watch is not None:
                self._watch.close(gone=gone)
        finally:
            self._stream.close()
