"""Bad orders of the demo, and the table that gets them: none can be written into the output."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

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
    """

    kind: str
    key: bytes
    value: bytes


class Letter(NamedTuple):
    """A dead letter, or the record that it should have."""

    topic: str
    partition: int
    offset: int
    key: bytes
    value: bytes


def _order(number: int, **changes: Any) -> bytes:
    return json.dumps({"id": number, "amount": 1, **changes}).encode()


KINDS: Mapping[str, Callable[[int], tuple[bytes, bytes]]] = {
    "no JSON": lambda number: (b"customer", b'{"id": %d' % number),
    "no amount": lambda number: (b"customer", _order(number, amount=None)),
    "an amount below zero": lambda number: (b"customer", _order(number, amount=-number)),
    "a customer that is not UTF-8": lambda number: (b"caf\xe9", _order(number)),
}
"""By what is wrong with them: return key and value, from a number."""


def due(rate: int) -> Iterator[tuple[int, Bad]]:
    """Yield bad orders and the numbers of the orders behind which they are produced: some of each kind.

    Args:
        rate: orders in a second.
    """
    numbers = count(rate, _EVERY_S * rate)
    for _ in range(_TIMES):
        for kind, make in KINDS.items():
            number = next(numbers)
            yield number, Bad(kind, *make(number))


def wrong(produced: Iterable[Letter], found: Sequence[Letter]) -> int:
    """Return how many bad orders are not among the dead letters exactly once and unchanged, or are not bad at all."""
    wanted = Counter(produced)
    return (wanted - Counter(found)).total() + (Counter(found) - wanted).total()
