"""The demo is traced: see `fixtures.traces`."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def is_traced(traces: Path) -> Path:
    """Let each test write traces, which are checked at its end."""
    return traces
