"""Brokers that do not verify transactions (KIP-890): what arrives too late may count in a later transaction. Pure.

A request that is late is one of a transaction that was aborted since. From Kafka 3.6 on a broker asks the coordinator
whether the transaction is open, before it takes a record. The newer protocol of transactions (`transaction.version` 2,
Kafka 4.0) does not depend on that, but librdkafka does not speak it.
"""

from __future__ import annotations

from collections.abc import Mapping

_VERIFIES = "transaction.partition.verification.enable"
_PROTOCOL = "inter.broker.protocol.version"  # Kafka 4 has none, and what only looks like Kafka shows none

REMEDY = f"use brokers of Kafka 3.6 or newer, and leave {_VERIFIES} at true"


def unverified(nodes: Mapping[str, tuple[str, int]], settings: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """Return the brokers that do not verify transactions, by their addresses, each with the setting that tells.

    Args:
        nodes: host and port of each broker, by its id.
        settings: the settings of the brokers, by their ids, as far as they may be read.
    """
    told = {f"{host}:{port}": _telling(settings.get(node, {})) for node, (host, port) in nodes.items()}
    return {address: setting for address, setting in sorted(told.items()) if setting}


def may_tear(brokers: Mapping[str, str]) -> str:
    """Return a sentence that names brokers that do not verify transactions, and what may happen."""
    named = ", ".join(f"{address} ({setting})" for address, setting in brokers.items())
    return (
        f"these brokers do not verify transactions: {named}. A record that arrives after its transaction was aborted "
        "stays: it counts in its producer's next transaction, or holds back readers until someone aborts it (KIP-890)"
    )


def _telling(settings: Mapping[str, str]) -> str:
    if settings.get(_VERIFIES) == "false":
        return f"{_VERIFIES}=false"
    return f"{_PROTOCOL}={settings[_PROTOCOL]}" if _PROTOCOL in settings and _VERIFIES not in settings else ""
