"""The outputs of a run: one or several sinks, each with a name that the ledger marks when the output has a batch."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Self, cast

from offsetkeeper.core.model import DEAD_LETTERS, Batch, Guarantee, check_output
from offsetkeeper.core.store import Store
from offsetkeeper.errors import GuaranteeRefused, SettingsError
from offsetkeeper.sinks.functions import Function
from offsetkeeper.sinks.once import Once
from offsetkeeper.sinks.sink import Joiner, Lander, Sink, Writer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from offsetkeeper.sinks.functions import Process

log = logging.getLogger("offsetkeeper")
Frames = Mapping[str, "DataFrame"]


class Outputs:
    """Several sinks, written one after the other in the order given: `Outputs(orders=Table(…), audit=Function(…))`.

    The ledger marks each output that has the batch, under the output's name: when the batch is tried again, by this run
    or the next, that output is passed over. So an output keeps its name for as long as it exists. Outputs that share
    the store's transaction need no mark: they are written last, all of them in the one that commits the offsets.

    The function beside it returns a frame for all, or a dict with a frame for each name.

    Attributes:
        sinks: by name, in the order in which they are written.

    Raises:
        SettingsError: there is none, one is no sink, or a name is wrong.
    """

    sinks: Mapping[str, Sink]

    def __init__(self, **sinks: Sink | Process) -> None:
        if not sinks:
            raise SettingsError("Outputs() has no output: write Outputs(orders=Table(…), audit=Function(…))")
        if DEAD_LETTERS in sinks:
            raise SettingsError(
                f"{DEAD_LETTERS!r} is the name of Pipeline(dead_letters=…): give the output another one"
            )
        self.sinks = MappingProxyType({check_output(name): as_sink(sink) for name, sink in sinks.items()})

    @classmethod
    def of(cls, output: Outputs | Sink | Process) -> Outputs:
        """Return outputs as they are, and a single sink or function under the name "".

        Raises:
            SettingsError: it is neither.
        """
        return output if isinstance(output, Outputs) else cls._of({"": as_sink(output)})

    @classmethod
    def dead_letters(cls, output: Sink | Process) -> Outputs:
        """Return the output for records that cannot be processed, under the name that the ledger knows it by.

        Raises:
            SettingsError: it is no sink and no function.
        """
        return cls._of({DEAD_LETTERS: as_sink(output)})

    @property
    def any_order(self) -> bool:
        """Whether each output takes rows in any order."""
        return all(getattr(sink, "any_order", False) for sink in self.sinks.values())

    def prepare(self, store: Store, guarantee: Guarantee) -> Prepared:
        """Find out whether each output can keep the guarantee, and which join the store's transaction.

        Raises:
            GuaranteeRefused, SettingsError, StoreUnavailable, SinkError: see `Sink.prepare`.
        """
        ways = {name: self._way(name, store, guarantee) for name in self.sinks}
        return Prepared(
            {name: way for name, way in ways.items() if not isinstance(way, Joiner)},
            {name: way for name, way in ways.items() if isinstance(way, Joiner)},
        )

    @contextmanager
    def frames(self, records: DataFrame, batch: Batch, process: Process | None) -> Iterator[Frames]:
        """Lend the frame of each output. What several outputs are made of is read once, and kept for as long.

        Args:
            records: of the batch.
            batch: with the outputs that have it already.
            process: makes a frame, or one for each output, of the records; without it they go out as they are.
        """
        several = len(self.sinks.keys() - set(batch.written)) > 1
        if several:
            records.persist()
        try:
            yield self._made(records, batch, process)
        finally:
            if several:
                _forget(records)

    def __repr__(self) -> str:
        if "" in self.sinks:
            return repr(self.sinks[""])
        return f"Outputs({', '.join(f'{name}={sink!r}' for name, sink in self.sinks.items())})"

    def __reduce__(self) -> tuple[Any, ...]:
        return Outputs._of, (dict(self.sinks),)

    @classmethod
    def _of(cls, sinks: Mapping[str, Sink]) -> Self:
        made = cls.__new__(cls)
        made.sinks = MappingProxyType(sinks)
        return made

    def _way(self, name: str, store: Store, guarantee: Guarantee) -> Writer | Joiner | Once:
        way = self.sinks[name].prepare(store, guarantee)
        if not isinstance(way, Lander):
            return way
        if guarantee is Guarantee.AT_MOST_ONCE:
            raise GuaranteeRefused(
                f"{self.sinks[name]!r} keeps a mark, so that each batch is there once: ask for exactly_once"
            )
        return Once(way, name)

    def _made(self, records: DataFrame, batch: Batch, process: Process | None) -> Frames:
        if process is None:
            return dict.fromkeys(self.sinks, records)
        made = process(records, batch)
        if made is None:
            raise SettingsError("with a sink, the function must return the DataFrame to be written; it returned None")
        if not isinstance(made, Mapping):
            return dict.fromkeys(self.sinks, cast("DataFrame", made))
        if made.keys() != self.sinks.keys():
            raise SettingsError(f"the function must return a frame for each of {self!r}; it did for {list(made)}")
        return made


@dataclass(frozen=True, slots=True)
class Prepared:
    """How outputs go out beside one store, by name and in their order: those that write apart, and those that join."""

    writers: Mapping[str, Writer | Once]
    joiners: Mapping[str, Joiner]

    @property
    def once(self) -> dict[str, Once]:
        """Those that keep a mark."""
        return {name: way for name, way in self.writers.items() if isinstance(way, Once)}

    def stage(self, frames: Frames, batch: Batch) -> Callable[[Any], None]:
        """Stage the joiners that do not have the batch; return what is left to do on the transaction's connection."""
        left = [name for name in self.joiners if name not in batch.written]
        steps = [self.joiners[name].stage(frames[name], batch) for name in left]

        def finish(connection: Any) -> None:
            for step in steps:
                step(connection)

        return finish


def as_sink(sink: Sink | Process) -> Sink:
    """Return a sink as it is, and a plain function as a `Function`.

    Raises:
        SettingsError: it is neither.
    """
    if isinstance(sink, Sink) and not isinstance(sink, type | Outputs):
        return sink
    if callable(sink) and not isinstance(sink, type):
        return Function(sink)
    raise SettingsError(f"{sink!r} is no sink: give a function of (frame, batch), Table, Transaction or Idempotent")


def _forget(records: DataFrame) -> None:
    try:
        records.unpersist()
    except Exception as error:  # noqa: BLE001 - the batch may be committed by now, and must not count as failed
        log.warning("Spark did not give up the records of a batch: %s", error)
