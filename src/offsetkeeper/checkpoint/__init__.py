"""Reads the checkpoint of a streaming query, and changes it: seed, move, truncate, convert, undo.

    files = open_files("checkpoints/orders")
    print(inspect(read_checkpoint(files)))
    edit = plan_move(read_checkpoint(files), {TopicPartition("orders", 0): 1200})
    print(edit)             # old and new offsets
    apply(files, edit)      # makes a backup; plan_undo(files) restores it

Plans are pure and change nothing. Spark is needed only for a folder that only Spark can reach. Whether a checkpoint
matches the ledger is decided in `engines/checkpoint_guard`.
"""

from offsetkeeper.checkpoint.change import apply, plan_undo
from offsetkeeper.checkpoint.contents import Checkpoint, Next, StateStore, read_checkpoint
from offsetkeeper.checkpoint.difference import Difference, PositionCheck, against_kafka, differences
from offsetkeeper.checkpoint.files import Files, LocalFiles, Stamp
from offsetkeeper.checkpoint.folder import open_files
from offsetkeeper.checkpoint.inspection import (
    BatchInspection,
    BatchRow,
    Inspection,
    InspectionRow,
    inspect,
    inspect_batch,
)
from offsetkeeper.checkpoint.plans import (
    Edit,
    Step,
    offsets_after,
    plan_complete,
    plan_convert,
    plan_move,
    plan_seed,
    plan_truncate,
)
from offsetkeeper.checkpoint.problems import Problem
from offsetkeeper.checkpoint.store import CheckpointStore
from offsetkeeper.checkpoint.verification import verify

__all__ = [
    "BatchInspection",
    "BatchRow",
    "Checkpoint",
    "CheckpointStore",
    "Difference",
    "Edit",
    "Files",
    "Inspection",
    "InspectionRow",
    "LocalFiles",
    "Next",
    "PositionCheck",
    "Problem",
    "Stamp",
    "StateStore",
    "Step",
    "against_kafka",
    "apply",
    "differences",
    "inspect",
    "inspect_batch",
    "offsets_after",
    "open_files",
    "plan_complete",
    "plan_convert",
    "plan_move",
    "plan_seed",
    "plan_truncate",
    "plan_undo",
    "read_checkpoint",
    "verify",
]
