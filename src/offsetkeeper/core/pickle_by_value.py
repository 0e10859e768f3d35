"""Pickles code together with the job, for executors without offsetkeeper."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

_lock = threading.Lock()


def ship(work: Callable[..., Any], arguments: tuple[Any, ...], modules: tuple[ModuleType, ...]) -> Any:
    """Return a function for `mapInArrow` that calls `work(*arguments, batches)` and contains the code of `modules`.

    A worker's process loads the code once, so it has a memory from task to task.
    """
    return _unpacked(_code(work, modules), dumps(arguments, modules), work.__name__)


@cache
def _code(work: Callable[..., Any], modules: tuple[ModuleType, ...]) -> bytes:
    """Return a function with the code of its modules: to pickle it takes longer than all else before a small batch."""
    return dumps(work, modules)


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


def _unpacked(code: bytes, given: bytes, name: str) -> Callable[[Any], Iterator[pa.RecordBatch]]:
    # A nested function is pickled by value: it must not use globals of this file.
    def run(batches: Any) -> Iterator[pa.RecordBatch]:
        import gc  # noqa: PLC0415 - runs on executors
        import pickle  # noqa: PLC0415 - as above, and loads the driver's data
        import sys  # noqa: PLC0415 - as above

        kept = sys.__dict__.setdefault("_offsetkeeper", {})  # as long as the worker's process lives
        work = kept[code] if code in kept else pickle.loads(code)  # noqa: S301 - as above
        yield from work(*pickle.loads(given), batches)  # noqa: S301 - as above
        if code not in kept:
            kept[code] = work
            # Spark's worker collects garbage after each task, and looks at all that its libraries have loaded: 30 ms of
            # CPU. What is there now is left out of it. Only once: what later tasks leave behind must be found.
            gc.freeze()

    run.__name__ = name  # Spark shows this name in its plans
    return run
