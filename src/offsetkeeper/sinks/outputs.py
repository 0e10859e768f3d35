"""The outputs of a run: one or several named sinks. The ledger records which outputs have a batch."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Self, cast

from offsetkeeper.core.batch import DEAD_LETTERS, Batch, check_output
from offsetkeeper.core.cluster import Cluster
from offsetkeeper.core.mark import OutputMark
from offsetkeeper.core.model import Guarantee
from offsetkeeper.core.store import Store
from offsetkeeper.core.topics import Topics
from offsetkeeper.errors import GuaranteeRefused, SettingsError
from offsetkeeper.sinks.functions import Function
from offsetkeeper.sinks.once import Once
from offsetkeeper.sinks.sink import Joiner, Lander, MarkKey, Reading, Sink, Writer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from offsetkeeper.sinks.functions import Process

log = logging.getLogger("offsetkeeper")
Frames = Mapping[str, "DataFrame"]
_FACTORIES = ("row_factory", "text_factory", "cursor_factory", "cursorclass")  # of psycopg, sqlite3 and PyMySQL
_NONE: Mapping[str, str] = MappingProxyType({})


class Outputs:
    """Several sinks, written one after the other in the given order: `Outputs(orders=Table(…), audit=Function(…))`.

    The ledger records each output that has the batch, by the output's name: when this run or the next one tries the
    batch again, it skips that output. If the name changes, a start finds the output by its place, see `Sink`. So an
    output that does not tell its place, such as a function, must keep its name. Outputs that share the store's
    transaction need no such record: they are written last, all in the transaction that commits the offsets.

    The pipeline's function returns one frame for all outputs, or a dict with a frame for each name.

    Attributes:
        sinks: the sinks by name, in the order in which they are written.

    Raises:
        SettingsError: there is no output, a value is not a sink, or a name is wrong.
    """

    sinks: Mapping[str, Sink]

    def __init__(self, **sinks: Sink | Process) -> None:
        if not sinks:
            raise SettingsError("Outputs() has no output: write Outputs(orders=Table(…), audit=Function(…))")
        if DEAD_LETTERS in sinks:
            raise SettingsError(
                f"{DEAD_LETTERS!r} is the name of Pipeline(dead_letters=…): give the output another name"
            )
        self.sinks = MappingProxyType({check_output(name): as_sink(sink) for name, sink in sinks.items()})

    @classmethod
    def of(cls, output: Outputs | Sink | Process) -> Outputs:
        """Return outputs unchanged, and a single sink or function with the name "".

        Raises:
            SettingsError: it is neither.
        """
        return output if isinstance(output, Outputs) else cls._of({"": as_sink(output)})

    @classmethod
    def dead_letters(cls, output: Sink | Process) -> Outputs:
        """Return the output for records that cannot be processed, with its fixed name.

        Raises:
            SettingsError: the value is neither a sink nor a function.
        """
        return cls._of({DEAD_LETTERS: as_sink(output)})

    def for_reader_of(self, cluster: Cluster, topics: Topics) -> Outputs:
        """Return these outputs as those of a pipeline that reads these topics of a cluster."""

        def told(sink: Sink) -> Sink:
            return sink.for_reader_of(cluster, topics) if isinstance(sink, Reading) else sink

        return Outputs._of({name: told(sink) for name, sink in self.sinks.items()})

    @property
    def any_order(self) -> bool:
        """Whether each output takes rows in any order."""
        return all(getattr(sink, "any_order", False) for sink in self.sinks.values())

    def prepare(self, store: Store, guarantee: Guarantee) -> Prepared:
        """Find out whether each output can keep the guarantee, and which join the store's transaction.

        Raises:
            GuaranteeRefused, SettingsError, StoreUnavailable, SinkError: see `Sink.prepare`.
        """
        return Prepared.of({name: self._way(name, store, guarantee) for name in self.sinks})

    @contextmanager
    def frames(
        self, records: DataFrame, batch: Batch, process: Process | None, old_names: Mapping[str, str] = _NONE
    ) -> Iterator[Frames]:
        """Lend the frame of each output. Records for several outputs are read once and cached meanwhile.

        Args:
            records: records of the batch.
            batch: the batch, with the outputs that already have it.
            process: turns the records into a frame, or one frame for each output; without it, records do not change.
            old_names: see `Program.old_names`. The outputs that have the batch, and the frames, are by these names.
        """
        names = {old: name for name, old in old_names.items()}
        batch = replace(batch, written=tuple(names.get(name, name) for name in batch.written))
        several = len(self.sinks.keys() - set(batch.written)) > 1
        if several:
            records.persist()
        try:
            yield {old_names.get(name, name): each for name, each in self._made(records, batch, process).items()}
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
                f"{self.sinks[name]!r} keeps a mark, so each batch is written once: use exactly_once"
            )
        return Once(way, name)

    def _made(self, records: DataFrame, batch: Batch, process: Process | None) -> Frames:
        if process is None:
            return dict.fromkeys(self.sinks, records)
        made = process(records, batch)
        if made is None:
            raise SettingsError("with a sink, the function must return the DataFrame to write; it returned None")
        if not isinstance(made, Mapping):
            return dict.fromkeys(self.sinks, cast("DataFrame", made))
        if made.keys() != self.sinks.keys():
            raise SettingsError(f"the function must return a frame for each of {self!r}; it returned {list(made)}")
        return made


@dataclass(frozen=True, slots=True)
class Prepared:
    """How each output is written with one store, by name and in order: separate writers, and joiners."""

    writers: Mapping[str, Writer | Once]
    joiners: Mapping[str, Joiner]

    @classmethod
    def of(cls, ways: Mapping[str, Writer | Once | Joiner]) -> Self:
        """Return outputs under these names; one that keeps a mark keeps that of its name."""
        once = {name: way for name, way in ways.items() if isinstance(way, Once)}
        marked = {name: replace(way, output=name, beside=frozenset(ways.keys() - {name})) for name, way in once.items()}
        every = {**ways, **marked}
        return cls(
            {name: way for name, way in every.items() if not isinstance(way, Joiner)},
            {name: way for name, way in every.items() if isinstance(way, Joiner)},
        )

    def under(self, old_names: Mapping[str, str]) -> Prepared:
        """Return the same outputs under their old names; see `Program.old_names`."""
        if not old_names:
            return self
        return Prepared.of({old_names.get(name, name): way for name, way in {**self.writers, **self.joiners}.items()})

    @property
    def once(self) -> dict[str, Once]:
        """The outputs that keep a mark."""
        return {name: way for name, way in self.writers.items() if isinstance(way, Once)}

    def stage(self, frames: Frames, batch: Batch) -> Callable[[Any], None]:
        """Stage the joiners that do not have the batch; return the rest of the work, for the connection."""
        left = [name for name in self.joiners if name not in batch.written]
        steps = {name: self.joiners[name].stage(frames[name], batch) for name in left}

        def finish(connection: Any) -> None:
            before = {each: getattr(connection, each) for each in _FACTORIES if hasattr(connection, each)}
            for name, step in steps.items():
                step(connection)
                for each, made in before.items():  # a function may have asked for its rows as dicts
                    setattr(connection, each, made)
                self.joiners[name].follow(connection, MarkKey(batch.group, name), OutputMark.of(batch))

        return finish


def as_sink(sink: Sink | Process) -> Sink:
    """Return a sink unchanged, and a plain function as a `Function`.

    Raises:
        SettingsError: it is neither.
    """
    if isinstance(sink, Sink) and not isinstance(sink, type | Outputs):
        return sink
    if callable(sink) and not isinstance(sink, type):
        return Function(sink)
    raise SettingsError(f"{sink!r} is not a sink: give a function of (frame, batch), Table, Transaction or Idempotent")


def _forget(records: DataFrame) -> None:
    try:
        records.unpersist()
    except Exception as error:  # noqa: BLE001 - the batch may be committed, so it must not count as failed
        log.warning("Spark did not release the cached records of a batch: %s", error)
