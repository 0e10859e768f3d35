"""What goes out of one batch: a frame for each output, written in order, and never again where it was marked."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from offsetkeeper.core.model import Batch, Guarantee
from offsetkeeper.core.store import Store
from offsetkeeper.errors import SettingsError
from offsetkeeper.sinks import Outputs, Sink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from offsetkeeper.sinks.functions import Process

log = logging.getLogger("offsetkeeper")
Frames = Mapping[str, "DataFrame"]


@dataclass(slots=True)
class Output:
    """The outputs of a run; a single one has the name "". It can be pickled.

    Attributes:
        sink: where the rows go.
        transform: makes a frame, or one for each output, of the records; without it they go out as they are.
        shared: names of the outputs that are in the store's transaction, known after `check`.
    """

    sink: Sink | Outputs
    transform: Process | None = None
    shared: frozenset[str] = field(default=frozenset(), init=False)

    @property
    def sinks(self) -> Mapping[str, Sink]:
        """By name, in the order in which they are written."""
        return self.sink.sinks if isinstance(self.sink, Outputs) else {"": self.sink}

    @property
    def apart(self) -> tuple[str, ...]:
        """Names of the outputs that are written by themselves."""
        return tuple(name for name in self.sinks if name not in self.shared)

    def check(self, store: Store, guarantee: Guarantee) -> None:
        """Find out whether each output can keep the guarantee, and which share the store's transaction.

        Raises:
            GuaranteeRefused, SettingsError, StoreUnavailable, SinkError: see `Sink`.
        """
        for sink in self.sinks.values():
            sink.check(store, guarantee)
        self.shared = frozenset(name for name, sink in self.sinks.items() if sink.shares_transaction(store))

    @contextmanager
    def frames(self, records: DataFrame, batch: Batch) -> Iterator[Frames]:
        """Lend the frame of each output. What several outputs are made of is read once, and kept for as long."""
        several = len(self.sinks.keys() - set(batch.written)) > 1
        if several:
            records.persist()
        try:
            yield self._made(records, batch)
        finally:
            if several:
                _forget(records)

    def write(self, name: str, frames: Frames, batch: Batch) -> None:
        """Write one output, and return when it is durable."""
        self.sinks[name].write(frames[name], batch)

    def stage(self, frames: Frames, batch: Batch) -> Callable[[Any], None]:
        """Stage the outputs that share the store's transaction; return what is left to do on its connection."""
        left = [name for name in self.sinks if name in self.shared and name not in batch.written]
        steps = [self.sinks[name].stage(frames[name], batch) for name in left]

        def finish(connection: Any) -> None:
            for step in steps:
                step(connection)

        return finish

    def _made(self, records: DataFrame, batch: Batch) -> Frames:
        if self.transform is None:
            return dict.fromkeys(self.sinks, records)
        made = self.transform(records, batch)
        if made is None:
            raise SettingsError("with a sink, the function must return the DataFrame to be written; it returned None")
        if not isinstance(made, Mapping):
            return dict.fromkeys(self.sinks, cast("DataFrame", made))
        if made.keys() != self.sinks.keys():
            raise SettingsError(f"the function must return a frame for each of {self.sink!r}; it did for {list(made)}")
        return made


def _forget(records: DataFrame) -> None:
    try:
        records.unpersist()
    except Exception as error:  # noqa: BLE001 - the batch may be committed by now, and must not count as failed
        log.warning("Spark did not give up the records of a batch: %s", error)
