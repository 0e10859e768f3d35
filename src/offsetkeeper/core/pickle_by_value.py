"""Pickles code together with the job, for executors without offsetkeeper."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

_lock = threading.Lock()


def ship(work: Callable[..., Any], arguments: tuple[Any, ...], modules: tuple[ModuleType, ...]) -> Any:
    """Return a function for `mapInArrow` that calls `work(*arguments, batches)` and contains the code of `modules`."""
    return _unpacked(dumps((work, arguments), modules), work.__name__)


def dumps(value: Any, modules: tuple[ModuleType, ...]) -> bytes:
    """Return `value` pickled, together with the code of `modules` that it uses."""
    cloudpickle: Any = import_module("pyspark.cloudpickle")  # here, because `import offsetkeeper` must not load it
    with _lock:
        for module in modules:
            cloudpickle.register_pickle_by_value(module)
        try:
            return bytes(cloudpickle.dumps(value))
        finally:
            for module in modules:
                cloudpickle.unregister_pickle_by_value(module)


def freezing() -> Callable[[], None]:
    """Return a function for the end of a task, which spares a worker's process most of its garbage collections.

    Spark's worker collects after each task, and looks at all that its libraries have loaded: 30 ms of CPU. Once in a
    process all that is there is left out of it. Not after each task: what later ones leave behind must be found.
    """

    # A nested function is pickled by value: it must not use globals of this file.
    def freeze() -> None:
        import gc  # noqa: PLC0415 - runs on executors
        import sys  # noqa: PLC0415 - as above

        if "_offsetkeeper_frozen" not in sys.__dict__:  # to count what is frozen takes as long as to collect
            sys.__dict__["_offsetkeeper_frozen"] = True
            gc.freeze()

    return freeze


def _unpacked(shipped: bytes, name: str) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    freeze = freezing()

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pickle  # noqa: PLC0415 - runs on executors, and loads the driver's data

        work, arguments = pickle.loads(shipped)  # noqa: S301 - as above
        yield from work(*arguments, batches)
        freeze()

    run.__name__ = name  # Spark shows this name in its plans
    return run
