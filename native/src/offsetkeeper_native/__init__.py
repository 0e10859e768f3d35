"""A compiled reader of Kafka for offsetkeeper's tasks: records as Arrow, without a Python object for each.

It uses the librdkafka that confluent-kafka has loaded, through clients of its own. offsetkeeper takes it by itself
where it is installed; nothing else is meant to use it.
"""

from __future__ import annotations

import ctypes
from array import array
from ctypes import POINTER, Structure, addressof, byref, c_char_p, c_int, c_int32, c_int64, c_size_t, c_void_p
from functools import cache
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

__version__ = "0.1.0"
INTERFACE = 4
"""Rises whenever an older offsetkeeper could not use this any more."""
OLDEST, NEWEST = (2, 6), (2, 16)
"""The releases of librdkafka that it was tried with."""
_NO_MEMORY, _BAD_TIMESTAMP = 1, 2
_ELSEWHERE, _REPORT = -1, -2
_SHORT = -(2**31)
_ANY_EPOCH = 2**31
_WHY = 1024
_BEGIN, _PAUSE, _RESUME = range(3)
_TURNS = 1024


class Unusable(Exception):
    """The reader cannot be used in this process; the text says why."""


class Unreadable(Exception):
    """A record that cannot be given.

    Attributes:
        place: its topic, partition and offset.
        what: what it has that cannot be given.
    """

    def __init__(self, place: tuple[str, int, int], what: str) -> None:
        super().__init__("{} {}: the record at offset {} {}".format(*place, what))
        self.place, self.what = place, what


class Place(Structure):
    """What has not come of a range: the next offset wanted, and its end; and bytes that have come and wait.

    A record of a leader epoch after `epoch` is told as an error: the log was cut and written again.
    """

    _fields_ = (("position", c_int64), ("end", c_int64), ("held", c_int64), ("epoch", c_int64))


class Taken(NamedTuple):
    """What came of one call of `take`.

    Attributes:
        batch: records whose turn it was, or None.
        events: what else was told, each as an error of confluent-kafka's, a partition and an offset.
        done: the numbers of ranges of which all has come just now.
        arrived: records that are wanted and came, and one more if the client has fetched on: it gives nothing of
            aborted transactions. They may not be those of the batch.
        held: bytes that wait for their turn.
    """

    batch: Any
    events: list[tuple[Any, tuple[str, int] | None, int]]
    done: list[int]
    arrived: int
    held: int


class _Event(Structure):
    _fields_ = (("code", c_int32), ("place", c_int32), ("offset", c_int64), ("text", c_char_p))


class _Taken(Structure):
    _fields_ = (
        ("rows", c_int64),
        *(("events_count", c_int64), ("events", POINTER(_Event))),
        *(("done_count", c_int64), ("done", POINTER(c_int32))),
        *(("bad_place", c_int32), ("bad_offset", c_int64), ("bad_ms", c_int64)),
        *(("arrived", c_int64), ("held", c_int64), ("turn", c_int64)),
    )


class _Array(Structure):
    """Of the Arrow C data interface."""

    _fields_ = (
        *((name, c_int64) for name in ("length", "nulls", "offset", "buffers_count", "children_count")),
        *((name, c_void_p) for name in ("buffers", "children", "dictionary", "release", "private")),
    )


_FUNCTIONS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "ok_load": (c_char_p, (c_void_p,)),
    "ok_whole_names": (c_int, ()),
    "ok_describe": (c_char_p, (c_int,)),
    "ok_text": (c_int64, (c_char_p, ctypes.c_size_t, c_char_p)),
    "ok_open": (c_void_p, (POINTER(c_char_p), POINTER(c_char_p), c_int, c_int, c_int, c_char_p, c_size_t)),
    "ok_assign": (c_int, (c_void_p, POINTER(c_char_p), POINTER(c_int32), POINTER(Place), c_int32)),
    "ok_turns": (None, (c_void_p, c_void_p, c_int64)),
    "ok_fetch": (c_int, (c_void_p, c_int, POINTER(c_int32), c_int32)),
    "ok_take": (c_int, (c_void_p, c_int, c_int64, c_int64, POINTER(_Array), POINTER(_Taken))),
    "ok_cluster": (None, (c_void_p, c_int, c_char_p, c_size_t)),
    "ok_release": (None, (POINTER(_Array),)),
    "ok_close": (None, (c_void_p,)),
}


