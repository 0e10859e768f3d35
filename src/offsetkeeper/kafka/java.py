"""Translates librdkafka's settings to those of Kafka's Java client, for readers in Spark's JVM.

Sources: librdkafka's CONFIGURATION.md, and the consumer settings in Kafka's own documentation.
"""

from __future__ import annotations

import re
from base64 import b64decode
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from offsetkeeper.errors import SettingsError
from offsetkeeper.kafka.own_settings import JAVA, OWN, RACK_VARIABLE, TOKEN_PROVIDER

if TYPE_CHECKING:
    from collections.abc import Mapping

_RENAMED = {
    "fetch.wait.max.ms": "fetch.max.wait.ms",
    "fetch.message.max.bytes": "max.partition.fetch.bytes",
    "sasl.mechanisms": "sasl.mechanism",
    "socket.receive.buffer.bytes": "receive.buffer.bytes",
    "socket.send.buffer.bytes": "send.buffer.bytes",
    "socket.timeout.ms": "request.timeout.ms",
    "ssl.ca.location": "ssl.truststore.location",
    "ssl.ca.pem": "ssl.truststore.certificates",
    "ssl.certificate.pem": "ssl.keystore.certificate.chain",
    "ssl.key.pem": "ssl.keystore.key",
}
_SAME = frozenset(
    {
        "check.crcs",
        "client.dns.lookup",
        "client.id",
        "client.rack",
        "connections.max.idle.ms",
        "fetch.max.bytes",
        "fetch.min.bytes",
        "max.partition.fetch.bytes",
        "metadata.max.age.ms",
        "reconnect.backoff.max.ms",
        "reconnect.backoff.ms",
        "retry.backoff.max.ms",
        "retry.backoff.ms",
        "sasl.kerberos.service.name",
        "sasl.mechanism",
        "ssl.endpoint.identification.algorithm",
        "ssl.key.password",
        "ssl.keystore.location",
        "ssl.keystore.password",
    }
)
_IMPLIED = {
    "ssl.ca.location": {"ssl.truststore.type": "PEM"},
    "ssl.ca.pem": {"ssl.truststore.type": "PEM"},
    "ssl.certificate.pem": {"ssl.keystore.type": "PEM"},
    "ssl.key.pem": {"ssl.keystore.type": "PEM"},
    "ssl.keystore.location": {"ssl.keystore.type": "PKCS12"},
}
_AS_TEXT = {"ssl.certificate.location": "ssl.certificate.pem", "ssl.key.location": "ssl.key.pem"}
# They tune librdkafka's own queues and logs, which the Java client does not have. They do not affect the records.
_LEFT_OUT = frozenset(
    {
        "debug",
        "fetch.queue.backoff.ms",
        "log.connection.close",
        "log_level",
        "queued.max.messages.kbytes",
        "queued.min.messages",
        "receive.message.max.bytes",
        "statistics.interval.ms",
    }
)
_LOGIN = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}
_LOGIN_PARTS = frozenset({"sasl.username", "sasl.password"})
_BEARER_LOGIN = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
_OIDC_LOGIN = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler"
_OIDC = "sasl.oauthbearer."
_OIDC_PARTS = {f"{_OIDC}client.id": "clientId", f"{_OIDC}client.secret": "clientSecret", f"{_OIDC}scope": "scope"}
_OIDC_REST = frozenset({f"{_OIDC}method", f"{_OIDC}token.endpoint.url", f"{_OIDC}extensions"})
_CA = "ssl.ca.location"
_HTTPS_PARTS = {"https.ca.location": _CA, "https.ca.pem": "ssl.ca.pem"}
_CALLBACK = "sasl.login.callback.handler.class"
_JAAS = "sasl.jaas.config"
_SECRET = re.compile(r"password|passphrase|secret|\.key$|credential", re.IGNORECASE)
_REFERENCE = re.compile(r"\$\{[^{}]+\}")
_JAAS_SECRET = re.compile(
    r"\w*(?:password|passphrase|secret|token|credential|api_?key)\w*\s*=\s*(?!\"?\$\{[^{}\"]+\}\"?[\s;])", re.IGNORECASE
)
_VARIABLES = {
    "config.providers": "env",
    "config.providers.env.class": "org.apache.kafka.common.config.provider.EnvVarConfigProvider",
}


_KEY = "ssl.keystore.key"
_ENCRYPTED = "BEGIN ENCRYPTED PRIVATE KEY"
_READABLE = ("BEGIN PRIVATE KEY", _ENCRYPTED)
_PBES2 = b"\x06\x09\x2a\x86\x48\x86\xf7\x0d\x01\x05\x0d"  # its number; Java finds no factory of keys by that name


def java_options(options: Mapping[str, str]) -> dict[str, str]:
    """Return `options`, settings of librdkafka and offsetkeeper, as settings of Kafka's Java client.

    Settings that start with `offsetkeeper.java.` are passed on unchanged, and win.

    Raises:
        SettingsError: the Java client has no such setting, or cannot read the key; the packed reader supports all.
    """
    given = {name.removeprefix(JAVA): value for name, value in options.items() if name.startswith(JAVA)}
    left_out = _LEFT_OUT | _LOGIN_PARTS | _OIDC_PARTS.keys() | _OIDC_REST | _HTTPS_PARTS.keys()
    if _KEY not in given:
        _check_key(options)
    translated: dict[str, str] = {}
    for name in sorted(name for name in options.keys() - left_out if not name.startswith(OWN)):
        translated |= _translate(name, options[name])
    if _LOGIN_PARTS & options.keys():
        translated[_JAAS] = _login(options)
    if translated.get("sasl.mechanism") == "OAUTHBEARER":
        translated |= _token_login(options, given)
    if RACK_VARIABLE in options:
        translated |= _VARIABLES | {"client.rack": f"${{env:{options[RACK_VARIABLE]}}}"}
    return translated | given


