"""The Kafka settings that are ours, in a mapping of librdkafka's: their names begin with `offsetkeeper.`.

They are texts like the others, so they travel wherever those do. Executors use them too.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from offsetkeeper.core.outside import check_files, shown_name
from offsetkeeper.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Mapping

OWN = "offsetkeeper."
TOKEN = f"{OWN}token."
TOKEN_PROVIDER = f"{TOKEN}provider"
"""`module:function`, which makes the tokens of OAUTHBEARER; see `kafka/tokens.py`."""
RACK_VARIABLE = f"{OWN}rack.env"
"""Name of an environment variable with the rack of the machine that a client runs on."""
NATIVE = f"{OWN}native"
"""Whether the compiled reader reads, and the compiled producer writes: `auto`, where it can; `never`; or `required`."""
NATIVE_CHOICES = ("auto", "never", "required")
JAVA = f"{OWN}java."
"""Before the name of a setting of Kafka's Java client, which Spark's own connector gets as it is."""
_CERTIFICATE = "ssl.certificate.location"
_KEYS = frozenset({"ssl.key.location", "ssl.key.pem", "ssl.keystore.location", "ssl.engine.location"})
_FUNCTION = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*:[^\W\d]\w*(?:\.[^\W\d]\w*)*")
_OBJECT = re.compile(r"logger|default\.topic\.config|.*_cb|on_\w+")  # confluent-kafka calls methods of it
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def check_own(options: Mapping[str, str]) -> None:
    """Check the settings that are ours, and the characters of all. Nothing is imported, no variable is looked up.

    Raises:
        SettingsError: one is unknown, or wrong, or does not fit the others.
    """
    for name, value in options.items():
        _check_characters(name, value)
        if _OBJECT.fullmatch(name):
            raise SettingsError(
                f"the Kafka option {shown_name(name)} is not a text but an object of Python: take it out"
            )
        if name.startswith(OWN) and name not in {RACK_VARIABLE, NATIVE} and not name.startswith((TOKEN, JAVA)):
            raise SettingsError(
                f"the Kafka option {shown_name(name)} is unknown: use {TOKEN_PROVIDER}, {TOKEN}<a setting of it>, "
                f"{RACK_VARIABLE}, {NATIVE} or {JAVA}<a setting of the Java client>"
            )
    check_files(options)
    if _CERTIFICATE in options and not options.keys() & _KEYS:  # librdkafka would show none to any broker
        raise SettingsError(
            f"{_CERTIFICATE} is given and no key: give it as ssl.key.location, which may be the same file"
        )
    if any(name.startswith(TOKEN) for name in options):
        _check_tokens(options)
    if RACK_VARIABLE in options:
        _check_rack(options)
    if options.get(NATIVE, "auto") not in NATIVE_CHOICES:
        raise SettingsError(f"{NATIVE} is wrong: write one of {', '.join(NATIVE_CHOICES)}")
    if options.get(NATIVE) == "required" and TOKEN_PROVIDER in options:
        raise SettingsError(f"{NATIVE}=required and {TOKEN_PROVIDER} exclude each other: Python makes the tokens")


def _check_characters(name: str, value: str) -> None:
    try:
        (name + value).encode()
    except UnicodeError:  # librdkafka's Python library crashes the process
        raise SettingsError("a Kafka option is not UTF-8: write its name and its value as UTF-8") from None
    if "\0" in name + value:
        raise SettingsError("a Kafka option has a NUL in it: take it out")


def librdkafka_options(options: Mapping[str, str]) -> dict[str, str]:
    """Return the settings that librdkafka gets in this process: all but ours, and the rack where it is known here.

    Raises:
        SettingsError: see `check_own`.
    """
    check_own(options)
    rack = os.environ.get(options.get(RACK_VARIABLE, ""), "")
    theirs = {name: value for name, value in options.items() if not name.startswith(OWN)}
    return theirs | ({"client.rack": rack} if rack else {})


def worker_modules(options: Mapping[str, str]) -> tuple[str, ...]:
    """Return what Spark's workers import to open a client with these settings."""
    provider = options.get(TOKEN_PROVIDER)
    modules = ("confluent_kafka",) if provider is None else ("confluent_kafka", provider.partition(":")[0])
    return (*modules, "offsetkeeper_native") if options.get(NATIVE) == "required" else modules


def worker_variables(options: Mapping[str, str]) -> tuple[str, ...]:
    """Return the environment variables that Spark's workers need for these settings."""
    return (options[RACK_VARIABLE],) if RACK_VARIABLE in options else ()


def _check_tokens(options: Mapping[str, str]) -> None:
    provider = options.get(TOKEN_PROVIDER)
    if provider is None:
        raise SettingsError(f"the Kafka options {TOKEN}… are of a token provider: give {TOKEN_PROVIDER} too")
    if not _FUNCTION.fullmatch(provider):
        raise SettingsError(f"{TOKEN_PROVIDER} is wrong: write module:function, such as my_company.tokens:token")
    mechanism = options.get("sasl.mechanism") or options.get("sasl.mechanisms")
    if mechanism != "OAUTHBEARER" or not options.get("security.protocol", "").lower().startswith("sasl_"):
        raise SettingsError(
            f"{TOKEN_PROVIDER} needs sasl.mechanism=OAUTHBEARER, and SASL_SSL or SASL_PLAINTEXT as security.protocol"
        )
    if options.get("sasl.oauthbearer.method", "default").lower() != "default":
        raise SettingsError(
            f"{TOKEN_PROVIDER} and sasl.oauthbearer.method exclude each other: with the second librdkafka gets tokens"
        )


def _check_rack(options: Mapping[str, str]) -> None:
    if not _VARIABLE.fullmatch(options[RACK_VARIABLE]):
        raise SettingsError(f"{RACK_VARIABLE} is wrong: write the name of an environment variable, such as RACK")
    if "client.rack" in options:
        raise SettingsError(f"give client.rack or {RACK_VARIABLE}, not both")