@cache
def library() -> ctypes.CDLL:
    """Return the compiled part, which has found the functions of librdkafka.

    Raises:
        Unusable: this machine cannot load it, or librdkafka is not one that it was tried with.
    """
    try:
        from confluent_kafka import cimpl  # noqa: PLC0415 - what is missing is told by an error of ours

        theirs = ctypes.CDLL(cimpl.__file__)  # it looks for names in the libraries of a library too
        version = int(theirs.rd_kafka_version())
        ours = ctypes.CDLL(str(Path(__file__).with_name("native.so")))
        for name, (result, arguments) in _FUNCTIONS.items():
            function = getattr(ours, name)
            function.restype, function.argtypes = result, arguments
    except (ImportError, OSError, AttributeError) as error:
        raise Unusable(f"it cannot be loaded: {error}") from None
    found = version >> 24, version >> 16 & 0xFF
    if not OLDEST <= found <= NEWEST:
        raise Unusable(
            f"librdkafka is {'.'.join(map(str, found))}, and it was tried with "
            f"{'.'.join(map(str, OLDEST))} to {'.'.join(map(str, NEWEST))}"
        )
    missing = ours.ok_load(theirs._handle)  # noqa: SLF001 - ctypes has no other name for it
    if missing is not None:
        raise Unusable(f"librdkafka has no function {missing.decode()}")
    return ours


