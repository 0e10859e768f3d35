"""The store in HBase: the suites."""

from __future__ import annotations

from fixtures.hbase import HBaseMedium
from offsetkeeper.testing.conformance import DurableConformance, FaultConformance, HistoryConformance, StoreConformance


class TestHBase(HBaseMedium, StoreConformance, HistoryConformance, DurableConformance, FaultConformance):
    """The suites."""
