"""Which brokers count as those that do not verify transactions. `make kafkas` shows that of real ones this is right."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from offsetkeeper.kafka.verification import may_tear, unverified

VERIFIES, PROTOCOL = "transaction.partition.verification.enable", "inter.broker.protocol.version"


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({PROTOCOL: "2.8-IV1"}, f"{PROTOCOL}=2.8-IV1"),
        ({PROTOCOL: "3.9-IV0", VERIFIES: "true"}, ""),
        ({VERIFIES: "true"}, ""),
        ({VERIFIES: "false"}, f"{VERIFIES}=false"),
        ({"offsets.retention.minutes": "10080"}, ""),
        ({}, ""),
    ],
    ids=["before 3.6", "3.9", "4", "switched off", "no Kafka of Apache's", "settings may not be read"],
)
def test_a_broker_is_named_only_if_its_settings_tell(settings: Mapping[str, str], told: str) -> None:
    """One that shows few settings, such as a cloud's, may well verify."""
    found = unverified({"1": ("a", 1), "2": ("b", 2)}, {"1": settings, "2": {VERIFIES: "true"}})
    assert found == ({"a:1": told} if told else {})


def test_each_broker_is_named_with_what_tells() -> None:
    assert "transactions: a:1 (x=false), b:2 (y=2.8). A record" in may_tear({"a:1": "x=false", "b:2": "y=2.8"})
