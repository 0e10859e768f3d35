"""A client of one bucket of S3 or of an S3-compatible server, from the URL: with errors of offsetkeeper."""

from __future__ import annotations

import logging
import math
import os
import re
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from io import BufferedReader
from typing import Any
from urllib.parse import unquote, urlsplit

import boto3
import urllib3
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectionClosedError,
    ConnectTimeoutError,
    CredentialRetrievalError,
    EndpointConnectionError,
    HTTPClientError,
    ProxyConnectionError,
    ReadTimeoutError,
    SSLError,
)
from botocore.exceptions import ConnectionError as ConnectionBroken

from offsetkeeper.clients.pool import SENSELESS, senseless
from offsetkeeper.clients.url import ClientUrl, check_size
from offsetkeeper.clients.web_proxy import by_way, told_by_way
from offsetkeeper.core.patience import Patience, PatientFile
from offsetkeeper.core.silence import silent
from offsetkeeper.core.tls import Tls, spoken_hint, unspoken_hint
from offsetkeeper.core.urls import redacted
from offsetkeeper.errors import OffsetkeeperError, Refused, SettingsError, StoreUnavailable

log = logging.getLogger("offsetkeeper")
_SECRETS = ("access_key", "secret_key", "session_token")
_BREAK = re.compile(rb"[\r\n]")
_DECLARES = re.compile(rb"<!(ENTITY|ATTLIST)")  # in XML: a few bytes may become a thousand times as many
# At DEBUG they log headers, which have the session token, and what a server answers who gives keys.
_LOGGING = ("botocore.auth", "botocore.endpoint", "botocore.parsers")
OWN = ("endpoint_url", "region", "profile", "session_token", "ca_bundle")
_LONGEST = 700  # a key has 1024 bytes, and names come after the prefix
PROBE = ".create-if-absent"
_EXPIRES = (
    "a lifecycle rule deletes objects here ({key}: {rule}), and what it deletes would count as never written. Exempt "
    "this prefix from the rule, or use another one"
)
_EXISTS = 412
_NOT_DONE, _SERVER_ERROR = 300, 500
_HTTP, _HTTPS = 80, 443
_MOST = 4 << 20  # bytes of an answer other than an object: a list has at most 1,000 names, of 3 KB each when quoted
_PASSING = {
    *("RequestTimeout", "ConditionalRequestConflict", "OperationAborted"),
    *("SlowDown", "Throttling", "TooManyRequests"),
}


class _Bounded:
    """The HTTP of boto3, which would read an answer without an end; an object's content is read by its size.

    Args:
        session: botocore's.
        address: of the store, for errors.
    """

    def __init__(self, session: Any, address: str) -> None:
        self._session, self._address = session, address
        self._asked = threading.local()

    def begin(self) -> None:
        """Forget the last request of this thread."""
        self._asked.url = ""

    def way(self) -> str:
        """Return the words for an error if the last request of this thread went through a proxy."""
        url = getattr(self._asked, "url", "")
        proxy = self._session._proxy_config.proxy_url_for(url) if url else None  # noqa: SLF001 - it does not tell
        return by_way(proxy or "", urlsplit(url).scheme)

    def send(self, request: Any) -> Any:
        """See botocore.

        Raises:
            SettingsError: a header has a line break. The library's own error would show all of it.
        """
        headers = [value if isinstance(value, bytes) else value.encode() for value in request.headers.values()]
        if any(map(_BREAK.search, headers)):
            raise SettingsError(f"{self._address}: a key or the session token has a line break: take it out")
        self._asked.url = request.url
        streams, request.stream_output = request.stream_output, True
        answer = self._session.send(request)
        if not streams or answer.status_code >= _NOT_DONE:
            answer._content = self._read(answer.raw, request)  # noqa: SLF001 - as botocore does
        return answer

    def close(self) -> None:
        """See botocore."""
        self._session.close()

    def _read(self, raw: Any, request: Any) -> bytes:
        try:
            content = b""
            while len(content) <= _MOST and (part := raw.read(_MOST + 1 - len(content))):
                content += part  # the last read, of nothing, tells whether all came
        except urllib3.exceptions.ReadTimeoutError as error:
            raise ReadTimeoutError(endpoint_url=request.url, error=error) from error
        except urllib3.exceptions.HTTPError as error:
            raise ConnectionClosedError(endpoint_url=request.url, error=error, request=request) from error
        if len(content) > _MOST:
            raw.close()
            raise HTTPClientError(error=f"the answer has more than {_MOST} bytes")
        if _DECLARES.search(content.replace(b"\0", b"")):  # UTF-16 has them between
            raise HTTPClientError(error="the answer declares entities or attributes, and none of S3 does")
        return content


