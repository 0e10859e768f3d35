"""What of the suites is run each time, and what before a release only."""

from __future__ import annotations

import pytest

from offsetkeeper.testing.conformance.served import stopped


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let each server be killed each time, and be asked to end before a release only: that is the milder of the two."""
    for item in items:
        callspec = getattr(item, "callspec", None)
        if callspec and callspec.params.get("outage") is stopped:
            item.add_marker(pytest.mark.soak)
