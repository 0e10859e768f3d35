"""A checkpoint in a bucket of S3 or of an S3-compatible server.

A write of an object is complete or not visible. It replaces an object, or, to create one, needs a free name
(`If-None-Match: *`, which is tested before anything is changed). S3 has no rename, and none is needed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from offsetkeeper.checkpoint.files import ServerClock, Stamp, checksum_of, no_more
from offsetkeeper.clients.s3 import OWN, PROBE, Connection
from offsetkeeper.clients.url import read_url
from offsetkeeper.errors import StoreUnavailable

_MISSING = {"NoSuchKey", "404"}


class S3Files:
    """The objects below a prefix of a bucket; see `Files`. Backups are beside it, and never leave the server.

    Args:
        connection: connection to the bucket.
        prefix: prefix of all keys, without slashes at its ends.
        clock: clock of the server.
    """

    def __init__(self, connection: Connection, prefix: str, clock: ServerClock | None = None) -> None:
        self.address = f"s3://{connection.bucket}/{prefix}"
        self._connection = connection
        self._bucket = connection.bucket
        self._prefix = prefix
        self._clock = clock or ServerClock()

    def __repr__(self) -> str:
        return f"S3Files({self.address!r})"

    def names(self, folder: str) -> list[str]:
        """See `Files.names`."""
        start = f"{self._key(folder)}/"
        found: list[str] = []
        for page in self._pages(start, Delimiter="/"):
            found += [each["Key"] for each in page.get("Contents", [])]
            found += [each["Prefix"].removesuffix("/") for each in page.get("CommonPrefixes", [])]
        return sorted(name for key in found if (name := key.removeprefix(start)))

    def stamps(self, folder: str) -> dict[str, Stamp]:
        """See `Files.stamps`."""
        pages = self._pages(f"{self._key(folder)}/")
        objects = no_more((each for page in pages for each in page.get("Contents", [])), f"{self.address}/{folder}")
        start = f"{self._prefix}/"
        return {
            each["Key"].removeprefix(start): Stamp(self._clock.here(each["LastModified"].timestamp()), each["Size"])
            for each in objects
            if not each["Key"].endswith("/")  # Hadoop's marker of a folder
        }

    def read(self, name: str) -> bytes | None:
        """See `Files.read`."""
        found = self._connection.read(self._key(name))
        return None if found is None else found[0]

    def write(self, name: str, content: bytes) -> None:
        """See `Files.write`."""
        self._try_out()
        self._delete(checksum_of(name))
        with self._connection.lend() as client:
            client.put_object(**self._place(name), Body=content)

    def create(self, name: str, content: bytes) -> bool:
        """See `Files.create`; a crash never leaves a part of the object."""
        self._try_out()
        return bool(self._connection.put_new(self._key(name), content, StoreUnavailable))

    def delete(self, name: str) -> None:
        """See `Files.delete`."""
        self._try_out()
        self._delete(checksum_of(name))
        self._delete(name)

    def backups(self) -> list[str]:
        """See `Files.backups`."""
        pages = self._pages(f"{self._prefix}.backup-", Delimiter="/")
        found = [each["Prefix"].removesuffix("/") for page in pages for each in page.get("CommonPrefixes", [])]
        return sorted(key.removeprefix(f"{self._prefix}.") for key in found)

    def backup(self, name: str) -> S3Files:
        """See `Files.backup`."""
        return S3Files(self._connection, f"{self._prefix}.{name}", self._clock) if name else self

    def copy(self, name: str, source: str, target: str) -> None:
        """See `Files.copy`."""
        self._try_out()
        for each in (name, checksum_of(name)):
            of, to = (self.backup(backup)._place(each) for backup in (source, target))  # noqa: SLF001 - of this class
            with self._connection.lend() as client:
                try:
                    client.copy_object(**to, CopySource=of)
                except client.exceptions.ClientError as error:
                    if error.response["Error"]["Code"] not in _MISSING:
                        raise

    def close(self) -> None:
        """See `Files.close`."""
        self._connection.close()

    def _try_out(self) -> None:
        """Check once that the server can create without overwriting; the test object is beside it, and deleted."""
        key = f"{self._prefix}{PROBE}"
        if self._connection.try_out(key):
            with self._connection.lend() as client:
                client.delete_object(Bucket=self._bucket, Key=key)

    def _pages(self, prefix: str, **more: str) -> Iterator[dict[str, Any]]:
        for page in self._connection.pages(prefix, **more):
            self._clock.told(page["ResponseMetadata"]["HTTPHeaders"].get("date", ""))
            yield page

    def _delete(self, name: str) -> None:
        with self._connection.lend() as client:
            client.delete_object(**self._place(name))

    def _place(self, name: str) -> dict[str, str]:
        return {"Bucket": self._bucket, "Key": self._key(name)}

    def _key(self, name: str) -> str:
        return f"{self._prefix}/{name}".rstrip("/")


def open_s3(location: str) -> S3Files:
    """Return the folder of `s3://bucket/prefix`, with the settings of the store on S3; `s3a://` is the same.

    Raises:
        SettingsError: the URL is wrong.
    """
    url = read_url(location, ("timeout",), OWN)
    connection = Connection(url)
    if not connection.prefix:
        raise url.error("has no checkpoint: write s3://bucket/prefix, the prefix with 1 to 700 bytes")
    return S3Files(connection, connection.prefix)
