"""Bad orders of the demo, and the table that gets them: none can be written into the output."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import count
from typing import Any, NamedTuple

LETTERS = "dead_letters"
CREATE = f"""create table {LETTERS} (
    topic text not null, partition integer not null, "offset" bigint not null, "timestamp" {{time}},
    "key" {{binary}}, value {{binary}}, error text not null, batch text not null
)"""
SELECT = f'select topic, partition, "offset", "key", value from {LETTERS}'  # noqa: S608 - a constant
SQLITE = {"time": "text", "binary": "blob"}
POSTGRESQL = {"time": "timestamptz", "binary": "bytea"}
_TIMES = 2  # of each kind
_EVERY_S = 3  # seconds: so that drivers are killed while a batch is cut


class Bad(NamedTuple):
    """A record that is no order.

    Attributes:
        kind: what is wrong with it.
        key: its key.
        value: its value.
        time_ms: its time, in milliseconds since 1970; 0 for now.
    """

    kind: str
    key: bytes
    value: bytes
    time_ms: int = 0


class Letter(NamedTuple):
    """A dead letter, or the record that it should have."""

    topic: str
    partition: int
    offset: int
    key: bytes
    value: bytes


def _order(number: int, **changes: Any) -> bytes:
    return json.dumps({"id": number, "amount": 1, **changes}).encode()


def _kinds(number: int) -> Iterator[Bad]:
    yield Bad("no JSON", b"customer", b'{"id": %d' % number)
    yield Bad("no amount", b"customer", _order(number, amount=None))
    yield Bad("an amount below zero", b"customer", _order(number, amount=-number))
    yield Bad("a customer that is not UTF-8", b"caf\xe9", _order(number))
    yield Bad("a time in nanoseconds", b"customer", _order(number), 1_700_000_000 * 10**9)  # Spark cannot hold it


KINDS = tuple(each.kind for each in _kinds(0))
"""What is wrong with bad orders."""
ANY_TIME = {"message.timestamp.after.max.ms": str(2**62)}
"""Setting of a topic that takes such times."""


def due(rate: int) -> Iterator[tuple[int, Bad]]:
    """Return bad orders and the numbers of the orders behind which they are produced: some of each kind.

    Args:
        rate: orders in a second.
    """
    numbers = count(rate, _EVERY_S * rate)
    return zip(numbers, (bad for number in range(_TIMES) for bad in _kinds(number)), strict=False)


def wrong(produced: Iterable[Letter], found: Sequence[Letter]) -> int:
    """Return how many bad orders are not among the dead letters exactly once and unchanged, or are not bad at all."""
    wanted = Counter(produced)
    return (wanted - Counter(found)).total() + (Counter(found) - wanted).total()
