"""What other libraries would log of a secret: a thread can have them say nothing meanwhile."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager


class _Thread(threading.local):
    def __init__(self) -> None:
        self.silent: Counter[str] = Counter()  # blocks end in any order: a generator may hold one open


_thread = _Thread()


@contextmanager
def silent(names: Collection[str]) -> Iterator[None]:
    """Have this thread log nothing by loggers with these names, which log at DEBUG what they are given.

    Other threads, such as a program's own, log as they do.
    """
    for name in names:
        logging.getLogger(name).addFilter(_is_logged)  # a second time it does nothing
    here = _thread.silent
    here.update(names)
    try:
        yield
    finally:
        here.subtract(names)


def _is_logged(record: logging.LogRecord) -> bool:
    return not _thread.silent[record.name]
