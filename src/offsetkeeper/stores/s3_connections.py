"""A bucket of S3 and the way to it: the URL's settings, one client, errors translated, conditional writes tried out."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote, urlsplit

import boto3
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectTimeoutError,
    CredentialRetrievalError,
    EndpointConnectionError,
    HTTPClientError,
    ProxyConnectionError,
    SSLError,
)
from botocore.exceptions import ConnectionError as ConnectionBroken

from offsetkeeper.core.store import without_credentials
from offsetkeeper.errors import OffsetkeeperError, SettingsError, StoreUnavailable
from offsetkeeper.stores.settings import StoreSettings, read_settings, refuse_unknown

_MORE = ("endpoint_url", "region", "profile", "session_token", "ca_bundle")
_LONGEST = 700  # a key has 1024 bytes, and names come after the prefix
PROBE = ".create-if-absent"
MISSING, _EXISTS = 404, 412
_SERVER_ERROR = 500
_PASSING = {
    "RequestTimeout",
    "ConditionalRequestConflict",
    "OperationAborted",
    "SlowDown",
    "Throttling",
    "TooManyRequests",
}


@dataclass(frozen=True)
class Place:
    """What a URL names.

    Attributes:
        address: the URL without secrets, for messages.
        bucket: its name.
        prefix: of all keys, without slashes around it; it may be empty.
        settings: shared by all stores.
        given: settings of boto3's, never shown.
    """

    address: str
    bucket: str
    prefix: str
    settings: StoreSettings
    given: dict[str, str] = field(repr=False)


def read_place(url: str, own: Collection[str]) -> Place:
    """Return what `s3://access_key:secret_key@bucket/prefix?region=…` names.

    Args:
        url: to be read.
        own: names of the settings that it may have beside boto3's.

    Raises:
        SettingsError: it is wrong.
    """
    address, parts = without_credentials(url), urlsplit(url)
    settings, given = read_settings(parts.query.replace("+", "%2B"), tuple(own))
    refuse_unknown(given, (*_MORE, *own))
    prefix = unquote(parts.path).strip("/")
    if not parts.hostname or parts.fragment or len(prefix.encode()) > _LONGEST:
        raise SettingsError(f"{address} names no place: write s3://bucket/prefix, the prefix with at most 700 bytes")
    if bool(parts.username) != bool(parts.password):
        raise SettingsError(f"{address}: give both keys, s3://access_key:secret_key@bucket, or none")
    if parts.username and parts.password:
        given |= {"access_key": unquote(parts.username), "secret_key": unquote(parts.password)}
    return Place(address, parts.hostname, prefix, settings, given)


class Connection:
    """The client of one place, made at its first use. Any thread may use it."""

    def __init__(self, place: Place) -> None:
        self.bucket = place.bucket
        self.root = f"{place.prefix}/" if place.prefix else ""
        self._address = place.address
        self._timeout = place.settings.timeout
        self._given = place.given
        self._lock = threading.Lock()
        self._client: Any = None
        self._tried = False

    @contextmanager
    def lend(self, lost: type[OffsetkeeperError] = StoreUnavailable) -> Iterator[Any]:
        """Lend boto3's client; what it raises is told as one of our errors, `lost` where the answer was."""
        try:
            with self._lock:
                if self._client is None:
                    self._client = self._connect()
                client = self._client
            yield client
        except (BotoCoreError, ClientError, ValueError) as error:
            raise self._failure(error, lost) from error

    def put_new(self, key: str, content: bytes, lost: type[OffsetkeeperError]) -> str:
        """Create an object with all of its content and return its tag; empty where there is one of that key."""
        with self.lend(lost) as client:
            try:
                return str(client.put_object(Bucket=self.bucket, Key=key, Body=content, IfNoneMatch="*")["ETag"])
            except ClientError as error:
                if status(error) == _EXISTS:
                    return ""
                raise

    def try_out(self, key: str) -> bool:
        """Check once that the server refuses to write over what is there: one that does not know how would do it.

        Returns:
            Whether it was tried now; an object of that key is left then.

        Raises:
            SettingsError: it does not refuse; nothing else was written.
        """
        if self._tried:
            return False
        content = b"offsetkeeper tries here whether the server writes over it"
        if self.put_new(key, content, StoreUnavailable) and self.put_new(key, content, StoreUnavailable):
            raise SettingsError(
                f"{self._address}: the server ignores If-None-Match, so two runs could overwrite each other; nothing "
                "was written. Use S3 itself, or a server that has conditional writes"
            )
        self._tried = True
        return True

    def close(self) -> None:
        """Close the client; it is made again when used."""
        with self._lock:
            client, self._client = self._client, None
        if client:
            client.close()

    def _connect(self) -> Any:
        # Never a second try of its own: it would find the object of the first, and take it for somebody else's.
        config = Config(retries={"total_max_attempts": 1}, connect_timeout=self._timeout, read_timeout=self._timeout)
        given = self._given.get
        session = boto3.session.Session(
            aws_access_key_id=given("access_key"),
            aws_secret_access_key=given("secret_key"),
            aws_session_token=given("session_token"),
            region_name=given("region"),
            profile_name=given("profile"),
        )
        return session.client("s3", endpoint_url=given("endpoint_url"), verify=given("ca_bundle"), config=config)

    def _failure(self, error: Exception, lost: type[OffsetkeeperError]) -> OffsetkeeperError:
        if isinstance(error, ClientError):
            if status(error) >= _SERVER_ERROR and _code(error) != "NotImplemented":
                return lost(f"{self._address}: {error}")
            if _code(error) in _PASSING:
                return StoreUnavailable(f"{self._address}: nothing was written: {error}")
        elif isinstance(
            error, EndpointConnectionError | ConnectTimeoutError | ProxyConnectionError | CredentialRetrievalError
        ):
            return StoreUnavailable(f"{self._address} cannot be connected: {error}")
        elif isinstance(error, HTTPClientError | ConnectionBroken) and not (
            isinstance(error, SSLError) and "certificate" in str(error)
        ):
            return lost(f"{self._address}: the connection broke, or no answer came for {self._timeout:g} s: {error}")
        return SettingsError(
            f"{self._address}: {error}; nothing was written. Check the bucket, the credentials and their permissions "
            "(s3:ListBucket, s3:GetObject, s3:PutObject, s3:DeleteObject), and the settings in the URL"
        )


def status(error: ClientError) -> int:
    """Return the HTTP status of an answer."""
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def _code(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))
