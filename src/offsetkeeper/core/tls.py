"""Certificates: which of servers are accepted, and why one is not; and what is wrong with a client's own.

Most client libraries do not tell an expired certificate from one that a foreign authority has signed. So the server is
asked for its certificate again, which no library needs to help with. Nor do they tell which of the client's files is
wrong, and some ask the terminal for the password of a key, for ever. So the files are read before.
"""

from __future__ import annotations

import platform
import re
import socket
import ssl
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple, TypeVar

from offsetkeeper.core.outside import LARGEST_TABLE, read_file
from offsetkeeper.errors import SettingsError

T = TypeVar("T")

_LIMIT_S = 5.0
_HEARD_S = 1.0  # with TLS 1.3, a server objects to the client's certificate after the handshake
_MOST_HEARD = 16_384  # bytes at once
_EXPIRED, _NOT_YET, _WRONG_HOST, _WRONG_ADDRESS = 10, 9, 62, 64  # OpenSSL's numbers
_UNKNOWN_ISSUER = frozenset({2, 18, 19, 20, 21, 24, 26})
_UNSPOKEN = re.compile("WRONG_VERSION|UNEXPECTED_EOF|RECORD_LAYER|wrong version|EOF occurred in violation")
_VALIDITY = re.compile(rb"(?:\x17\x0d|\x18\x0f)(\d{12,14})Z(?:\x17\x0d|\x18\x0f)(\d{12,14})Z")
_ALTERNATIVES = re.compile(rb"\x06\x03\x55\x1d\x11(?:\x01\x01\xff)?\x04", re.DOTALL)
_LONGEST_PATH = 255
_NAME, _ADDRESS = 0x82, 0x87
_PEM = b"-----BEGIN "
_CERTIFICATE = re.compile(rb"-----BEGIN (?:X509 |TRUSTED )?CERTIFICATE-----")
_KEY = re.compile(rb"-----BEGIN (?:[A-Z0-9]+ )?PRIVATE KEY-----")
_ANY = re.compile(b"")
_ENCRYPTED = re.compile(rb"BEGIN ENCRYPTED PRIVATE KEY|Proc-Type: 4,ENCRYPTED")
_OBJECTS = re.compile("certificate|alert|unknown.ca|EOF occurred|reset by peer|broken pipe", re.IGNORECASE)
_REFUSED = re.compile("ALERT_((?:NO|BAD|UNSUPPORTED|UNKNOWN)_CERTIFICATE|CERTIFICATE_[A-Z]+|UNKNOWN_CA|ACCESS_DENIED)")


def _at_once(_: socket.socket) -> None:
    """TLS begins with the connection's first byte."""


