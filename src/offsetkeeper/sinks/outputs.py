"""Several outputs of one batch, each with a name of its own."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from offsetkeeper.core.model import check_output
from offsetkeeper.errors import SettingsError

if TYPE_CHECKING:
    from offsetkeeper.sinks import Sink
    from offsetkeeper.sinks.functions import Process


class Outputs:
    """Several sinks, written one after the other in the order given: `Outputs(orders=Table(…), audit=Function(…))`.

    The ledger marks each output that has the batch, under the output's name: when the batch is tried again, by this run
    or the next, that output is passed over. So an output keeps its name for as long as it exists. Outputs that share
    the store's transaction need no mark: they are written last, all of them in the one that commits the offsets.

    The function beside it returns a frame for all, or a dict with a frame for each name.

    Raises:
        SettingsError: there is none, one is no sink, or a name is wrong.
    """

    def __init__(self, **sinks: Sink | Process) -> None:
        from offsetkeeper.sinks import as_sink  # noqa: PLC0415 - this file is a part of it

        if not sinks:
            raise SettingsError("Outputs() has no output: write Outputs(orders=Table(…), audit=Function(…))")
        self.sinks: Mapping[str, Sink] = MappingProxyType(
            {check_output(name): as_sink(sink) for name, sink in sinks.items()}
        )

    def __repr__(self) -> str:
        return f"Outputs({', '.join(f'{name}={sink!r}' for name, sink in self.sinks.items())})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, (dict(self.sinks),)


def _again(sinks: dict[str, Sink]) -> Outputs:
    return Outputs(**sinks)
