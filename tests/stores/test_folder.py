"""The store in a folder: the suites."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import pytest

from offsetkeeper.stores.folder import FolderStore
from offsetkeeper.testing.conformance import DurableConformance, FilesMedium, HistoryConformance, StoreConformance


class TestFolder(FilesMedium, StoreConformance, HistoryConformance, DurableConformance):
    """The suites."""

    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        """URL of a new store."""
        url = f"file://{tmp_path}"
        FolderStore(url).init()
        return url

    def list_files(self, url: str, folder: str = "") -> Collection[str]:
        """Listed by the operating system."""
        root = _root(url)
        files = (path for path in (root / folder).rglob("*") if path.is_file() and path.name != ".offsetkeeper")
        return [str(path.relative_to(root)) for path in files]

    def read_file(self, url: str, path: str) -> bytes:
        """Read by the operating system."""
        return (_root(url) / path).read_bytes()

    def write_file(self, url: str, path: str, content: bytes) -> None:
        """Written by the operating system."""
        file = _root(url) / path
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(content)


def _root(url: str) -> Path:
    return Path(url.removeprefix("file://").partition("?")[0])
