"""What librdkafka does not tell of TLS: why a certificate is not accepted, and that a port speaks TLS at all."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from offsetkeeper.core.tls import Tls, of_all

if TYPE_CHECKING:
    from collections.abc import Mapping, MutableMapping

_CA = "ssl.ca.location"
_PORT = 9092
_FAILED = re.compile(r"(?:[a-z_]+://)?\[?([^/\s]+?)\]?:(\d+)/\S+: .*certificate verify failed")
_KEY_FAILED = re.compile("PEM lib|bad password|wrong password|bad decrypt|interrupted or cancelled")


def objection(text: str, options: Mapping[str, str], known: MutableMapping[str, str]) -> str:
    """Return why a broker's certificate is not accepted, if librdkafka reports that one is not; see `Tls.objection`.

    Args:
        text: what librdkafka reports.
        options: settings of the client.
        known: the answers of earlier calls, by broker: librdkafka reports the same twice a second.
    """
    found = _FAILED.match(text)
    if found is None:
        return ""
    broker = f"{found[1]}:{found[2]}"
    if broker not in known:
        known[broker] = _tls(options).objection(found[1], int(found[2]))
    return known[broker]


def is_hopeless(brokers: str, known: Mapping[str, str]) -> bool:
    """Whether no certificate of the brokers that a client was given is accepted; see `objection` for `known`."""
    return all(known.get("{}:{}".format(*_place(each))) for each in brokers.split(","))


def is_on(options: Mapping[str, str]) -> bool:
    """Whether a client with these settings speaks TLS."""
    return options.get("security.protocol", "plaintext").lower().endswith("ssl")


def refused(brokers: str, options: Mapping[str, str]) -> str:
    """Return why no certificate of these brokers is accepted; empty if one may be, and without TLS."""
    if not is_on(options) or options.get("enable.ssl.certificate.verification", "true").lower() == "false":
        return ""
    tls = _tls(options)
    return of_all(tls.objection(*_place(each)) for each in brokers.split(","))


def speaks_tls(brokers: str, options: Mapping[str, str]) -> str:
    """Return which of the first three brokers speaks TLS to a client that does not; empty if none does."""
    every = () if is_on(options) else brokers.split(",")[:3]
    return next((each.strip() for each in every if Tls(_CA).spoken(*_place(each))), "")


def key_hint(text: str, options: Mapping[str, str]) -> str:
    """Return what to check of the client's own key, if librdkafka says that it cannot read it."""
    if not (_KEY_FAILED.search(text) and re.search(r"ssl\.key(\.location|\.pem|store)", text)):
        return ""
    name = "ssl.keystore.password" if "ssl.keystore" in text else "ssl.key.password"
    if name in options:
        return f". {name} is not the password of the key, or the key is not in PEM"
    return f". The key needs its password as {name}, or it is not in PEM"


def _place(broker: str) -> tuple[str, int]:
    parts = urlsplit(f"//{broker.strip().rpartition('://')[2]}")
    return parts.hostname or "", parts.port or _PORT


def _tls(options: Mapping[str, str]) -> Tls:
    place = options.get(_CA, "")
    place = "" if place == "probe" else place
    folder = Path(place).is_dir() if place else False
    return Tls(
        _CA,
        ca="" if folder else place,
        folder=place if folder else "",
        pem=options.get("ssl.ca.pem", ""),
        identity=options.get("ssl.endpoint.identification.algorithm", "https") != "none",
    )
