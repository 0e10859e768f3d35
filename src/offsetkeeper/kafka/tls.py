"""Finds out what librdkafka does not report: why a certificate is not accepted, and that a port speaks TLS."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from offsetkeeper.core.tls import Tls, not_accepted, of_all, read_named
from offsetkeeper.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Mapping, MutableMapping

_CA = "ssl.ca.location"
_OWN = ("ssl.certificate.location", "ssl.key.location", "ssl.key.password")
_OTHER_FORMS = ("ssl.certificate.pem", "ssl.key.pem", "ssl.keystore.location", "ssl.engine.location")
_OTHERS = frozenset({"ssl.crl.location", "ssl.keystore.location"})
_OF_FILES = re.compile(r"ssl\.|Private key")
_PORT = 9092
_FAILED = re.compile(r"(?:[a-z_]+://)?\[?([^/\s]+?)\]?:(\d+)/\S+: .*certificate verify failed")
_ALERT = re.compile(
    r"(?:[a-z_]+://)?\[?([^/\s]+?)\]?:(\d+)/\S+: .* alert "
    r"((?:no|bad|unsupported) certificate|certificate \w+|unknown ca|access denied)"
)
_KEY_FAILED = re.compile("PEM lib|bad password|wrong password|bad decrypt|interrupted or cancelled")


def objection(text: str, options: Mapping[str, str], known: MutableMapping[str, str]) -> str:
    """Return why a broker's certificate is not accepted, or ours, if librdkafka reports so; see `Tls.objection`.

    Args:
        text: what librdkafka reports.
        options: settings of the client.
        known: the answers of earlier calls, by broker: librdkafka reports the same twice a second.
    """
    if of_ours := _ALERT.match(text):
        broker = f"{of_ours[1]}:{of_ours[2]}"
        known[broker] = not_accepted(broker, of_ours[3], _OWN)
        return known[broker]
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


def wrong_file(text: str, options: Mapping[str, str]) -> str:
    """Return which of the files that librdkafka refuses cannot be used on this machine, and why; empty if unknown."""
    if not _OF_FILES.search(text):
        return ""
    try:
        for name in _OTHERS.intersection(options):
            read_named(name, options[name])
        _tls(options).check()
    except SettingsError as error:
        return str(error)
    return ""


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
    other = any(name in options for name in _OTHER_FORMS)
    certificate, key, password = ("" if other else options.get(name, "") for name in _OWN)
    return Tls(
        _CA,
        ca="" if folder else place,
        folder=place if folder else "",
        pem=options.get("ssl.ca.pem", ""),
        own=("", "", "") if other else _OWN,
        cert=certificate,
        key=key,
        password=password,
        identity=options.get("ssl.endpoint.identification.algorithm", "https") != "none",
    )