def literal_secrets(settings: Mapping[str, str]) -> list[str]:
    """Return which settings of the Java client hold a secret. A reference to one, such as `${file:…}`, is none."""
    return sorted(name for name, value in settings.items() if _is_literal(name, value))


def _is_literal(name: str, value: str) -> bool:
    if name == _JAAS:
        return _REFERENCE.fullmatch(value) is None and any(_JAAS_SECRET.finditer(value))
    return _SECRET.search(name) is not None and _REFERENCE.fullmatch(value) is None


def _check_key(options: Mapping[str, str]) -> None:
    """Check that the Java client can read the key: its own error comes from a task, with all that Java has to say."""
    pem = options.get("ssl.key.pem", "")
    kind = next((each for each in _READABLE if each in pem), "")
    if not kind and "PRIVATE KEY-----" in pem:
        raise SettingsError(
            "Spark's own Kafka connector is Java, and reads ssl.key.pem in PKCS#8 only: convert it by "
            "'openssl pkcs8 -topk8 -nocrypt', or use reader='packed'"
        )
    if kind == _ENCRYPTED and "ssl.key.password" not in options:
        raise SettingsError("the key in ssl.key.pem is encrypted: give its password as ssl.key.password")
    if kind == _ENCRYPTED and _PBES2 in _der(pem):
        raise SettingsError(
            "Spark's own Kafka connector is Java, and cannot decrypt ssl.key.pem (PBES2): encrypt it by "
            "'openssl pkcs8 -topk8 -v1 PBE-SHA1-3DES', or use reader='packed'"
        )


def _der(pem: str) -> bytes:
    body = pem.partition(f"{_ENCRYPTED}-----")[2].partition("-----")[0]
    with suppress(ValueError):
        return b64decode("".join(body.split()))
    return b""


def _translate(name: str, value: str) -> dict[str, str]:
    if name == "security.protocol":
        return {name: value.upper()}
    if (name, value) == (_CA, "probe"):
        return {}
    if name == _CA and Path(value).is_dir():
        raise SettingsError(
            f"{value} is a folder, and Spark's own Kafka connector takes the CAs from a file: give one, or use "
            "reader='packed'"
        )
    if (name, value) == ("ssl.endpoint.identification.algorithm", "none"):
        return {name: ""}
    if name in _RENAMED or name in _SAME:
        return {_RENAMED.get(name, name): value} | _IMPLIED.get(name, {})
    instead = f"give its text as {_AS_TEXT[name]}" if name in _AS_TEXT else "leave it out"
    raise SettingsError(
        f"the Kafka option {name} cannot be handed to Spark's own Kafka connector: {instead}, or use reader='packed'"
    )


def _login(options: Mapping[str, str]) -> str:
    mechanism = options.get("sasl.mechanism") or options.get("sasl.mechanisms") or "GSSAPI"
    module = _LOGIN.get(mechanism)
    if module is None:
        raise SettingsError(
            f"a user and a password for sasl.mechanism {mechanism} cannot be handed to Spark's own Kafka connector: "
            f"use one of {', '.join(_LOGIN)}, or use reader='packed'"
        )
    user, password = (_quoted(options.get(name, "")) for name in ("sasl.username", "sasl.password"))
    return f"{module} required username={user} password={password};"


def _token_login(options: Mapping[str, str], given: Mapping[str, str]) -> dict[str, str]:
    if _CALLBACK in given:
        return {_JAAS: f"{_BEARER_LOGIN} required;"}
    if TOKEN_PROVIDER in options:
        raise SettingsError(
            f"Spark's own Kafka connector is Java, and cannot call the token provider {options[TOKEN_PROVIDER]}: use "
            f"reader='packed', or name Java's own with {JAVA}{_CALLBACK}, or let both get tokens by "
            "sasl.oauthbearer.method=oidc"
        )
    if options.get(f"{_OIDC}method", "").lower() != "oidc":
        raise SettingsError(
            "sasl.mechanism OAUTHBEARER needs sasl.oauthbearer.method=oidc for Spark's own Kafka connector, or "
            f"{JAVA}{_CALLBACK}; or use reader='packed'"
        )
    parts = {java: options[name] for name, java in _OIDC_PARTS.items() if name in options}
    pairs = [each.partition("=") for each in options.get(f"{_OIDC}extensions", "").split(",") if each]
    parts |= {f"extension_{key}": value for key, _, value in pairs}
    for name in _HTTPS_PARTS.keys() & options.keys():
        parts |= _translate(_HTTPS_PARTS[name], options[name])  # of the login alone; the client has its own
    login = " ".join(f"{name}={_quoted(value)}" for name, value in parts.items())
    return {
        _CALLBACK: _OIDC_LOGIN,
        f"{_OIDC}token.endpoint.url": options.get(f"{_OIDC}token.endpoint.url", ""),
        _JAAS: f"{_BEARER_LOGIN} required {login};",
    }


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\r", "\\r")
    return f'"{escaped}"'
