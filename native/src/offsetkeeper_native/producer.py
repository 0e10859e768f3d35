"""A compiled producer for offsetkeeper's tasks: rows of Arrow into Kafka, without a Python object for each.

It has the methods of confluent-kafka's producer that offsetkeeper uses. Nothing else is meant to use it.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, Structure, addressof, byref, c_char, c_char_p, c_int, c_int32, c_int64, c_size_t, c_void_p
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import offsetkeeper_native
from offsetkeeper_native import Unusable, __version__, _Array, _texts

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = ["INTERFACE", "Producer", "Unusable", "__version__", "columns", "library"]
INTERFACE = 2
"""Rises whenever an older offsetkeeper could not use this any more."""
_MOST_TOLD, _TEXT, _WHY = 20, 512, 1024
_NO_MEMORY = "there is no memory to write to Kafka"


class _Told(Structure):
    _fields_ = (("code", c_int32), ("text", c_char * _TEXT))


class _News(Structure):
    _fields_ = (
        *(("reports_count", c_int32), ("failed_count", c_int32)),
        *(("reports", _Told * _MOST_TOLD), ("failed", _Told * _MOST_TOLD)),
    )


_OURS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "ok_load_producer": (c_char_p, (c_void_p,)),
    "ok_open_producer": (c_void_p, (POINTER(c_char_p), POINTER(c_char_p), c_int, c_char_p, c_size_t)),
    "ok_client": (c_void_p, (c_void_p,)),
    "ok_news": (POINTER(_News), (c_void_p,)),
    "ok_forget_news": (None, (c_void_p,)),
    "ok_topic": (c_void_p, (c_void_p, c_char_p, POINTER(c_int))),
    "ok_produce": (c_int, (c_void_p, POINTER(_Array), POINTER(c_void_p), POINTER(c_int64))),
    "ok_send_offset": (
        c_void_p,
        (c_void_p, c_char_p, c_int64, POINTER(c_char_p), c_int, c_char_p, c_int, POINTER(c_int)),
    ),
    "ok_close_producer": (None, (c_void_p,)),
}
_THEIRS: dict[str, tuple[Any, tuple[Any, ...]]] = {  # of rdkafka.h, after "rd_kafka_"
    "init_transactions": (c_void_p, (c_void_p, c_int)),
    "begin_transaction": (c_void_p, (c_void_p,)),
    "commit_transaction": (c_void_p, (c_void_p, c_int)),
    "abort_transaction": (c_void_p, (c_void_p, c_int)),
    "error_code": (c_int, (c_void_p,)),
    "error_string": (c_char_p, (c_void_p,)),
    "error_is_fatal": (c_int, (c_void_p,)),
    "error_is_retriable": (c_int, (c_void_p,)),
    "error_txn_requires_abort": (c_int, (c_void_p,)),
    "error_destroy": (None, (c_void_p,)),
    "err2str": (c_char_p, (c_int,)),
    "last_error": (c_int, ()),
    "fatal_error": (c_int, (c_void_p, c_char_p, c_size_t)),
    "poll": (c_int, (c_void_p, c_int)),
    "flush": (c_int, (c_void_p, c_int)),
    "outq_len": (c_int, (c_void_p,)),
    "metadata": (c_int, (c_void_p, c_int, c_void_p, POINTER(c_void_p), c_int)),
    "metadata_destroy": (None, (c_void_p,)),
}


class _Libraries(NamedTuple):
    """The compiled part, and functions of librdkafka by their names after `rd_kafka_`."""

    ours: ctypes.CDLL
    theirs: Mapping[str, Any]


@cache
def library() -> _Libraries:
    """Return the compiled part, which has found the functions of librdkafka; and those that are called from here.

    Raises:
        Unusable: this machine cannot load it, or librdkafka is not one that it was tried with.
    """
    ours = offsetkeeper_native.library()
    try:
        from confluent_kafka import cimpl  # noqa: PLC0415 - what is missing is told by an error of ours

        library = ctypes.CDLL(cimpl.__file__)
        found = {name: getattr(library, f"rd_kafka_{name}") for name in _THEIRS}
        typed = [(getattr(ours, name), kinds) for name, kinds in _OURS.items()]
    except (ImportError, OSError, AttributeError) as error:
        raise Unusable(f"it cannot be loaded: {error}") from None
    for function, (result, arguments) in [*typed, *((found[name], kinds) for name, kinds in _THEIRS.items())]:
        function.restype, function.argtypes = result, arguments
    missing = ours.ok_load_producer(library._handle)  # noqa: SLF001 - ctypes has no other name for it
    if missing is not None:
        raise Unusable(f"librdkafka has no function {missing.decode()}")
    return _Libraries(ours, found)


def columns() -> Any:
    """Return the schema of rows: see `Producer.send`."""
    import pyarrow as pa  # noqa: PLC0415 - only who writes needs it

    pair = pa.struct([("key", pa.string()), ("value", pa.binary())])
    numbers = [("topic", pa.int32()), ("partition", pa.int32()), ("timestamp", pa.int64())]
    return pa.schema([*numbers, ("key", pa.binary()), ("value", pa.binary()), ("headers", pa.list_(pair))])


class Producer:
    """A transactional producer, for one thread at a time.

    Args:
        config: settings of librdkafka; and `error_cb`, which gets each error that the client reports, but for fatal
            ones, which the next call raises; and `on_delivery`, which gets the error of each message that was not
            delivered. Of many that come at once, only the first ones are told.

    Raises:
        KafkaException: librdkafka refuses the settings.
        Unusable: see `library`.
    """

    _made: int | None = None

    def __init__(self, config: Mapping[str, Any]) -> None:
        from confluent_kafka import KafkaError, KafkaException  # noqa: PLC0415 - as above

        self._ours, self._theirs = library()
        self._error, self._raised = KafkaError, KafkaException
        self._report: Callable[[Any], object] = config.get("error_cb", lambda _: None)
        self._failed: Callable[[Any, Any], object] = config.get("on_delivery", lambda *_: None)
        own = ("error_cb", "on_delivery", "log.queue")  # what the client logs goes nowhere here
        texts = {name: _text(value) for name, value in config.items() if name not in own}
        names, values = _texts(texts), _texts(texts.values())
        why = ctypes.create_string_buffer(_WHY)
        self._made = self._ours.ok_open_producer(names, values, len(texts), why, _WHY)
        if self._made is None:
            raise KafkaException(KafkaError(KafkaError._INVALID_ARG, why.value.decode(errors="replace")))  # noqa: SLF001
        self._topics: dict[str, int] = {}

    def __len__(self) -> int:
        """Return how many messages wait to be delivered, or to be told that they were not."""
        return int(self._theirs["outq_len"](self._client()))

    def send(self, topics: Sequence[str], rows: Any, wait: Callable[[], object]) -> None:
        """Hand rows over to be sent.

        Args:
            topics: names of topics.
            rows: a batch of Arrow with the schema of `columns`: `topic` is a number in `topics`, a `partition` of -1
                lets the partitioner choose, and a `timestamp` of 0 is the current time, else milliseconds. Only key,
                value and headers may be null, and no key of a header.
            wait: called where the queue is full; then the rest is tried again.

        Raises:
            KafkaException: librdkafka refuses a row; those before it were taken.
            MemoryError: there is not enough.
        """
        if rows.schema != columns():
            raise ValueError(f"the rows have the schema {rows.schema}")
        handles, array = (c_void_p * len(topics))(*map(self._topic, topics)), _Array()
        rows._export_to_c(addressof(array))  # noqa: SLF001 - the interface has no public name
        try:
            row = c_int64(0)
            while code := self._ours.ok_produce(self._open(), byref(array), handles, byref(row)):
                if code != self._error._QUEUE_FULL:  # noqa: SLF001 - librdkafka's name
                    self._check_fatal()
                    raise self._raised(self._error(code))
                wait()
        finally:
            self._ours.ok_release(byref(array))

    def poll(self, wait_s: float) -> None:
        """Wait for something to be told, and tell it.

        Raises:
            KafkaException: the client is broken for good; so with `flush`.
        """
        self._theirs["poll"](self._client(), round(wait_s * 1000))
        self._tell()
        self._check_fatal()

    def flush(self, wait_s: float) -> int:
        """Wait until all is delivered, or told that it was not. Return how many messages still wait."""
        self._theirs["flush"](self._client(), round(wait_s * 1000))
        self._tell()
        self._check_fatal()
        return len(self)

    def connect(self, wait_s: float) -> None:
        """Wait for an answer of a broker, on a connection that stays.

        Raises:
            KafkaException: none came in time.
        """
        found = c_void_p()
        code = self._theirs["metadata"](self._client(), 0, None, byref(found), round(wait_s * 1000))
        if found:
            self._theirs["metadata_destroy"](found)
        if code:
            raise self._raised(self._error(code))

    def init_transactions(self, wait_s: float) -> None:
        """As of confluent-kafka's producer; so the others below. All raise KafkaException."""
        self._transact("init_transactions", round(wait_s * 1000))

    def begin_transaction(self) -> None:
        """See `init_transactions`."""
        self._transact("begin_transaction")

    def send_offset_to_transaction(
        self, topic: str, offset: int, texts: Sequence[str], group: str, wait_s: float
    ) -> None:
        """Send an offset of the topic's partitions from 0 on, each with its text, for a group."""
        raw, names, short = _texts(texts), _texts([topic, group]), c_int()
        error = self._ours.ok_send_offset(
            *(self._open(), names[0], offset, raw, len(texts), names[1], round(wait_s * 1000), byref(short))
        )
        if short:
            raise MemoryError(_NO_MEMORY)
        self._ended(error)

    def commit_transaction(self, wait_s: float) -> None:
        """See `init_transactions`."""
        self._transact("commit_transaction", round(wait_s * 1000))

    def abort_transaction(self, wait_s: float) -> None:
        """See `init_transactions`."""
        self._transact("abort_transaction", round(wait_s * 1000))

    def close(self) -> None:
        """Close the client; messages that wait are dropped."""
        made, self._made = self._made, None
        if made is not None:
            self._ours.ok_close_producer(made)

    __del__ = close

    def _topic(self, name: str) -> int:
        if name not in self._topics:
            short = c_int()
            handle = self._ours.ok_topic(self._open(), *_texts([name]), byref(short))
            if short:
                raise MemoryError(_NO_MEMORY)
            if handle is None:
                raise self._raised(self._error(self._theirs["last_error"]()))
            self._topics[name] = handle
        return self._topics[name]

    def _transact(self, name: str, *arguments: Any) -> None:
        self._ended(self._theirs[name](self._client(), *arguments))

    def _ended(self, error: int | None) -> None:
        """Tell what came meanwhile, and raise an error of librdkafka's, where there is one."""
        self._tell()
        if error is None:
            return
        text = self._theirs["error_string"](error).decode(errors="replace")
        flags = ("error_is_fatal", "error_is_retriable", "error_txn_requires_abort")
        made = self._error(
            self._theirs["error_code"](error), text, *(bool(self._theirs[name](error)) for name in flags)
        )
        self._theirs["error_destroy"](error)
        raise self._raised(made)

    def _check_fatal(self) -> None:
        text = ctypes.create_string_buffer(_WHY)
        if code := self._theirs["fatal_error"](self._client(), text, _WHY):
            raise self._raised(self._error(code, text.value.decode(errors="replace"), fatal=True))

    def _tell(self) -> None:
        made = self._open()
        news = self._ours.ok_news(made).contents
        if not (news.reports_count or news.failed_count):
            return
        reports, failed = (
            [
                self._error(each.code, (each.text or self._theirs["err2str"](each.code)).decode(errors="replace"))
                for each in all_[:count]
            ]
            for all_, count in ((news.reports, news.reports_count), (news.failed, news.failed_count))
        )
        self._ours.ok_forget_news(made)
        for report in reports:
            self._report(report)
        for failure in failed:
            self._failed(failure, None)

    def _client(self) -> int:
        return int(self._ours.ok_client(self._open()))

    def _open(self) -> int:
        if self._made is None:
            raise ValueError("the producer is closed")
        return self._made


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
