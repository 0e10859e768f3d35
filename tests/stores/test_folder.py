"""The store in a folder: the suites."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from offsetkeeper.testing.conformance import DurableConformance, FilesMedium, HistoryConformance, StoreConformance


class TestFolder(FilesMedium, StoreConformance, HistoryConformance, DurableConformance):
    """The suites."""

    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        """URL of an empty folder."""
        return f"file://{tmp_path}"

    def read_files(self, url: str) -> Mapping[str, bytes]:
        """Read by the operating system."""
        root = Path(url.removeprefix("file://").partition("?")[0])
        return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}

    def write_file(self, url: str, path: str, content: bytes) -> None:
        """Write by the operating system."""
        file = Path(url.removeprefix("file://")) / path
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(content)
