"""Keeps a thread from logging secrets by the loggers of other libraries."""

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
    """Let this thread log nothing in the block by loggers with these names: at DEBUG they log secrets.

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