class _Patient:
    """A connection of botocore whose answers come in time; see `core.patience`."""

    sock: Any

    def connect(self) -> None:
        super().connect()  # type: ignore[misc]  # botocore's
        self.sock = _Socket(self.sock)


class _Socket:
    """A socket, of which each file has one answer."""

    def __init__(self, opened: Any) -> None:
        self._socket = opened

    def __getattr__(self, name: str) -> Any:
        return getattr(self._socket, name)

    def makefile(self, mode: str, buffering: int = -1) -> Any:
        """See the socket."""
        seconds = self._socket.gettimeout()
        file = PatientFile(self._socket.makefile(mode, 0), Patience(math.inf if seconds is None else seconds))
        return BufferedReader(file) if buffering else file


def _patient(pool: Any) -> Any:
    """Return the kind of pool that has such connections."""
    kind = pool.ConnectionCls
    return type(pool.__name__, (pool,), {"ConnectionCls": type(kind.__name__, (_Patient, kind), {})})


class Connection:
    """The client of one bucket and prefix, created at its first use. Any thread may use it.

    Args:
        url: the URL, `s3://access_key:secret_key@bucket/prefix?region=…`.

    Attributes:
        bucket: name of the bucket.
        prefix: prefix of all keys, without slashes at its ends; it may be empty.
        root: the prefix with a slash at its end.

    Raises:
        SettingsError: the URL is wrong.
    """

    def __init__(self, url: ClientUrl) -> None:
        parts, self._given = url.parts, url.given
        self.prefix = unquote(parts.path).strip("/")
        if not parts.hostname or parts.fragment or len(self.prefix.encode()) > _LONGEST:
            raise url.error("is not complete: write s3://bucket/prefix, the prefix with at most 700 bytes")
        if bool(parts.username) != bool(parts.password):
            raise url.error("has only one of two keys: give both, s3://access_key:secret_key@bucket, or none")
        if parts.username and parts.password:
            self._given |= {"access_key": unquote(parts.username), "secret_key": unquote(parts.password)}
        self.bucket = parts.hostname
        self.root = f"{self.prefix}/" if self.prefix else ""
        self._address = url.address
        self._redact, self._cause = url.redact, url.cause
        self._timeout = url.settings.timeout
        self._lock = threading.Lock()
        self._tls = Tls("ca_bundle", ca=self._given.get("ca_bundle", ""))
        self._client: Any = None
        self._tried = self._warned = False

    @contextmanager
    def lend(self, lost: type[OffsetkeeperError] = StoreUnavailable) -> Iterator[Any]:
        """Lend boto3's client; translate its errors, to `lost` if an answer was lost."""
        try:
            with silent(_LOGGING):
                with self._lock:
                    if self._client is None:
                        self._client = self._connect()
                    client = self._client
                client._endpoint.http_session.begin()  # noqa: SLF001 - see `_connect`
                yield client
        except (BotoCoreError, ClientError) as error:
            raise told_by_way(self._failure(error, lost), self._way()) from self._cause(error)
        except OffsetkeeperError:
            raise
        except SENSELESS as error:
            if lost is not StoreUnavailable:  # of a change, the answer alone is odd
                raise lost(senseless(self._address, error, "endpoint_url, and what lies between")) from self._cause(
                    error
                )
            raise told_by_way(self._failure(error, lost), self._way()) from self._cause(error)

    def _way(self) -> str:
        client = self._client
        return str(client._endpoint.http_session.way()) if client else ""  # noqa: SLF001 - see `_connect`

    def pages(self, prefix: str, **where: str) -> Iterator[dict[str, Any]]:
        """Yield the pages of a list of the objects whose keys begin with a prefix.

        Raises:
            Refused: the answer is of another kind. For boto3, a web page with status 200 is an empty list, and a list
                that is cut and tells no way to the rest is a whole one.
        """
        with self.lend() as client:
            for page in client.get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix=prefix, **where):
                if why := _oddness(page, prefix):
                    raise Refused(f"{self._address}: {why}. Check endpoint_url, and what lies between")
                yield page

    def read(self, key: str) -> tuple[bytes, str] | None:
        """Return the content and the tag of an object, or None if it does not exist.

        Raises:
            Refused: it is too large.
        """
        with self.lend() as client:
            try:
                found = client.get_object(Bucket=self.bucket, Key=key)
            except client.exceptions.NoSuchKey:
                return None
            with closing(found["Body"]) as body:
                size = found["ContentLength"]
                check_size(size, f"s3://{self.bucket}/{key}")
                content = body.read(size + 1)
                if len(content) > size or body.read(1):  # boto3 checks length and checksum when there is no more
                    raise ValueError("more bytes than announced")
                return content, str(found["ETag"])

    def put_new(self, key: str, content: bytes, lost: type[OffsetkeeperError]) -> str:
        """Create an object with all of its content and return its tag; empty if the key already exists.

        Once, it logs that the object will expire: the object that was tried out may be of another size or prefix.
        """
        with self.lend(lost) as client:
            try:
                made = client.put_object(Bucket=self.bucket, Key=key, Body=content, IfNoneMatch="*")
                tag = str(made["ETag"])
            except ClientError as error:
                if status_of(error) == _EXISTS:
                    return ""
                raise
        if self._tried and not self._warned and (rule := made.get("Expiration")):
            self._warned = True
            log.warning("%s: %s", self._address, _EXPIRES.format(key=key, rule=rule))
        return tag

    def overwrites(self, key: str) -> bool:
        """Whether the server overwrites an object that was to be created; an object with that key is left."""
        content = b"offsetkeeper tries here whether the server writes over it"
        return all(self.put_new(key, content, StoreUnavailable) for _ in range(2))

    def try_out(self, key: str, newest: str = "") -> bool:
        """Check once that the server refuses to overwrite an object, and keeps it: some servers overwrite it.

        Args:
            key: the object to try it with.
            newest: another object that must be kept, if it is there.

        Returns:
            Whether it was tested now; then an object with that key is left.

        Raises:
            Refused: the server overwrites objects, or deletes them after some time; nothing else was written.
        """
        if self._tried:
            return False
        if self.overwrites(key):
            raise Refused(
                f"{self._address}: the server ignores If-None-Match, so two runs could overwrite each other; nothing "
                "was written. Use S3 itself, or a server that has conditional writes"
            )
        for each in filter(None, (key, newest)):
            if rule := self._expires(each):
                raise Refused(f"{self._address}: {_EXPIRES.format(key=each, rule=rule)}; nothing was written")
        self._tried = True
        return True

    def _expires(self, key: str) -> str:
        """Return when an object expires and by which rule, as the server says it; empty if it does not, or is gone."""
        with self.lend() as client:  # the answer to HEAD would not say why it is refused
            try:
                found = client.get_object(Bucket=self.bucket, Key=key)
            except client.exceptions.NoSuchKey:
                return ""
            found["Body"].close()
            return str(found.get("Expiration", ""))

    def close(self) -> None:
        """Close the client; it is created again when needed."""
        with self._lock:
            client, self._client = self._client, None
        if client:
            client.close()

    def _connect(self) -> Any:
        # boto3 must not retry by itself: it would find the object of its first try, and take it for another writer's.
        config = Config(retries={"total_max_attempts": 1}, connect_timeout=self._timeout, read_timeout=self._timeout)
        given = self._given.get
        self._tls.check()
        session = boto3.session.Session(
            aws_access_key_id=given("access_key"),
            aws_secret_access_key=given("secret_key"),
            aws_session_token=given("session_token"),
            region_name=given("region"),
            profile_name=given("profile"),
        )
        if not given("ca_bundle"):
            self._check_bundle(session._session.get_config_variable("ca_bundle"))  # noqa: SLF001 - boto3 does not tell
        client = session.client("s3", endpoint_url=given("endpoint_url"), verify=given("ca_bundle"), config=config)
        opened = client._endpoint.http_session  # noqa: SLF001 - it has no other limit
        kinds = opened._pool_classes_by_scheme  # noqa: SLF001
        kinds |= {scheme: _patient(kind) for scheme, kind in kinds.items()}
        client._endpoint.http_session = _Bounded(opened, self._address)  # noqa: SLF001
        return client

    def _check_bundle(self, found: str | None) -> None:
        if "" in (found, os.environ.get("REQUESTS_CA_BUNDLE")):
            raise SettingsError(
                f"{self._address}: AWS_CA_BUNDLE, REQUESTS_CA_BUNDLE or ca_bundle of the profile is empty, and some "
                "releases of boto3 then check no certificate: unset it, or give the path of a file"
            )

    def _failure(self, error: Exception, lost: type[OffsetkeeperError]) -> OffsetkeeperError:
        address = str(getattr(error, "kwargs", {}).get("endpoint_url", ""))
        if _is_of_certificate(error) and (why := self._objection(address)):
            return Refused(f"{self._address}: nothing was written: {why}")
        text = redacted(str(error), [value for name, value in self._given.items() if name in _SECRETS])
        if isinstance(error, ClientError):
            if status_of(error) >= _SERVER_ERROR and _code(error) != "NotImplemented":
                return lost(f"{self._address}: {text}")
            if _code(error) in _PASSING:
                return StoreUnavailable(f"{self._address}: nothing was written: {text}")
        elif isinstance(
            error, EndpointConnectionError | ConnectTimeoutError | ProxyConnectionError | CredentialRetrievalError
        ):
            return StoreUnavailable(f"{self._address}: cannot connect: {text}")
        elif isinstance(error, HTTPClientError | ConnectionBroken) and not _is_of_certificate(error):
            there = urlsplit(address)
            plain = there.scheme == "http" and there.hostname
            hint = (
                spoken_hint(there.hostname or "", there.port or _HTTP, "write https") if plain else unspoken_hint(text)
            )
            return lost(
                f"{self._address}: the connection broke, or no answer came for {self._timeout:g} s: {text}{hint}"
            )
        return Refused(f"{self._address}: {self._redact(error)}; nothing was written. {_advice(error)}")

    def _objection(self, url: str) -> str:
        parts = urlsplit(url)
        return self._tls.objection(parts.hostname or "", parts.port or _HTTPS)


