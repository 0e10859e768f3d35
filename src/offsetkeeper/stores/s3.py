"""The store in a bucket of S3, or of a server that speaks its language: `s3://bucket/prefix`."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
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

from offsetkeeper.errors import OffsetkeeperError, OutcomeUnknown, SettingsError, StoreUnavailable
from offsetkeeper.store import without_credentials
from offsetkeeper.stores.files import File, FileStore
from offsetkeeper.stores.settings import StoreSettings, read_settings, refuse_unknown

_OWN = ("history", "timeout")
_MORE = ("endpoint_url", "region", "profile", "session_token", "ca_bundle")
_HISTORY = 100  # each entry is an object with all offsets in it
_LONGEST = 700  # a key has 1024 bytes, and the names of group and file come after the prefix
_PROBE = ".create-if-absent"
_MISSING, _EXISTS = 404, 412
_SERVER_ERROR = 500
_PASSING = {
    "RequestTimeout",
    "ConditionalRequestConflict",
    "OperationAborted",
    "SlowDown",
    "Throttling",
    "TooManyRequests",
}


class S3Store(FileStore):
    """Ledgers in a bucket, an object for each change; see `stores.files`.

    The server must do conditional writes (`If-None-Match: *`), which is tried out before the first change, and list
    what was written at once, as S3 does.

    Args:
        url: `s3://bucket/prefix`, or with keys of its own `s3://access_key:secret_key@bucket/prefix`; with `?region=`,
            `?profile=` and `?session_token=` as boto3 has them, `?endpoint_url=` of another server, `?ca_bundle=` (file
            of certificates), `?history=` (entries, and so objects, kept for each group, 100) and `?timeout=` (seconds
            to wait for a connection, and then for an answer, 30). Boto3 finds whatever is not given.

    Raises:
        SettingsError: the URL is wrong.
    """

    def __init__(self, url: str) -> None:
        address = without_credentials(url)
        parts = urlsplit(url)
        settings, given = read_settings(parts.query.replace("+", "%2B"), _OWN)
        refuse_unknown(given, (*_MORE, *_OWN))
        prefix = unquote(parts.path).strip("/")
        if not parts.hostname or parts.fragment or len(prefix.encode()) > _LONGEST:
            raise SettingsError(
                f"{address} names no place: write s3://bucket/prefix, the prefix with at most 700 bytes"
            )
        if bool(parts.username) != bool(parts.password):
            raise SettingsError(f"{address}: give both keys, s3://access_key:secret_key@bucket, or none")
        if parts.username and parts.password:
            given |= {"access_key": unquote(parts.username), "secret_key": unquote(parts.password)}
        history = settings.history if "history=" in parts.query else _HISTORY
        bucket = _Bucket(parts.hostname, f"{prefix}/" if prefix else "", address, settings, given)
        super().__init__(address, bucket, history)


class _Bucket:
    """See `files.Files`."""

    def __init__(self, bucket: str, root: str, address: str, settings: StoreSettings, given: dict[str, str]) -> None:
        self._bucket = bucket
        self._root = root
        self._address = address
        self._timeout = settings.timeout
        self._given = given
        self._lock = threading.Lock()
        self._client: Any = None
        self._tried = False

    def folders(self) -> Sequence[str]:
        pages = self._list("CommonPrefixes", Prefix=self._root)
        return [each["Prefix"][len(self._root) : -1] for each in pages]

    def names(self, folder: str, after: str) -> Sequence[str]:
        prefix = f"{self._root}{folder}/"
        pages = self._list("Contents", Prefix=prefix, StartAfter=prefix + after)
        return [each["Key"][len(prefix) :] for each in pages]

    def read(self, folder: str, name: str) -> File | None:
        with self._request(StoreUnavailable) as client:
            try:
                found = client.get_object(Bucket=self._bucket, Key=f"{self._root}{folder}/{name}")
            except client.exceptions.NoSuchKey:
                return None
            return File(found["Body"].read(), found["ETag"])

    def stamp(self, folder: str, name: str) -> str:
        with self._request(StoreUnavailable) as client:
            try:
                return str(client.head_object(Bucket=self._bucket, Key=f"{self._root}{folder}/{name}")["ETag"])
            except ClientError as error:
                if _status(error) == _MISSING:
                    return ""
                raise

    def create(self, folder: str, name: str, content: bytes) -> str:
        self._try_out()
        return self._put(f"{self._root}{folder}/{name}", content, OutcomeUnknown)

    def delete(self, folder: str, names: Sequence[str]) -> None:
        for name in names:
            with self._request(StoreUnavailable) as client:
                client.delete_object(Bucket=self._bucket, Key=f"{self._root}{folder}/{name}")

    def clean(self) -> None:
        pass

    def close(self) -> None:
        with self._lock:
            client, self._client = self._client, None
        if client:
            client.close()

    def _list(self, wanted: str, **where: str) -> list[dict[str, Any]]:
        with self._request(StoreUnavailable) as client:
            pages = client.get_paginator("list_objects_v2").paginate(Bucket=self._bucket, Delimiter="/", **where)
            return [each for page in pages for each in page.get(wanted, [])]

    def _put(self, key: str, content: bytes, lost: type[OffsetkeeperError]) -> str:
        with self._request(lost) as client:
            try:
                return str(client.put_object(Bucket=self._bucket, Key=key, Body=content, IfNoneMatch="*")["ETag"])
            except ClientError as error:
                if _status(error) == _EXISTS:
                    return ""
                raise

    def _try_out(self) -> None:
        """Check once that the server refuses to write over what is there: one that does not know how would do it."""
        if self._tried:
            return
        key, content = f"{self._root}{_PROBE}", b"offsetkeeper tries here whether the server writes over it"
        if self._put(key, content, StoreUnavailable) and self._put(key, content, StoreUnavailable):
            raise SettingsError(
                f"{self._address}: the server ignores If-None-Match, so two runs could overwrite each other; nothing "
                "was written. Use S3 itself, or a server that has conditional writes"
            )
        self._tried = True

    @contextmanager
    def _request(self, lost: type[OffsetkeeperError]) -> Iterator[Any]:
        """Lend the client, and translate what it raises."""
        try:
            with self._lock:
                if self._client is None:
                    self._client = self._connect()
                client = self._client
            yield client
        except (BotoCoreError, ClientError, ValueError) as error:
            raise self._failure(error, lost) from error

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
            if _status(error) >= _SERVER_ERROR and _code(error) != "NotImplemented":
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


def _status(error: ClientError) -> int:
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def _code(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))
