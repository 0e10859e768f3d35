"""Keeps the offsets of pipelines that read Kafka with Spark: what was processed, and where reading goes on."""

from importlib import import_module
from typing import TYPE_CHECKING

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

if TYPE_CHECKING:
    from offsetkeeper.core.batch import Batch
    from offsetkeeper.core.ledger import Ledger
    from offsetkeeper.core.model import Entry, Guarantee, Snapshot
    from offsetkeeper.core.offsets import OffsetRange, Position, TopicPartition
    from offsetkeeper.core.plan import Plan, Policies, Verdict
    from offsetkeeper.engines.checkpoint_match import OnMismatch
    from offsetkeeper.engines.loop import Progress, Summary
    from offsetkeeper.engines.progress import QueryProgress
    from offsetkeeper.engines.query import Query, Stream
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

__version__ = "0.3.0.dev0"

_HOMES = {
    "Batch": "core.batch",
    "Entry": "core.model",
    "Guarantee": "core.model",
    "Ledger": "core.ledger",
    "OffsetRange": "core.offsets",
    "OnMismatch": "engines.checkpoint_match",
    "Pipeline": "pipeline",
    "Plan": "core.plan",
    "Policies": "core.plan",
    "Position": "core.offsets",
    "Progress": "engines.loop",
    "Query": "engines.query",
    "QueryProgress": "engines.progress",
    "Snapshot": "core.model",
    "Stream": "engines.query",
    "Summary": "engines.loop",
    "TopicPartition": "core.offsets",
    "Verdict": "core.plan",
    "open_store": "stores",
    "reading_error": "readers",
}
_PACKAGES = frozenset({"checkpoint", "core", "engines", "kafka", "operate", "pipeline", "readers", "sinks", "stores"})

if not TYPE_CHECKING:  # else any name would be right for a type checker

    def __getattr__(name: str) -> object:
        """Load a public name when it is first used: who needs few of them waits for few."""
        if name in _PACKAGES:  # `offsetkeeper.sinks` needs no import of its own, as before
            return import_module(f"{__name__}.{name}")
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
        globals()[name] = found  # so that it is not asked for again
        return found

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
