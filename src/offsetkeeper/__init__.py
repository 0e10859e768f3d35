"""Keeps the offsets of pipelines that read Kafka with Spark: what was processed, and where reading goes on."""

from offsetkeeper.core.batch import Batch
from offsetkeeper.core.ledger import Ledger
from offsetkeeper.core.model import Entry, Guarantee, Snapshot
from offsetkeeper.core.offsets import OffsetRange, Position, TopicPartition
from offsetkeeper.core.plan import Plan, Policies, Verdict
from offsetkeeper.engines.checkpoint_match import OnMismatch
from offsetkeeper.engines.loop import Progress, Summary
from offsetkeeper.engines.progress import QueryProgress
from offsetkeeper.engines.query import Query, Stream
from offsetkeeper.errors import (
    CheckpointMismatch,
    Fenced,
    GuaranteeRefused,
    OffsetkeeperError,
    OutcomeUnknown,
    RangeGone,
    ReadStalled,
    RecordUnreadable,
    Refused,
    SettingsError,
    SparkGone,
    StartRefused,
    StoreUnavailable,
)
from offsetkeeper.pipeline import Pipeline
from offsetkeeper.readers import reading_error
from offsetkeeper.stores import open_store

__all__ = [
    "Batch",
    "CheckpointMismatch",
    "Entry",
    "Fenced",
    "Guarantee",
    "GuaranteeRefused",
    "Ledger",
    "OffsetRange",
    "OffsetkeeperError",
    "OnMismatch",
    "OutcomeUnknown",
    "Pipeline",
    "Plan",
    "Policies",
    "Position",
    "Progress",
    "Query",
    "QueryProgress",
    "RangeGone",
    "ReadStalled",
    "RecordUnreadable",
    "Refused",
    "SettingsError",
    "Snapshot",
    "SparkGone",
    "StartRefused",
    "StoreUnavailable",
    "Stream",
    "Summary",
    "TopicPartition",
    "Verdict",
    "open_store",
    "reading_error",
]

__version__ = "0.2.0"
