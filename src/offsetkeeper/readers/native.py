"""Messages as `readers/messages` gives them, by the compiled reader where it can be used. Runs on executors.

That is a distribution of its own, offsetkeeper-native, in the folder `native`: executors may have it, and need not.
"""

from __future__ import annotations

import logging
import platform
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from offsetkeeper.core.environment import monotonic
from offsetkeeper.errors import MissingExtra
from offsetkeeper.kafka.own_settings import NATIVE, TOKEN_PROVIDER
from offsetkeeper.readers.flow import Flow
from offsetkeeper.readers.messages import NO_EPOCHS, Messages, Partition, PythonMessages, Rest, Taken
from offsetkeeper.readers.source import open_consumer
from offsetkeeper.readers.turns import Range, turns
from offsetkeeper.readers.unreadable import unreadable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from offsetkeeper.readers.source import Source

log = logging.getLogger("offsetkeeper.readers")
_INTERFACE = 4
# What needs confluent-kafka's own client: Python makes the tokens, and plugins may change whatever a client does.
_PYTHON_ONLY = (TOKEN_PROVIDER, "plugin.library.paths")


def open_messages(
    source: Source,
    ranges: Sequence[Range],
    report: Callable[[Any], None],
    epochs: Mapping[Partition, int] = NO_EPOCHS,
) -> Messages:
    """Return a client that reads ranges: a compiled one where it can be used, else one of confluent-kafka.

    The log says which one reads, and why: as a warning where the compiled one is installed, and cannot be used.

    Args: see `PythonMessages`.

    Raises:
        MissingExtra: the compiled one is required, and cannot be used here.
        SettingsError, TokenUnavailable: see `open_client`.
    """
    compiled, why, level = _find(source.options)
    if compiled is not None:
        log.info("the compiled reader reads: offsetkeeper-native %s", compiled.__version__)
        return NativeMessages(compiled, source, ranges, report, epochs)
    if source.options.get(NATIVE) == "required":
        raise MissingExtra(
            f"the compiled reader cannot be used by {sys.executable} on {platform.node()}: {why}. Install "
            f"offsetkeeper-native for the Python of every executor, or leave {NATIVE} out"
        )
    log.log(level, "the reader in Python reads: %s", why)
    return PythonMessages(source, ranges, report, epochs)


def _find(options: Mapping[str, str]) -> tuple[Any, str, int]:
    """Return the compiled reader's module or None; why it is not used; and how much that is to be logged."""
    if options.get(NATIVE) == "never":
        return None, f"{NATIVE} is never", logging.INFO
    for name in _PYTHON_ONLY:
        if name in options:
            return None, f"the setting {name} needs it", logging.INFO
    try:
        found: Any = import_module("offsetkeeper_native")
    except ImportError as error:
        missing = isinstance(error, ModuleNotFoundError) and error.name == "offsetkeeper_native"
        return None, "offsetkeeper-native is not installed" if missing else str(error), logging.INFO
    if found.INTERFACE != _INTERFACE:
        return None, f"offsetkeeper-native {found.__version__} is not of this release of offsetkeeper", logging.WARNING
    try:
        found.library()
    except found.Unusable as error:
        return None, f"offsetkeeper-native cannot be used: {error}", logging.WARNING
    return found, "", logging.INFO


class NativeMessages:
    """See `Messages`.

    Args:
        compiled: the module.
        source, ranges, report, epochs: see `PythonMessages`.

    Raises:
        SettingsError: see `open_client`.
    """

    def __init__(
        self,
        compiled: Any,
        source: Source,
        ranges: Sequence[Range],
        report: Callable[[Any], None],
        epochs: Mapping[Partition, int] = NO_EPOCHS,
    ) -> None:
        self._compiled, self._source, self._report = compiled, source, report
        self._asked: Any = None
        self._partitions = [each[:2] for each in ranges]
        self._flow = Flow(ranges)
        self._reader = open_consumer(source, report, make=self._make)
        self._reader.assign(ranges, turns(ranges), [epochs.get(each) for each in self._partitions])
        self.unread: dict[Partition, Rest] = dict(zip(self._partitions, self._reader.places, strict=True))
        self._steer([], 0)

    @property
    def awaited(self) -> Partition | None:
        """See `Messages`."""
        return None if self._reader.awaited is None else self._partitions[self._reader.awaited]

    def take(self, wait_s: float) -> Taken:
        """See `Messages.take`."""
        before = monotonic()
        most = self._source.batch_rows, self._source.batch_bytes
        try:
            batch, events, done, arrived, held = self._reader.take(wait_s if self.unread else 0, *most)
        except self._compiled.Unreadable as error:
            raise unreadable(error.place, error.what) from None
        waited_s = monotonic() - before
        for number in done:
            self.unread.pop(self._partitions[number], None)
        self._steer(done, held)
        return Taken(batch, events, waited_s, arrived=bool(arrived or done))

    def _make(self, given: dict[str, Any]) -> Any:
        return self._compiled.Reader(given, headers=self._source.headers, raw_times=self._source.raw_times)

    def _steer(self, arrived: Sequence[int], held: int) -> None:
        """Let the client fetch what is to be fetched now."""
        change = self._flow.change(self._reader.awaited, arrived, lambda number: self._reader.places[number].held, held)
        if change.begin:
            self._reader.begin(change.begin)
        if change.pause and self.unread:
            self._reader.pause(change.pause)
        if change.resume:
            self._reader.resume(change.resume)

    def cluster_id(self, wait_s: float) -> str | None:
        """See `Messages.cluster_id`."""
        found: str | None = self._reader.cluster_id(wait_s)
        return found

    def consumer(self) -> Any:
        """See `Messages.consumer`. It is made when it is asked for: only what has gone wrong needs it."""
        self._asked = self._asked or open_consumer(self._source, self._report)
        return self._asked

    def close(self) -> None:
        """See `Messages.close`."""
        self._reader.close()
        if self._asked is not None:
            self._asked.close()
