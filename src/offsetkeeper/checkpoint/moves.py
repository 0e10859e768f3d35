"""Plans that make a query go on elsewhere: at other offsets, or after an earlier batch. Pure."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

from offsetkeeper.checkpoint.contents import Checkpoint, kafka_offsets
from offsetkeeper.checkpoint.edit import Edit, make_edit
from offsetkeeper.checkpoint.log_format import dump_commit, dump_metadata, dump_offset_log, move_offsets
from offsetkeeper.core.model import TopicPartition, check_offset
from offsetkeeper.errors import NotAllowed


def plan_move(checkpoint: Checkpoint, targets: Mapping[TopicPartition, int]) -> Edit:
    """Return the plan that makes a query without state go on at other offsets, by a batch that processes nothing.

    The batch has a number of its own, so that none is used twice. One that was begun and not committed is given up: its
    number is taken by that batch. Partitions that are not named go on where they are.

    Args:
        checkpoint: as it is.
        targets: the next offset to read, by partition.

    Raises:
        NotAllowed: the query has state, no batch yet, or does not read one of the topics.
        CorruptStore: a file that Spark reads at the start is torn or missing.
    """
    found = checkpoint.next()
    _check_movable(checkpoint)
    last = checkpoint.offsets[-1]
    log = checkpoint.offset_log(last)
    moved = {name: _moved(found.starts.get(name), targets) for name in log.sources}
    _check_read(checkpoint, moved, targets)
    if all(found.starts.get(name) == text for name, text in moved.items()):
        return make_edit(checkpoint, "move", {})
    watermark = {**log.metadata, "batchWatermarkMs": found.watermark_ms}
    done = checkpoint.commits
    commit = checkpoint.logs[f"commits/{done[-1]}"] if done else dump_commit(found.watermark_ms).encode()
    writes = {
        f"offsets/{found.batch}": dump_offset_log(replace(log, metadata=watermark, sources=moved)).encode(),
        f"commits/{found.batch}": commit,
    }
    given_up = (
        f"batch {last} was begun and never committed: what it has written stays, it does not run again, and partitions "
        "that are not named are read from where it began"
    )
    return make_edit(checkpoint, "move", writes, notes=[given_up] if found.kind == "again" else [])


def plan_truncate(checkpoint: Checkpoint, batch: int, *, query_id: Literal["", "keep", "new"] = "") -> Edit:
    """Return the plan that takes a query back to where it was after a batch, with the state of then.

    The numbers of the batches after it are used again. Outputs that know what they have by (query id, batch number),
    as Delta's do, would drop the replay in silence under the same query id.

    Args:
        checkpoint: as it is.
        batch: the last batch that stays.
        query_id: "new" where such an output shall take the replay, "keep" where it must not be taken twice.

    Raises:
        NotAllowed: `query_id` was not chosen, or the batch or its state is not there any more.
        CorruptStore: a file that Spark would read then is torn.
    """
    _check_batch(checkpoint, batch)
    deletes = [
        f"{folder}/{n}"
        for folder in ("offsets", "commits")
        for n in checkpoint.offsets + checkpoint.commits
        if n > batch
    ]
    deletes = [name for name in dict.fromkeys(deletes) if name in checkpoint.logs]
    deletes += checkpoint.state_after(batch + 1)
    if deletes and query_id not in {"keep", "new"}:
        raise NotAllowed(
            f"batches {batch + 1} and later will run again under the same numbers. Choose the query id: new, so that "
            "outputs that know (query id, batch) take the replay, or keep, so that they drop what they have"
        )
    checkpoint.changed({}, deletes).next()
    notes = [f"the numbers of batches {batch + 1} and later are used again, under {_whose(query_id)} query id"]
    notes += [
        "Spark's own file sink goes by the number alone and drops the replay in any case; see its _spark_metadata"
    ]
    writes = {"metadata": dump_metadata(str(uuid.uuid4())).encode()} if deletes and query_id == "new" else {}
    return make_edit(checkpoint, f"truncate after batch {batch}", writes, deletes, notes=notes if deletes else ())


def offsets_after(checkpoint: Checkpoint, batch: int) -> dict[TopicPartition, int]:
    """Return where a batch ended; where several sources read a partition, the lowest.

    Raises:
        CorruptStore: the file is torn or missing.
    """
    lowest: dict[TopicPartition, int] = {}
    for name, text in checkpoint.offset_log(batch).sources.items():
        for tp, offset in kafka_offsets(text, checkpoint.at(f"offsets/{batch}, source {name}")).items():
            lowest[tp] = min(offset, lowest.get(tp, offset))
    return lowest


def _check_movable(checkpoint: Checkpoint) -> None:
    if not checkpoint.offsets:
        raise NotAllowed(f"{checkpoint.where}: no batch was planned yet. Seed it instead, or set startingOffsets")
    if checkpoint.stateful:
        raise NotAllowed(
            f"{checkpoint.where}: the query keeps state, and its state belongs to its offsets. Truncate to a batch "
            "whose state is still there, or seed a new checkpoint and build the state anew"
        )
    if (ahead := max(checkpoint.commits, default=-1)) > checkpoint.offsets[-1]:
        raise NotAllowed(f"{checkpoint.where}: batch {ahead} is committed without offsets. See verify, mend that first")
    if not checkpoint.offset_log(checkpoint.offsets[-1]).metadata:
        raise NotAllowed(f"{checkpoint.where}: a continuous query wrote it. Complete it first")


def _moved(text: str | None, targets: Mapping[TopicPartition, int]) -> str | None:
    offsets = kafka_offsets(text, "the source")
    topics = {tp.topic for tp in offsets}
    ours = {tp: check_offset(offset) for tp, offset in targets.items() if tp.topic in topics}
    return text if text is None or ours.items() <= offsets.items() else move_offsets(text, ours)


def _check_read(checkpoint: Checkpoint, moved: Mapping[str, str | None], targets: Mapping[TopicPartition, int]) -> None:
    reached = {tp for text in moved.values() for tp in kafka_offsets(text, "the source")}
    if missing := sorted(targets.keys() - reached):
        raise NotAllowed(f"{checkpoint.where}: no source of the query has begun to read topic {missing[0].topic}")


def _check_batch(checkpoint: Checkpoint, batch: int) -> None:
    both = set(checkpoint.offsets) & set(checkpoint.commits)
    whole = sorted(n for n in both if n == 0 or n - 1 in checkpoint.offsets)  # without n-1 Spark does not start
    if batch not in whole:
        raise NotAllowed(f"{checkpoint.where}: batch {batch} cannot be the last: those that can are {_listed(whole)}")
    stores = checkpoint.state_stores()
    if missing := [store for store in stores if not store.has(batch + 1)]:
        kept = [n for n in whole if all(store.has(n + 1) for store in stores)]
        raise NotAllowed(
            f"{checkpoint.where}: {missing[0]} has no version {batch + 1} any more, which the query needs after batch "
            f"{batch}. Batches with their state: {_listed(kept)}"
        )


def _listed(numbers: list[int]) -> str:
    return "none" if not numbers else ", ".join(map(str, numbers[-20:]))


def _whose(query_id: str) -> str:
    return "a new" if query_id == "new" else "the same"
