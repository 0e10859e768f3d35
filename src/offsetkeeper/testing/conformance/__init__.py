"""The tests that every store must pass, and every sink that keeps a mark (`LanderConformance`).

To test a store, subclass what fits it; see `Medium` for what to fill in.

    class TestMyStore(StoreConformance, HistoryConformance, TransactionConformance, DurableConformance):
        @pytest.fixture
        def url(self, tmp_path): ...
        def read_positions(self, url, group): ...
        def write_position(self, url, group, tp, offset): ...

pytest and hypothesis must be installed. With OFFSETKEEPER_THOROUGH=20 in the environment, hypothesis tries twenty
times as many examples.
"""

import pytest

pytest.register_assert_rewrite(
    *(
        f"{__name__}.{part}"
        for part in (
            "answers",
            "concurrent",
            "durable",
            "faults",
            "histories",
            "landers",
            "late",
            "stores",
            "transactions",
        )
    )
)

from offsetkeeper.testing.conformance.durable import DurableConformance  # noqa: E402 - after the line above
from offsetkeeper.testing.conformance.faults import FaultConformance, TransactionFaultConformance  # noqa: E402
from offsetkeeper.testing.conformance.histories import HistoryConformance  # noqa: E402
from offsetkeeper.testing.conformance.landers import LanderConformance  # noqa: E402
from offsetkeeper.testing.conformance.medium import FilesMedium, Medium, SqlMedium  # noqa: E402
from offsetkeeper.testing.conformance.served import Stage  # noqa: E402
from offsetkeeper.testing.conformance.stores import StoreConformance  # noqa: E402
from offsetkeeper.testing.conformance.transactions import TransactionConformance  # noqa: E402

__all__ = [
    "DurableConformance",
    "FaultConformance",
    "FilesMedium",
    "HistoryConformance",
    "LanderConformance",
    "Medium",
    "SqlMedium",
    "Stage",
    "StoreConformance",
    "TransactionConformance",
    "TransactionFaultConformance",
]
