"""Settings of the Kafka client: checked before anything is touched, and hidden where they are secret."""

from __future__ import annotations

import re
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal, cast, get_args

from offsetkeeper.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Mapping

Isolation = Literal["read_committed", "read_uncommitted"]

NO_OPTIONS: Mapping[str, str] = MappingProxyType({})
_BROKER = re.compile(r"(?:[A-Za-z_]+://)?(?:\[[0-9a-fA-F:.%]+\]|[A-Za-z0-9._-]+)(?::(?P<port>\d{1,5}))?")
_SECRET = re.compile(r"password|secret|token|jaas|credential|\bpem\b|sasl\.username|oauthbearer\.config", re.IGNORECASE)
_SHORTEST_SECRET = 4
_OURS = {
    "bootstrap.servers": "give the brokers as their own setting",
    "metadata.broker.list": "give the brokers as their own setting",
    "isolation.level": "give the isolation as its own setting",
    "group.id": "readers name the group by themselves",
    "group.instance.id": "readers never join a group",
    "auto.offset.reset": "an offset that is gone is an error, never a jump",
    "enable.auto.commit": "offsets are committed by the ledger only",
    "enable.auto.offset.store": "offsets are committed by the ledger only",
    "enable.partition.eof": "readers need it, and set it",
}


def check_brokers(brokers: str) -> str:
    """Return `brokers` if it is a list `host:port,host:port,…` as Kafka clients take it; the port may be left out.

    Raises:
        SettingsError: it is not.
    """
    for broker in brokers.split(",") if isinstance(brokers, str) else [""]:
        match = _BROKER.fullmatch(broker.strip())
        if match is None or not 0 < int(match["port"] or 9092) < 2**16:
            raise SettingsError(f"{brokers!r} is no list of brokers: write host:port,host:port")
    return brokers


def check_isolation(isolation: str) -> Isolation:
    """Return `isolation` if it is one of Kafka's two levels.

    Raises:
        SettingsError: it is not.
    """
    if isolation not in get_args(Isolation):
        raise SettingsError(f"{isolation!r} is no isolation level: use one of {', '.join(get_args(Isolation))}")
    return cast("Isolation", isolation)


def check_options(options: Mapping[str, str]) -> dict[str, str]:
    """Return a copy of `options`, settings of librdkafka, if they are texts and none is offsetkeeper's own to set.

    Whether librdkafka knows each name is found out when a client is made of them.

    Raises:
        SettingsError: an option is no text, or is set by offsetkeeper itself.
    """
    for name, value in options.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise SettingsError(f"the Kafka option {name!r} must be a text with a text as its value")
        if name in _OURS:
            raise SettingsError(f"take the Kafka option {name} out: {_OURS[name]}")
    return dict(options)


def redact(text: str, options: Mapping[str, str]) -> str:
    """Return `text` with the value of every secret option replaced by `***`.

    Values of fewer than 4 characters stay: any text has them by chance.
    """
    for name, value in options.items():
        if len(value) >= _SHORTEST_SECRET and _SECRET.search(name):
            text = text.replace(value, "***")
    return text
