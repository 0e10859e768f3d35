"""The store in a bucket of S3, or of a server that speaks its language: `s3://bucket/prefix`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from botocore.exceptions import ClientError

from offsetkeeper.errors import OutcomeUnknown
from offsetkeeper.stores.files import File, FileStore
from offsetkeeper.stores.s3_connections import MISSING, PROBE, Connection, read_place, status

_OWN = ("history", "timeout")
_HISTORY = 100  # each entry is an object with all offsets in it


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
        place = read_place(url, _OWN)
        history = place.settings.history if "history=" in url.partition("?")[2] else _HISTORY
        super().__init__(place.address, _Bucket(Connection(place)), history)


class _Bucket:
    """See `files.Files`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def folders(self) -> Sequence[str]:
        root = self._connection.root
        return [each["Prefix"][len(root) : -1] for each in self._list("CommonPrefixes", Prefix=root)]

    def names(self, folder: str, after: str) -> Sequence[str]:
        prefix = self._key(folder, "")
        pages = self._list("Contents", Prefix=prefix, StartAfter=prefix + after)
        return [each["Key"][len(prefix) :] for each in pages]

    def read(self, folder: str, name: str) -> File | None:
        with self._connection.lend() as client:
            try:
                found = client.get_object(**self._place(folder, name))
            except client.exceptions.NoSuchKey:
                return None
            return File(found["Body"].read(), found["ETag"])

    def stamp(self, folder: str, name: str) -> str:
        with self._connection.lend() as client:
            try:
                return str(client.head_object(**self._place(folder, name))["ETag"])
            except ClientError as error:
                if status(error) == MISSING:
                    return ""
                raise

    def create(self, folder: str, name: str, content: bytes) -> str:
        self._connection.try_out(f"{self._connection.root}{PROBE}")
        return self._connection.put_new(self._key(folder, name), content, OutcomeUnknown)

    def delete(self, folder: str, names: Sequence[str]) -> None:
        for name in names:
            with self._connection.lend() as client:
                client.delete_object(**self._place(folder, name))

    def clean(self) -> None:
        pass

    def close(self) -> None:
        self._connection.close()

    def _list(self, wanted: str, **where: str) -> list[dict[str, Any]]:
        with self._connection.lend() as client:
            asked = client.get_paginator("list_objects_v2").paginate(
                Bucket=self._connection.bucket, Delimiter="/", **where
            )
            return [each for page in asked for each in page.get(wanted, [])]

    def _place(self, folder: str, name: str) -> dict[str, str]:
        return {"Bucket": self._connection.bucket, "Key": self._key(folder, name)}

    def _key(self, folder: str, name: str) -> str:
        return f"{self._connection.root}{folder}/{name}"
