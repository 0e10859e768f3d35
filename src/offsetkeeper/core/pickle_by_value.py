"""Code for executors that know nothing of offsetkeeper: it travels with the job."""

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
    """Return a function for `mapInArrow`: it calls `work(*arguments, batches)`, with the code of `modules` inside."""
    return _unpacked(dumps((work, arguments), modules), work.__name__)


def dumps(value: Any, modules: tuple[ModuleType, ...]) -> bytes:
    """Return `value` pickled, with the code of `modules` inside where it uses them."""
    cloudpickle: Any = import_module("pyspark.cloudpickle")  # here, as `import offsetkeeper` must not load it
    with _lock:
        for module in modules:
            cloudpickle.register_pickle_by_value(module)
        try:
            return bytes(cloudpickle.dumps(value))
        finally:
            for module in modules:
                cloudpickle.unregister_pickle_by_value(module)


def _unpacked(shipped: bytes, name: str) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    # A function inside a function is pickled by value: nothing in it may be a global of this file.
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pickle  # noqa: PLC0415 - runs on executors, and loads what the driver made

        work, arguments = pickle.loads(shipped)  # noqa: S301 - as above
        yield from work(*arguments, batches)

    run.__name__ = name  # which Spark shows in its plans
    return run