class Reader:
    """Reads ranges by one client of its own, in one thread at a time.

    Args:
        config: settings of librdkafka, each a text; and `error_cb`, which gets each error that the client reports.
        headers: whether batches have the column `headers`.
        raw_times: whether `timestamp` is Kafka's milliseconds as a number.

    Attributes:
        places: of the ranges, which `take` moves.
        awaited: the number of the range whose turn it is; None where all turns are over.

    Raises:
        KafkaException: librdkafka refuses the settings.
        Unusable: see `library`.
    """

    _client: int | None = None

    def __init__(self, config: Mapping[str, Any], *, headers: bool, raw_times: bool = False) -> None:
        from confluent_kafka import KafkaError, KafkaException  # noqa: PLC0415 - as above

        self._library, self._error = library(), KafkaError
        self._report: Callable[[Any], None] = config.get("error_cb", lambda _: None)
        texts = {name: value for name, value in config.items() if name != "error_cb"}
        names, values = _texts(texts), _texts(texts.values())
        why = ctypes.create_string_buffer(_WHY)
        self._client = self._library.ok_open(names, values, len(texts), headers, raw_times, why, _WHY)
        if self._client is None:
            raise KafkaException(KafkaError(KafkaError._INVALID_ARG, why.value.decode(errors="replace")))  # noqa: SLF001
        self._schema = _schema(headers=headers, raw_times=raw_times)
        self._partitions: list[tuple[str, int]] = []
        self.places: Any = ()
        self.awaited: int | None = None
        self._next = array("q")

    def assign(
        self,
        ranges: Sequence[tuple[str, int, int, int]],
        turns: Iterator[tuple[int, int]],
        epochs: Sequence[int | None],
    ) -> None:
        """Say what is to be read; once for a reader.

        Args:
            ranges: `(topic, partition, start, end)`, sorted, none empty, at most one of a partition.
            turns: whose records are given next, by the number of the range, and the offset before which its turn ends.
            epochs: of each range the newest leader epoch that its records may have; None where it is not known.
        """
        if self._partitions:
            raise ValueError("a reader reads what it was given first")
        self._partitions = [each[:2] for each in ranges]
        if self._partitions != sorted({*self._partitions}):
            raise ValueError("ranges are not sorted, or a partition comes twice")
        newest = [_ANY_EPOCH if epoch is None else epoch for epoch in epochs]
        made = (Place(*each[2:], 0, epoch) for each, epoch in zip(ranges, newest, strict=True))
        places = (Place * len(ranges))(*made)  # who calls and C share them
        self.places = places
        topics, numbers = _texts(each[0] for each in ranges), (c_int32 * len(ranges))(*(each[1] for each in ranges))
        self._check(self._library.ok_assign(self._open(), topics, numbers, places, len(ranges)))
        self._turns = turns
        self._go_on(0)

    def begin(self, numbers: Sequence[int]) -> None:
        """Begin to fetch these ranges.

        Raises:
            KafkaException: librdkafka refuses it; so with `pause` and `resume`.
        """
        self._fetch(_BEGIN, numbers)

    def pause(self, numbers: Sequence[int]) -> None:
        """Fetch no more of these ranges, for now."""
        self._fetch(_PAUSE, numbers)

    def resume(self, numbers: Sequence[int]) -> None:
        """Fetch these ranges on, from the next offset wanted."""
        self._fetch(_RESUME, numbers)

    def take(self, wait_s: float, rows: int, size: int) -> Taken:
        """Wait for a message where nothing can be given, and take besides what is there already.

        Args:
            wait_s: seconds to wait at most.
            rows: of the batch, at most.
            size: of the batch in bytes, at most; one record alone may have more.

        Raises:
            Unreadable: a record has a timestamp that Arrow's microseconds cannot hold, or headers that cannot be read.
            MemoryError: there is not enough. After each of these errors the reader can only be closed.
        """
        from pyarrow import RecordBatch  # noqa: PLC0415 - only who reads needs it

        array, taken, client = _Array(), _Taken(), self._open()
        try:
            failed = self._library.ok_take(client, round(wait_s * 1000), rows, size, byref(array), byref(taken))
            if failed:
                raise self._failure(failed, taken)
            batch = RecordBatch._import_from_c(addressof(array), self._schema) if taken.rows else None  # noqa: SLF001
        finally:
            self._library.ok_release(byref(array))  # does nothing where there is none, or Arrow has taken it over
        self._go_on(taken.turn)
        events = self._told(taken.events[: taken.events_count])
        return Taken(batch, events, taken.done[: taken.done_count], taken.arrived, taken.held)

    def cluster_id(self, wait_s: float) -> str | None:
        """Return Kafka's id of the cluster that the client reads; None if it has none, or does not tell it in time."""
        found = ctypes.create_string_buffer(_WHY)
        self._library.ok_cluster(self._open(), round(wait_s * 1000), found, _WHY)
        return found.value.decode(errors="replace") or None

    def close(self) -> None:
        """Close the client. What was taken stays."""
        client, self._client = self._client, None
        if client is not None:
            self._library.ok_close(client)

    __del__ = close

    def _told(self, events: Sequence[Any]) -> list[tuple[Any, tuple[str, int] | None, int]]:
        found = []
        for event in events:
            text = (event.text or self._library.ok_describe(event.code)).decode(errors="replace")
            error = self._error(event.code, text)
            if event.place == _REPORT:
                self._report(error)
            else:
                where = None if event.place == _ELSEWHERE else self._partitions[event.place]
                found.append((error, where, event.offset))
        return found

    def _go_on(self, turn: int) -> None:
        """Say whose turns come next, where those before are over."""
        if 2 * turn == len(self._next):
            self._next = array("q", chain.from_iterable(islice(self._turns, _TURNS)))  # C reads it where it is
            self._library.ok_turns(self._open(), self._next.buffer_info()[0], len(self._next) // 2)
            turn = 0
        self.awaited = self._next[2 * turn] if self._next else None

    def _fetch(self, what: int, numbers: Sequence[int]) -> None:
        self._check(self._library.ok_fetch(self._open(), what, (c_int32 * len(numbers))(*numbers), len(numbers)))

    def _open(self) -> int:
        if self._client is None:
            raise ValueError("the reader is closed")
        return self._client

    def _check(self, failed: int) -> None:
        from confluent_kafka import KafkaException  # noqa: PLC0415 - as above

        if failed == _SHORT:
            raise MemoryError("there is no memory to read Kafka")
        if failed:
            raise KafkaException(self._error(failed, self._library.ok_describe(failed).decode()))

    def _failure(self, failed: int, taken: _Taken) -> Exception:
        if failed == _NO_MEMORY:
            return MemoryError("there is no memory to read Kafka")
        place = *self._partitions[taken.bad_place], taken.bad_offset
        if failed == _BAD_TIMESTAMP:
            return Unreadable(place, f"has the time {taken.bad_ms} ms since 1970, which Spark's timestamp cannot hold")
        return Unreadable(
            place,
            "has headers that librdkafka cannot read: more than 100,000, or they are damaged. Read without headers, or "
            "with reader='connector'",
        )


def text(raw: bytes) -> str:
    """Return bytes as the text that Java makes of them: what is not UTF-8 becomes U+FFFD."""
    to = ctypes.create_string_buffer(3 * len(raw) + 1)
    size = library().ok_text(raw, len(raw), to)
    return to.raw[:size].decode()


def _texts(texts: Any) -> Any:
    """Return texts as C has them.

    Raises:
        ValueError: one has a NUL in it or is not UTF-8.
    """
    raw = [each.encode() for each in texts]
    if any(b"\0" in each for each in raw):
        raise ValueError("a text has a NUL in it")
    return (c_char_p * len(raw))(*raw)


def _schema(*, headers: bool, raw_times: bool) -> Any:
    import pyarrow as pa  # noqa: PLC0415 - as above

    time = pa.int64() if raw_times else pa.timestamp("us", "UTC")
    pair = pa.struct([("key", pa.string()), ("value", pa.binary())])
    fields = [
        *(("key", pa.binary()), ("value", pa.binary()), ("topic", pa.string()), ("partition", pa.int32())),
        *(("offset", pa.int64()), ("timestamp", time), ("timestampType", pa.int32())),
    ]
    return pa.schema([*fields, ("headers", pa.list_(pair))] if headers else fields)
