"""Messages as `readers/messages` gives them, by the compiled reader where it can be used. Runs on executors."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from offsetkeeper.core.environment import monotonic
from offsetkeeper.kafka.compiled import compiled
from offsetkeeper.readers.flow import Flow
from offsetkeeper.readers.messages import NO_EPOCHS, Messages, Partition, PythonMessages, Rest, Taken
from offsetkeeper.readers.source import open_consumer
from offsetkeeper.readers.turns import Range, turns
from offsetkeeper.readers.unreadable import unreadable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from offsetkeeper.readers.source import Source

log = logging.getLogger("offsetkeeper.readers")
_INTERFACE = 4


def open_messages(
    source: Source,
    ranges: Sequence[Range],
    report: Callable[[Any], None],
    epochs: Mapping[Partition, int] = NO_EPOCHS,
) -> Messages:
    """Return a client that reads ranges: a compiled one where it can be used, else one of confluent-kafka.

    The log says which one reads, and why; see `compiled`.

    Args: see `PythonMessages`.

    Raises:
        MissingExtra: the compiled one is required, and cannot be used here.
        SettingsError, TokenUnavailable: see `open_client`.
    """
    module = compiled("reader", "reads", "offsetkeeper_native", _INTERFACE, source.options, log)
    if module is not None:
        return NativeMessages(module, source, ranges, report, epochs)
    return PythonMessages(source, ranges, report, epochs)


class NativeMessages:
    """See `Messages`.

    Args:
        module: the compiled one.
        source, ranges, report, epochs: see `PythonMessages`.

    Raises:
        SettingsError: see `open_client`.
    """

    def __init__(
        self,
        module: Any,
        source: Source,
        ranges: Sequence[Range],
        report: Callable[[Any], None],
        epochs: Mapping[Partition, int] = NO_EPOCHS,
    ) -> None:
        self._compiled, self._source, self._report = module, source, report
        self._asked: Any = None
        self._partitions = [each[:2] for each in ranges]
        self._flow = Flow(ranges)
        self._reader = open_consumer(source, report, make=self._make)
        self._reader.assign(ranges, turns(ranges), [epochs.get(each) for each in self._partitions])
        self.unread: dict[Partition, Rest] = dict(zip(self._partitions, self._reader.places, strict=True))
        self._steer([], 0)

    @property
    def awaited(self) -> Partition | None:
        """See `Messages`."""
        return None if self._reader.awaited is None else self._partitions[self._reader.awaited]

    def take(self, wait_s: float) -> Taken:
        """See `Messages.take`."""
        before = monotonic()
        most = self._source.batch_rows, self._source.batch_bytes
        try:
            batch, events, done, arrived, held = self._reader.take(wait_s if self.unread else 0, *most)
        except self._compiled.Unreadable as error:
            raise unreadable(error.place, error.what) from None
        waited_s = monotonic() - before
        for number in done:
            self.unread.pop(self._partitions[number], None)
        self._steer(done, held)
        return Taken(batch, events, waited_s, arrived=bool(arrived or done))

    def _make(self, given: dict[str, Any]) -> Any:
        return self._compiled.Reader(given, headers=self._source.headers, raw_times=self._source.raw_times)

    def _steer(self, arrived: Sequence[int], held: int) -> None:
        """Let the client fetch what is to be fetched now."""
        change = self._flow.change(self._reader.awaited, arrived, lambda number: self._reader.places[number].held, held)
        if change.begin:
            self._reader.begin(change.begin)
        if change.pause and self.unread:
            self._reader.pause(change.pause)
        if change.resume:
            self._reader.resume(change.resume)

    def cluster_id(self, wait_s: float) -> str | None:
        """See `Messages.cluster_id`."""
        found: str | None = self._reader.cluster_id(wait_s)
        return found

    def consumer(self) -> Any:
        """See `Messages.consumer`. It is made when it is asked for: only what has gone wrong needs it."""
        self._asked = self._asked or open_consumer(self._source, self._report)
        return self._asked

    def close(self) -> None:
        """See `Messages.close`."""
        self._reader.close()
        if self._asked is not None:
            self._asked.close()
