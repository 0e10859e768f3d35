"""A bit that changed on the broker's disk ends a query with an error that names partition and offset."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fixtures.damage import flip
from offsetkeeper.errors import BrokerError
from structured.lab import StructuredLab


def test_a_damaged_record_ends_a_query_before_a_value_of_it_is_there(
    either: StructuredLab, topic: Callable[..., str]
) -> None:
    name = topic()
    for number in range(3):
        either.produce(name, f"value-{number}-" * 20)
    flip(either.kafka, name, b"-1-")
    with pytest.raises(BrokerError, match=rf"partition {name} 0\b.*offset 1\b"):
        either.follow(name, attempts=1)
    assert either.values == []
    assert "commit" not in either.events()
