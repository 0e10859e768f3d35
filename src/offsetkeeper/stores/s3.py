"""The store in a bucket of S3 or of an S3-compatible server: `s3://bucket/prefix`.

`Connection` is also used for checkpoints.
"""

from __future__ import annotations

from collections.abc import Sequence

from botocore.exceptions import (
    ClientError,
)

from offsetkeeper.clients.s3 import OWN, PROBE, Connection, status_of
from offsetkeeper.clients.url import UrlSettings, read_url
from offsetkeeper.errors import OutcomeUnknown
from offsetkeeper.stores.files import File, FileStore, name_of

_MISSING = 404


class S3Store(FileStore):
    """Ledgers in a bucket, an object for each change; see `stores.files`.

    The server must support conditional writes (`If-None-Match: *`), which is tested before the first change, and must
    list new objects at once, as S3 does.

    Args:
        url: `s3://bucket/prefix`, or with its own keys `s3://access_key:secret_key@bucket/prefix`; with `?region=`,
            `?profile=` and `?session_token=` as boto3 has them, `?endpoint_url=` of another server, `?ca_bundle=` (file
            of certificates), `?history=` (entries, and so objects, kept for each group, 100) and `?timeout=` (seconds
            to wait for a connection, and then for an answer, 30). Boto3 finds whatever is not given.

    Raises:
        SettingsError: the URL is wrong.
    """

    def __init__(self, url: str) -> None:
        usual = UrlSettings(history=100)  # each entry is an object with all offsets
        read = read_url(url, ("history", "timeout"), OWN, usual)
        super().__init__(read, _Bucket(Connection(read)))


class _Bucket:
    """See `files.Files`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def folders(self) -> Sequence[str]:
        root = self._connection.root
        return [each[len(root) : -1] for each in self._list("CommonPrefixes", "Prefix", root)]

    def names(self, folder: str, after: str) -> Sequence[str]:
        prefix = self._key(folder, "")
        keys = self._list("Contents", "Key", prefix, StartAfter=prefix + after)
        return [each[len(prefix) :] for each in keys]

    def read(self, folder: str, name: str) -> File | None:
        found = self._connection.read(self._key(folder, name))
        return None if found is None else File(*found)

    def stamp(self, folder: str, name: str) -> str:
        with self._connection.lend() as client:
            try:
                return str(client.head_object(**self._place(folder, name))["ETag"])
            except ClientError as error:
                if status_of(error) == _MISSING:
                    return ""
                raise

    def create(self, folder: str, name: str, content: bytes) -> str:
        before = int(name.removesuffix(".json")) - 1
        # A rule may be for a part of the prefix, or a size: so the newest file is looked at too.
        newest = self._key(folder, name_of(before)) if before else ""
        self._connection.try_out(f"{self._connection.root}{PROBE}", newest)
        return self._connection.put_new(self._key(folder, name), content, OutcomeUnknown)

    def delete(self, folder: str, names: Sequence[str]) -> None:
        for name in names:
            with self._connection.lend() as client:
                client.delete_object(**self._place(folder, name))

    def clean(self) -> None:
        pass

    def close(self) -> None:
        self._connection.close()

    def _list(self, wanted: str, name: str, prefix: str, **where: str) -> list[str]:
        with self._connection.lend():
            pages = self._connection.pages(prefix, Delimiter="/", **where)
            return [str(each[name]) for page in pages for each in page.get(wanted, [])]

    def _place(self, folder: str, name: str) -> dict[str, str]:
        return {"Bucket": self._connection.bucket, "Key": self._key(folder, name)}

    def _key(self, folder: str, name: str) -> str:
        return f"{self._connection.root}{folder}/{name}"
