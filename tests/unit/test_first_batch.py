"""A first batch that is planned before Spark runs it, in Spark's own files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from offsetkeeper.checkpoint.files import LocalFiles
from offsetkeeper.checkpoint.first_batch import SETTINGS, first_batch
from offsetkeeper.checkpoint.log_format import OffsetLog, dump_initial_offsets, dump_offset_log, dump_offsets
from offsetkeeper.checkpoint.logs import BatchLog
from offsetkeeper.core.offsets import TopicPartition
from offsetkeeper.core.topics import Topics
from offsetkeeper.errors import CheckpointMismatch

WRITTEN = Path(__file__).parents[1] / "checkpoints" / "written_by"
STARTS = {TopicPartition("orders", 0): 3, TopicPartition("orders", 1): 0}
ENDS = {TopicPartition("orders", 0): 9, TopicPartition("orders", 1): 0}
QUERY = "00000000-0000-4000-8000-000000000001"


def test_the_settings_are_all_that_a_release_of_spark_has_kept() -> None:
    files = [*WRITTEN.glob("*/*/offsets/0")]
    kept = {name for file in files for name in json.loads(file.read_text("utf-8").splitlines()[1]).get("conf", {})}
    assert len(kept) > 8
    assert kept <= {*SETTINGS}


@pytest.mark.parametrize("packed", [True, False])
def test_it_is_read_back_with_where_it_begins(*, packed: bool, tmp_path: Path) -> None:
    metadata: dict[str, Any] = {"batchWatermarkMs": 7, "batchTimestampMs": 8, "conf": {"spark.x": "y"}}
    files = first_batch(QUERY, STARTS, ENDS, metadata, packed=packed)
    assert list(files)[-1] == "offsets/0"  # what makes it a batch is written last
    assert ("sources/0/0" in files) is not packed
    folder = LocalFiles(tmp_path)
    for name, content in files.items():
        folder.write(name, content)
    log = BatchLog(folder, Topics.of(["orders"]), {}, packed)
    found = log.batch_offsets(0)
    assert (log.query_id(), log.newest(), found.starts, found.ends) == (QUERY, (0, False), STARTS, ENDS)
    assert (found.watermark_ms, found.new, log.planned_starts()) == (7, frozenset(), STARTS)


def test_where_the_connector_began_is_what_it_wrote_down(tmp_path: Path) -> None:
    """The ledger's positions stand for it only until then: they may have moved since the batch was planned."""
    folder = LocalFiles(tmp_path)
    folder.write("offsets/0", dump_offset_log(OffsetLog(1, {}, {"0": dump_offsets(ENDS)})))
    topics = Topics.of(["orders"])
    assert BatchLog(folder, topics, STARTS, packed=False).batch_offsets(0).starts == STARTS
    assert BatchLog(folder, topics, {}, packed=True).batch_offsets(0).starts == ENDS
    with pytest.raises(CheckpointMismatch, match="sources/0/0 is missing, so the range of the batch is unknown"):
        BatchLog(folder, topics, {}, packed=False).batch_offsets(0)
    folder.write("sources/0/0", dump_initial_offsets({}))  # the topic came later, and is read from its beginning
    for began in ({}, STARTS):
        assert BatchLog(folder, topics, began, packed=False).batch_offsets(0).starts == dict.fromkeys(ENDS, 0)
