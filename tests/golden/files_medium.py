"""Ledgers in files: in a folder, in HDFS and in S3."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import httpx

from golden.medium import Medium
from golden.values import readable, written
from offsetkeeper.stores.folder import FolderStore
from offsetkeeper.testing.hdfs import HDFSServer
from offsetkeeper.testing.s3 import S3Server

_AT_ONCE = 8


class FilesMedium(Medium):
    """A folder with a folder for each group."""

    def dump(self) -> Any:
        """Read every file."""
        paths = sorted(self.paths())
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            return dict(zip(paths, map(readable, pool.map(self.read, paths)), strict=True))

    def restore(self, content: Any) -> None:
        """Write every file."""
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            list(pool.map(self.write, content, map(written, content.values())))

    def positions(self, group: str) -> Mapping[tuple[str, int], int]:
        """Read the newest file."""
        folder = group.replace(".", "%2E", 1) if group.startswith(".") else group
        newest = max(path for path in self.paths() if path.startswith(f"{folder}/"))
        offsets = json.loads(self.read(newest))["offsets"]
        return {(topic, int(number)): at for topic, parts in offsets.items() for number, at in parts.items()}

    def paths(self) -> Iterator[str]:
        """Yield the paths of all files."""
        raise NotImplementedError

    def read(self, path: str) -> bytes:
        """Return what a file holds."""
        raise NotImplementedError

    def write(self, path: str, content: bytes) -> None:
        """Write a new file."""
        raise NotImplementedError


class FolderMedium(FilesMedium):
    """A folder of this machine."""

    def __init__(self, folder: Path) -> None:
        self.url = f"file://{folder}"
        self._folder = folder
        FolderStore(self.url).init()

    def paths(self) -> Iterator[str]:
        """Listed by the operating system."""
        found = (each for each in self._folder.rglob("*") if each.is_file() and each.name != ".offsetkeeper")
        yield from (str(each.relative_to(self._folder)) for each in found)

    def read(self, path: str) -> bytes:
        """Read by the operating system."""
        return (self._folder / path).read_bytes()

    def write(self, path: str, content: bytes) -> None:
        """Written by the operating system."""
        file = self._folder / path
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(content)


class HDFSMedium(FilesMedium):
    """A folder in HDFS, spoken to by WebHDFS."""

    def __init__(self, server: HDFSServer) -> None:
        server.make_folder("store")
        folder = f"store/golden-{secrets.token_hex(6)}"
        self.url = server.url(folder)
        self._root = f"{server.http}/webhdfs/v1/{folder}"
        self._client = httpx.Client(timeout=60)

    def close(self) -> None:
        """See `Medium`."""
        self._client.close()

    def paths(self, folder: str = "") -> Iterator[str]:
        """Listed by the NameNode."""
        answer = self._ask("GET", folder, "LISTSTATUS")
        for each in answer.json()["FileStatuses"]["FileStatus"]:
            path = f"{folder}/{each['pathSuffix']}".lstrip("/")
            if each["type"] == "FILE":
                yield path
            else:
                yield from self.paths(path)

    def read(self, path: str) -> bytes:
        """Read from the DataNode that the NameNode names."""
        return self._there("GET", self._ask("GET", path, "OPEN"), path).content

    def write(self, path: str, content: bytes) -> None:
        """Written to the DataNode that the NameNode names."""
        self._there("PUT", self._ask("PUT", path, "CREATE"), path, content=content)

    def _ask(self, method: str, path: str, operation: str) -> httpx.Response:
        params = {"user.name": "hdfs", "op": operation}
        answer = self._client.request(method, f"{self._root}/{quote(path)}".rstrip("/"), params=params)
        assert answer.is_success or answer.is_redirect, answer.text
        return answer

    def _there(self, method: str, answer: httpx.Response, path: str, **more: Any) -> httpx.Response:
        root = urlsplit(self._root).path
        where = urlsplit(answer.headers["Location"])._replace(path=f"{root}/{quote(path)}")  # not as it normalizes it
        return self._client.request(method, where.geturl(), **more).raise_for_status()


class S3Medium(FilesMedium):
    """A bucket."""

    def __init__(self, server: S3Server) -> None:
        self._bucket, self._client = server.create_bucket(), server.client()
        self.url = server.url(self._bucket, "offsets")

    def paths(self) -> Iterator[str]:
        """Listed by boto3."""
        for page in self._client.get_paginator("list_objects_v2").paginate(Bucket=self._bucket):
            yield from (each["Key"].removeprefix("offsets/") for each in page.get("Contents", []))

    def read(self, path: str) -> bytes:
        """Read by boto3."""
        content: bytes = self._client.get_object(Bucket=self._bucket, Key=f"offsets/{path}")["Body"].read()
        return content

    def write(self, path: str, content: bytes) -> None:
        """Written by boto3."""
        self._client.put_object(Bucket=self._bucket, Key=f"offsets/{path}", Body=content)
