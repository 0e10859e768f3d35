"""What of the suites runs each time, and what only before a release: `make soak`; and what ends with a test."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from typing import Any

import pytest

from offsetkeeper.testing.conformance.served import stopped
from offsetkeeper.testing.faults import Fault
from offsetkeeper.testing.proxy import Cut

IN_PROCESS = {"test_memory", "test_sqlite"}
THROUGH_A_CUT = {
    "test_a_commit_through_a_cut_is_made_exactly_once",
    "test_a_load_through_a_cut_is_tried_again",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let one of each kind of fault happen to each server: the one that is hardest to get right."""
    for item in items:
        callspec = getattr(item, "callspec", None)
        if callspec and is_variant(item, callspec.params):
            item.add_marker(pytest.mark.soak)


def is_variant(item: pytest.Item, parameters: Mapping[str, Any]) -> bool:
    """Whether a test asks a server to end instead of killing it, or loses something other than a whole reply."""
    fault, cut = parameters.get("fault"), parameters.get("cut")
    return (
        parameters.get("outage") is stopped
        or (isinstance(fault, Fault) and fault is not Fault.REPLY_LOST and item.path.stem not in IN_PROCESS)
        or (isinstance(cut, Cut) and cut is not Cut.REPLY and getattr(item, "originalname", "") in THROUGH_A_CUT)
    )


@pytest.fixture
def at_end() -> Iterator[ExitStack]:
    """What is closed at the end of the test."""
    with ExitStack() as stack:
        yield stack
