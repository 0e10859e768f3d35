"""The store in HDFS: the suites."""

from __future__ import annotations

import secrets
from collections.abc import Collection, Iterator
from urllib.parse import quote, urlsplit

import httpx
import pytest

from offsetkeeper.testing.conformance import (
    DurableConformance,
    FaultConformance,
    FilesMedium,
    HistoryConformance,
    Stage,
    StoreConformance,
)
from offsetkeeper.testing.conformance.served import killed
from offsetkeeper.testing.hdfs import HDFSServer

USER = {"user.name": "hdfs"}


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    """A bare client."""
    with httpx.Client(timeout=20) as client:
        yield client


class TestHDFS(FilesMedium, StoreConformance, HistoryConformance, DurableConformance, FaultConformance):
    """The suites; of the two servers it is the NameNode that is killed and frozen."""

    requests = ((b"op=CREATE", Stage.PREPARES), (b"op=RENAME", Stage.DECIDES), (b"op=GETFILESTATUS", Stage.CONFIRMS))
    reads = (b"op=LISTSTATUS", b"op=GETFILESTATUS", b"op=OPEN")
    outages = (killed,)
    deaths, examples, calm_s = 1, 4, 0.3  # it takes its time

    @pytest.fixture
    def server(self, hdfs_server: HDFSServer) -> HDFSServer:
        """The run's server."""
        return hdfs_server

    @pytest.fixture(autouse=True)
    def _bare(self, client: httpx.Client) -> None:
        self.client = client

    @pytest.fixture
    def url(self, hdfs_server: HDFSServer) -> str:
        """URL of a folder of its own."""
        return hdfs_server.url(f"store/{secrets.token_hex(6)}")

    def list_files(self, url: str, folder: str = "") -> Collection[str]:
        """Listed by WebHDFS."""
        answer = self.client.get(_place(url, folder), params={**USER, "op": "LISTSTATUS"})
        if answer.status_code == 404:
            return []
        found = answer.json()["FileStatuses"]["FileStatus"]
        paths = [(f"{folder}/{each['pathSuffix']}".lstrip("/"), each["type"]) for each in found]
        below = [self.list_files(url, path) for path, kind in paths if kind == "DIRECTORY"]
        return [path for path, kind in paths if kind == "FILE"] + [path for paths in below for path in paths]

    def read_file(self, url: str, path: str) -> bytes:
        """Read by WebHDFS."""
        place = _place(url, path)
        answer = self.client.get(place, params={**USER, "op": "OPEN"})
        return self.client.get(_redirected(answer, place)).content

    def write_file(self, url: str, path: str, content: bytes) -> None:
        """Written by WebHDFS."""
        place = _place(url, path)
        first = self.client.put(place, params={**USER, "op": "CREATE", "overwrite": "true"})
        second = self.client.put(_redirected(first, place), content=content)
        assert second.status_code == 201


def _redirected(answer: httpx.Response, place: str) -> str:
    """Return where an answer leads, under the name that was asked for and not as the NameNode normalizes it."""
    return urlsplit(answer.headers["Location"])._replace(path=urlsplit(place).path).geturl()


def _place(url: str, path: str) -> str:
    parts = urlsplit(url)
    return f"http://127.0.0.1:{parts.port}/webhdfs/v1{parts.path}/{quote(path)}".rstrip("/")
