"""Notes what a run does with its outputs, for a trace: each look at a mark, each landing, each write; see `core.trace`.

What is tried before a record is quarantined is not noted, as it is taken back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from offsetkeeper.core import trace
from offsetkeeper.core.batch import Batch
from offsetkeeper.core.ledger import Ledger
from offsetkeeper.core.mark import OutputMark
from offsetkeeper.engines.settings import Run
from offsetkeeper.errors import MarkMoved, OutcomeUnknown, SinkError
from offsetkeeper.sinks.once import Once
from offsetkeeper.sinks.outputs import Prepared
from offsetkeeper.sinks.sink import Joiner, Lander, MarkKey, Seen, Writer, kind_and_target, place_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Tell = Callable[..., None]
_REFUSED = (MarkMoved, SinkError)


def tell_outputs(asked: Run, prepared: Prepared, ledger: Ledger) -> None:
    """Note the outputs of a run, how each is written, and which guarantee is asked for."""
    if not trace.is_on():
        return
    found = {
        name: {"target": kind_and_target(sink), "place": place_of(sink), **_way(prepared, name)}
        for name, sink in asked.outputs.sinks.items()
    }
    policy = asked.subscription.policies.pending
    trace.note(ledger.who, "outputs", guarantee=asked.guarantee, pending=policy, outputs=found)


def traced(ways: Prepared, ledger: Ledger) -> Prepared:
    """Return outputs whose calls are noted; the same outputs if traces are off."""
    if not trace.is_on():
        return ways

    def tell(event: str, **about: Any) -> None:
        trace.note(ledger.who, event, **about)

    writers = {name: _separate(way, partial(tell, output=name)) for name, way in ways.writers.items()}
    joiners = {name: _joiner(way, partial(tell, output=name)) for name, way in ways.joiners.items()}
    return Prepared(writers, joiners)


def _way(prepared: Prepared, name: str) -> dict[str, Any]:
    if name in prepared.joiners:
        return {"kind": "joiner"}
    way = prepared.writers[name]
    if isinstance(way, Once):
        return {"kind": "lander", "writes_to": way.lander.writes_to, "expires": way.lander.kept_s is not None}
    return {"kind": "writer"}


def _separate(way: Writer | Once, tell: Tell) -> Writer | Once:
    if isinstance(way, Once):
        return replace(way, lander=_lander(way.lander, tell))

    def write(frame: DataFrame, batch: Batch) -> object:
        about = trace.batch_fields(batch)
        tell("write", **about)
        with _answering(tell, "wrote", **about):
            return way.write(frame, batch)

    return Writer(write)


def _lander(lander: Lander, tell: Tell) -> Lander:
    def seen(key: MarkKey) -> Seen:
        found = lander.seen(key)
        tell("look", mark=trace.mark_fields(found.mark), target=found.target)
        return found

    def land(key: MarkKey, seen: Seen, mark: OutputMark, staged: object, *late: object) -> str | None:
        marks = {"before": trace.mark_fields(seen.mark), "mark": trace.mark_fields(mark), "target": seen.target}
        tell("land", **marks, rows=staged is not None)
        with _answering(tell, "landed", **marks, rows=staged is not None):
            return lander.land(key, seen, mark, staged, *late)

    return replace(lander, seen=seen, land=land)


def _joiner(joiner: Joiner, tell: Tell) -> Joiner:
    def stage(frame: DataFrame, batch: Batch) -> Callable[[Any], object]:
        finish = joiner.stage(frame, batch)
        about = trace.batch_fields(batch)

        def finished(connection: Any) -> object:
            tell("join", **about)
            return finish(connection)

        return finished

    return replace(joiner, stage=stage)


@contextmanager
def _answering(tell: Tell, event: str, **about: Any) -> Iterator[None]:
    """Note how a write ended: done, surely not done, or unknown; no line if the process dies or is told to end."""
    try:
        yield
    except Exception as error:
        outcome = "not done" if isinstance(error, _REFUSED) else "unknown"
        outcome = "unknown" if isinstance(error, OutcomeUnknown) else outcome
        tell(event, **about, outcome=outcome, error=type(error).__name__)
        raise
    tell(event, **about, outcome="done")
