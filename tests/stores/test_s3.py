"""The store in a bucket: the suites."""

from __future__ import annotations

import secrets
from collections.abc import Collection
from typing import Any
from urllib.parse import urlsplit

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
from offsetkeeper.testing.s3 import S3Server


@pytest.fixture(scope="module")
def bucket(s3_server: S3Server) -> str:
    """Name of a bucket for all tests of this file."""
    return s3_server.create_bucket()


@pytest.fixture(scope="module")
def client(s3_server: S3Server) -> Any:
    """A bare client."""
    return s3_server.client()


class TestS3(FilesMedium, StoreConformance, HistoryConformance, DurableConformance, FaultConformance):
    """The suites."""

    requests = ((b'"change_id"', Stage.DECIDES), (b"HEAD /", Stage.CONFIRMS))
    reads = (b"list-type=2", b"GET /")
    outages = (killed,)
    examples, calm_s = 4, 0.3  # it takes its time

    @pytest.fixture
    def server(self, s3_server: S3Server) -> S3Server:
        """The run's server."""
        return s3_server

    @pytest.fixture(autouse=True)
    def _bare(self, client: Any) -> None:
        self.client = client

    @pytest.fixture
    def url(self, s3_server: S3Server, bucket: str) -> str:
        """URL of a prefix of its own."""
        return s3_server.url(bucket, f"offsets/{secrets.token_hex(6)}")

    def list_files(self, url: str, folder: str = "") -> Collection[str]:
        """Listed by boto3."""
        bucket, root = _place(url)
        prefix = f"{root}{folder}/" if folder else root
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
        return [each["Key"].removeprefix(root) for page in pages for each in page.get("Contents", [])]

    def read_file(self, url: str, path: str) -> bytes:
        """Read by boto3."""
        bucket, root = _place(url)
        content: bytes = self.client.get_object(Bucket=bucket, Key=root + path)["Body"].read()
        return content

    def write_file(self, url: str, path: str, content: bytes) -> None:
        """Written by boto3."""
        bucket, root = _place(url)
        self.client.put_object(Bucket=bucket, Key=root + path, Body=content)


def _place(url: str) -> tuple[str, str]:
    parts = urlsplit(url)
    return str(parts.hostname), f"{parts.path[1:]}/"
