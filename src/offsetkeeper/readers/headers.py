"""Headers of records as Arrow, as Spark's own source has them. Runs on executors."""

from __future__ import annotations

import re
from itertools import accumulate, chain
from typing import TYPE_CHECKING, Any

from offsetkeeper.readers.unreadable import unreadable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

_HALF_PAIR = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]?")  # three bytes for UTF-16's; Java takes them for one character
Pairs = list[tuple[str, bytes | None]]


def headers_of(messages: Sequence[Any]) -> pa.Array:
    """Return the headers of messages. One without any has null, not an empty list, as with Spark's source.

    A key is text; what is not UTF-8 in it becomes U+FFFD, as with Spark's source. librdkafka ends a key at a NUL.

    Args:
        messages: of confluent-kafka; they may have been given to `sizes_of` before.

    Raises:
        RecordUnreadable: a record has several keys that are not UTF-8, and the client library does not give them.
    """
    import pyarrow as pa  # noqa: PLC0415 - only executors need it

    of_messages = list(_pairs_of(messages))
    ends = list(accumulate(len(each or ()) for each in of_messages))
    starts = [end - len(each) if each else None for each, end in zip(of_messages, ends, strict=True)]
    pairs = list(chain.from_iterable(each or () for each in of_messages))
    structs = pa.StructArray.from_arrays(
        [pa.array([key for key, _ in pairs], pa.string()), pa.array([value for _, value in pairs], pa.binary())],
        ["key", "value"],
    )
    return pa.ListArray.from_arrays(pa.array([*starts, len(pairs)], pa.int32()), structs)


def sizes_of(messages: Sequence[Any]) -> list[int]:
    """Return how many bytes the headers of each message have, keys and values; it raises what `headers_of` does."""
    return [sum(len(key) + len(value or b"") for key, value in pairs or ()) for pairs in _pairs_of(messages)]


def _pairs_of(messages: Sequence[Any]) -> Iterator[Pairs | None]:
    from confluent_kafka import Message  # noqa: PLC0415 - only executors need it

    # By `map`, which always looks whether the call has failed. A call that Python has optimised does not, and what this
    # one returns then crashes the process.
    found = map(Message.headers, messages)
    for message in messages:
        try:
            pairs: Any = next(found)
        except SystemError as error:
            pairs = _mended(message, error.__cause__)
            message.set_headers(pairs)  # for the next call
        yield pairs


def _mended(message: Any, cause: BaseException | None) -> Pairs:
    """Return the headers of a message that has a key that is not UTF-8.

    confluent-kafka fails for them at the first call, and tells the bytes of the last such key. At the second it returns
    pairs that have nothing at all in the place of such a key. To touch that place would crash, so it is seen by `repr`.
    """
    pairs = message.headers() if isinstance(cause, UnicodeDecodeError) else []
    broken = [repr(pair).startswith("(<NULL>") for pair in pairs]
    if sum(broken) != 1 or not isinstance(cause, UnicodeDecodeError):
        raise unreadable(
            (message.topic(), message.partition(), message.offset()),
            "has header keys that are not UTF-8, and the client library does not give them: read without headers, or "
            "with reader='connector'",
        )
    key = _HALF_PAIR.sub("\ufffd".encode(), bytes(cause.object)).decode(errors="replace")
    return [(key if lacks else pair[0], pair[1]) for pair, lacks in zip(pairs, broken, strict=True)]