class _Asked(NamedTuple):
    """A server that is asked for its certificate."""

    host: str
    port: int
    begin: Callable[[socket.socket], None]
    address: str
    limit_s: float = _LIMIT_S

    def handshake(self, context: ssl.SSLContext, heard_s: float = 0.0) -> bytes:
        """Return the certificate, in DER; empty if there is none. Then listen for an objection of the server."""
        with socket.create_connection((self.address, self.port), self.limit_s) as connection:
            self.begin(connection)
            received, sent = ssl.MemoryBIO(), ssl.MemoryBIO()
            # Python's own socket with TLS leaves a socket open if the server resets the connection before it begins
            secured = context.wrap_bio(received, sent, server_hostname=self.host)

            def said(step: Callable[[], T]) -> T:
                """Return the result of a step of TLS, for which the two sides talk as often as it needs."""
                while True:
                    try:
                        return step()
                    except ssl.SSLWantReadError:
                        pass
                    finally:
                        with suppress(OSError):  # where the server has gone, what it said before counts
                            connection.sendall(sent.read())
                    heard = connection.recv(_MOST_HEARD)
                    received.write(heard) if heard else received.write_eof()

            said(secured.do_handshake)
            found = secured.getpeercert(binary_form=True) or b""
            if heard_s:
                connection.settimeout(heard_s)
                with suppress(TimeoutError):
                    said(partial(secured.read, 1))
            return found

    def certificate(self) -> bytes:
        """Return the certificate unchecked, in DER; empty if the server shows none."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE  # nothing is sent; it is only looked at
        with suppress(OSError, ValueError):
            return self.handshake(context)
        return b""


@dataclass(frozen=True)
class Tls:
    """Which certificates of a server are accepted, and what a client shows of itself. Tasks on executors have it too.

    Attributes:
        setting: name of the user's setting with the authorities, for messages.
        ca: path of a file with the certificates of authorities; "" for those of the system.
        folder: path of a folder with such files; "" for none.
        pem: such certificates as text; "" for none.
        own: names of the settings with the client's own certificate, its key and the key's password.
        cert, key: paths of the client's own certificate and key; "" for none. A certificate may have its key with it.
        password: of the key.
        der: whether the key may be in DER, of which nothing is checked.
        verify: whether a certificate must be valid and signed by one of the authorities.
        identity: whether it must also have the name or the address that the client connects to.
    """

    setting: str
    ca: str = ""
    folder: str = ""
    pem: str = field(default="", repr=False)
    own: tuple[str, str, str] = ("", "", "")
    cert: str = ""
    key: str = ""
    password: str = field(default="", repr=False)
    der: bool = False
    verify: bool = True
    identity: bool = True

    def check(self) -> None:
        """Check that the files can be used on this machine, as far as that is known before a library opens them.

        Raises:
            SettingsError: one cannot; the message says which, why, and what to do.
        """
        named, key = (self.own[1], self.key) if self.key else (self.own[0], self.cert)
        if self.key and not self.cert:
            raise SettingsError(f"{named} is given and no certificate: give it as {self.own[0]}")
        if self.folder and not Path(self.folder).is_dir():
            raise SettingsError(f"{self.setting}={self.folder} is not a folder on {platform.node()}: check its path")
        _read(self.setting, self.ca, _CERTIFICATE, "certificate")
        _read(self.own[0], self.cert, _CERTIFICATE, "certificate")
        beside = "" if self.key else f", or give it as {self.own[1]}"
        text = _read(named, key, _ANY if self.der else _KEY, "key", beside)
        if _PEM in text and (why := self._wrong_key(key, text)):
            raise SettingsError(why)

    def _wrong_key(self, key: str, text: bytes) -> str:
        certificate, _, password = self.own
        encrypted = _ENCRYPTED.search(text) is not None
        if encrypted and not self.password:
            return f"the key in {key} is encrypted: give its password as {password}"
        try:
            self._show(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
        except (ssl.SSLError, ValueError) as error:  # the second for a password that no key has
            if getattr(error, "reason", "") == "KEY_VALUES_MISMATCH":
                return f"the key in {key} is not that of {certificate}={self.cert}: give both of one client"
            if encrypted:
                return f"{password} is not the password of the key in {key}"
        return ""

    def _show(self, context: ssl.SSLContext) -> None:
        """Have a client show its own certificate. Without a password, the library would ask the terminal for one."""
        context.load_cert_chain(self.cert, self.key or None, self.password)

    def context(self) -> ssl.SSLContext:
        """Return a context for a client.

        Raises:
            SettingsError: a file is missing or wrong.
        """
        self.check()
        try:
            context = ssl.create_default_context(
                cafile=self.ca or None, capath=self.folder or None, cadata=self.pem or None
            )
            if self.cert:
                self._show(context)
        except OSError as error:
            names = " or ".join(filter(None, (self.setting, *self.own[: 2 if self.cert else 0])))
            raise SettingsError(f"a file of {names} cannot be used on {platform.node()}: {error}") from error
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT  # certificates that servers make for themselves do not pass it
        if not (self.verify and self.identity):
            context.check_hostname = False
        if not self.verify:
            context.verify_mode = ssl.CERT_NONE
        return context

    def objection(
        self, host: str, port: int, begin: Callable[[socket.socket], None] = _at_once, address: str = ""
    ) -> str:
        """Connect to a server; return why its certificate is not accepted, or it does not accept ours, and what to do.

        It is empty if both are accepted, or if that is not known within 5 seconds.

        Args:
            host: name or address that the client connects to.
            port: its TCP port.
            begin: what client and server say before TLS begins.
            address: where the server is, if it is not what `host` leads to.
        """
        asked = _Asked(host, port, begin, address or host)

        def ask() -> str:
            with suppress(OSError, ValueError):
                try:
                    asked.handshake(self.context(), _HEARD_S if self.own[0] else 0.0)
                except ssl.SSLCertVerificationError as error:
                    return self._told(error, host, port, asked.certificate())
                except ssl.SSLError as error:
                    return self._not_accepted(error, host, port)
            return ""

        return _in_time(ask, _LIMIT_S) or ""

    def _not_accepted(self, error: ssl.SSLError, host: str, port: int) -> str:
        found = _REFUSED.search(error.reason or "")
        if found is None:
            return ""
        return not_accepted(f"{host}:{port}", found[1].lower().replace("_", " "), self.own)

    def spoken(self, host: str, port: int) -> bool:
        """Whether a server shows any certificate within a second, so that it speaks TLS from the first byte on."""
        return bool(_in_time(_Asked(host, port, _at_once, host, limit_s=1.0).certificate, 1.0))

    def _told(self, error: ssl.SSLCertVerificationError, host: str, port: int, shown: bytes) -> str:
        whose = f"the certificate of {host}:{port}"
        if error.verify_code == _EXPIRED:
            return f"{whose} expired on {_days(shown)[1]}. Give the server a new one"
        if error.verify_code == _NOT_YET:
            return (
                f"{whose} is valid only from {_days(shown)[0]} on. Compare the clocks, or give the server another one"
            )
        if error.verify_code in (_WRONG_HOST, _WRONG_ADDRESS):
            names = ", ".join(names_of(shown)) or "(it names none)"
            return (
                f"{whose} is for the host {names}, not {host}. Connect by a name that it has, or give the server one "
                f"with the name {host}"
            )
        if error.verify_code in _UNKNOWN_ISSUER:
            given = self.ca or self.folder or self.pem
            where = f"{self.setting} has" if given else "this machine knows"
            return (
                f"{whose} is signed by no CA that {where}: {error.verify_message}. Give the file with the certificate "
                f"of its CA as {self.setting}"
            )
        return f"{whose} is not accepted: {error.verify_message}. Give the server another one"


def spoken_hint(host: str, port: int, remedy: str) -> str:
    """Return the end of a message to a client without TLS: that the server speaks it, and what to do; else empty."""
    return f". {host}:{port} speaks TLS: {remedy}" if Tls("").spoken(host, port) else ""


def unspoken_hint(text: str) -> str:
    """Return the end of a message to a client with TLS: that the server may not speak it, by what a library says."""
    return ". Perhaps the port speaks no TLS: give the one that does" if _UNSPOKEN.search(text) else ""


def not_accepted(server: str, why: str, own: tuple[str, str, str]) -> str:
    """Return what to do if a server does not accept the certificate of a client, or gets none.

    Args:
        server: its address.
        why: what it says, such as `unknown ca`, or `certificate required` if there is none.
        own: see `Tls`.
    """
    return (
        f"the certificate of the client is not accepted by {server}: {why}. Give one that it accepts as {own[0]}, and "
        f"its key as {own[1]}"
    )


def may_be_objection(text: str) -> bool:
    """Whether what a library says may come from a certificate that one of the two sides does not accept."""
    return _OBJECTS.search(text) is not None


def of_all(objections: Iterable[str]) -> str:
    """Return why none of several servers is accepted; empty if one may be: a client then finds that one."""
    first = ""
    for why in objections:
        if not why:
            return ""
        first = first or why
    return first


def _in_time(ask: Callable[[], T], limit_s: float) -> T | None:
    """Return an answer; None if it takes longer, also where a name is looked for, or a server sends a byte at times."""
    answers: list[T] = []
    thread = threading.Thread(target=lambda: answers.append(ask()), name="offsetkeeper-certificate", daemon=True)
    thread.start()
    thread.join(limit_s)
    return answers[0] if answers else None


def read_named(name: str, path: str) -> bytes:
    """Return the content of a setting's file.

    Raises:
        SettingsError: it cannot be read on this machine.
    """
    try:
        return read_file(Path(path), LARGEST_TABLE)[0]
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "it is not a path"
        raise SettingsError(
            f"{name}={_shown(path)} cannot be read on {platform.node()}: {why}. Check the path and its permissions"
        ) from None


def _read(name: str, path: str, needed: re.Pattern[bytes], what: str, remedy: str = "") -> bytes:
    """Return the content of a setting's file, which has what is needed; empty if the setting is not given."""
    text = read_named(name, path) if path else b""
    if path and not needed.search(text):
        raise SettingsError(f"{name}={path} has no {what} in PEM on {platform.node()}: give a file that has{remedy}")
    return text


