"""Keeps the offsets of pipelines that read Kafka with Spark: what was processed, and where reading goes on."""

from offsetkeeper.core.ledger import Ledger
from offsetkeeper.core.model import Batch, Guarantee, OffsetRange, Position, Snapshot, TopicPartition
from offsetkeeper.core.plan import Plan, Policies, Verdict
from offsetkeeper.engines.reconcile import OnMismatch
from offsetkeeper.pipeline import Pipeline
from offsetkeeper.stores import open_store

__all__ = [
    "Batch",
    "Guarantee",
    "Ledger",
    "OffsetRange",
    "OnMismatch",
    "Pipeline",
    "Plan",
    "Policies",
    "Position",
    "Snapshot",
    "TopicPartition",
    "Verdict",
    "open_store",
]

__version__ = "0.1.0"