def _oddness(page: dict[str, Any], prefix: str) -> str:
    """Return why a page is no part of the list that was asked for; empty if it is."""
    if "IsTruncated" not in page:
        return "the answer is not a list of objects, so this is not a server of S3"
    if page["IsTruncated"] and not page.get("NextContinuationToken"):
        return "the list of objects is cut, and tells no way to the rest: the server does not know ListObjectsV2"
    names = [each["Key"] for each in page.get("Contents", [])]
    names += [each["Prefix"] for each in page.get("CommonPrefixes", [])]
    if not all(name.startswith(prefix) for name in names):
        return "the list has objects that were not asked for"
    return ""


def _is_of_certificate(error: Exception) -> bool:
    """Whether a certificate is not accepted. The cause alone is read: the address may have any word in it."""
    why = str(error.kwargs.get("error", "")) if isinstance(error, SSLError) else ""
    return "CERTIFICATE_VERIFY_FAILED" in why or "doesn't match" in why


def status_of(error: ClientError) -> int:
    """Return the HTTP status of an answer."""
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def _advice(error: Exception) -> str:
    if isinstance(error, ClientError) and _code(error) == "InvalidObjectState":
        told = error.response.get("Error", {})
        kept = " ".join(str(told[name]) for name in ("StorageClass", "AccessTier") if told.get(name))
        return (
            f"The object is archived{f' (storage class {kept})' if kept else ''}, by a lifecycle rule or by hand: "
            "restore it, copy it over itself with the class STANDARD, and exempt this prefix from the rule"
        )
    return (
        "Check the bucket, the credentials and their permissions (s3:ListBucket, s3:GetObject, s3:PutObject, "
        "s3:DeleteObject), and the settings in the URL"
    )


def _code(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))