def _shown(path: str) -> str:
    """Return a path, unless it may be the text of a key."""
    return path if len(path) <= _LONGEST_PATH and path.isprintable() and "-----" not in path else "(no path)"


def names_of(certificate: bytes) -> list[str]:
    """Return the hosts that a certificate names, as DNS names and addresses; the certificate is in DER."""
    found = _ALTERNATIVES.search(certificate)
    if found is None:
        return []
    _, start, _ = _sized(certificate, found.end() - 1)  # the octets, in which the sequence is
    _, place, end = _sized(certificate, start)
    names = []
    while place < end:
        tag, start, place = _sized(certificate, place)
        value = certificate[start:place]
        if tag == _NAME:
            names.append(value.decode("ascii", "replace"))
        elif tag == _ADDRESS:
            with suppress(ValueError):
                names.append(str(ip_address(value)))
    return names


def _sized(der: bytes, place: int) -> tuple[int, int, int]:
    """Return tag, start and end of the value at a place in DER; past the end there is an empty one."""
    head = der[place : place + 2]
    tag, length = (head[0], head[1]) if len(head) == 2 else (0, 0)  # noqa: PLR2004 - tag and length
    start = place + 2
    if length & 0x80:
        more = length & 0x7F
        length = int.from_bytes(der[start : start + more], "big")
        start += more
    return tag, start, min(start + length, len(der)) if len(head) == 2 else len(der)  # noqa: PLR2004 - as above


def _days(certificate: bytes) -> tuple[str, str]:
    """Return the first and the last day of a certificate in DER."""
    found = _VALIDITY.search(certificate)
    return (_day(found[1]), _day(found[2])) if found else ("an unknown day", "an unknown day")


def _day(time: bytes) -> str:
    text = time.decode()
    year = text if len(text) == 14 else ("19" if text[:2] >= "50" else "20") + text  # noqa: PLR2004 - 1950 to 2049
    return datetime.strptime(year, "%Y%m%d%H%M%S").replace(tzinfo=UTC).date().isoformat()
