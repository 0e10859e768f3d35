"""Hypothesis strategies for whatever a store may be given."""

from __future__ import annotations

import itertools
import string
from dataclasses import replace
from itertools import pairwise

from hypothesis import strategies as st

from offsetkeeper.core.batch import Batch, Output, Program, QueryBatch
from offsetkeeper.core.codec import LATEST_MS
from offsetkeeper.core.model import Change, Count, Entry, Having, Landed, Move, Owner, Snapshot, check_group
from offsetkeeper.core.offsets import MAX_OFFSET, MAX_PARTITION, OffsetRange, Position, TopicPartition
from offsetkeeper.errors import SettingsError

_ODD_GROUPS = (
    "team/orders:v2",
    "..",
    " a\t",
    "a\nb",
    "it's",
    '"quoted"',
    "x'; DROP TABLE kafka_offsets; --",
    "a b",
    "%s %(group)s",
    "{group} {0}",
    "?",
    "back\\slash",
    "NULL",
    "группа",
    "グループ",
    "🦆",
    "g" * 249,
)
_LONGEST = 27  # characters, each of which a store may write as nine
_ODD_TOPICS = ("NULL", "null", "a.b-c_d", "...", "-", "0", "t" * 249)


def _is_group(name: str) -> bool:
    try:
        check_group(name)
    except SettingsError:
        return False
    return True


groups = st.sampled_from(_ODD_GROUPS) | st.text(min_size=1, max_size=_LONGEST).filter(_is_group)
topics = st.sampled_from(_ODD_TOPICS) | st.text(string.ascii_letters + string.digits + "_-", min_size=1, max_size=20)
topic_partitions = st.builds(TopicPartition, topics, st.integers(0, MAX_PARTITION))
offsets = st.integers(0, MAX_OFFSET) | st.integers(0, 9)
# What Kafka gives is base64; more is tried, but no NUL, which PostgreSQL's texts cannot hold.
topic_ids = st.text(st.characters(codec="utf-8", min_codepoint=32), max_size=30)
words = st.text(max_size=30)
_counts = st.integers(0, 2**53)
positions = st.builds(Position, offsets, st.none() | topic_ids, st.none() | words, st.none() | _counts)
_told = positions.map(lambda at: at._replace(leader_epoch=None))  # a history has no leader epochs
times = st.integers(0, LATEST_MS)
_owners = st.builds(Owner, words, _counts, words)
_epochs = st.tuples(_counts, _counts, _counts)
_digests = st.lists(st.text("0123456789abcdef", min_size=1, max_size=16), max_size=3, unique=True)
_query_ids = st.uuids().map(str)
_queries = st.dictionaries(_query_ids, _counts, max_size=2)


@st.composite
def _ranges(draw: st.DrawFn, tp: TopicPartition) -> list[OffsetRange]:
    """Return one to three ranges of a partition, each starting where the one before ends."""
    cuts = draw(st.lists(offsets, min_size=2, max_size=4, unique=True).map(sorted))
    return [OffsetRange(*tp, start, end) for start, end in pairwise(cuts)]


@st.composite
def ranges(draw: st.DrawFn) -> tuple[OffsetRange, ...]:
    """Return sorted ranges of up to four partitions."""
    parts = draw(st.lists(topic_partitions, max_size=4, unique=True))
    return tuple(sorted(r for tp in parts for r in draw(_ranges(tp))))


@st.composite
def _batches(draw: st.DrawFn, group: str, sequence: int, wanted: tuple[OffsetRange, ...]) -> Batch:
    names = st.lists(words, max_size=2).map(tuple)
    texts = st.dictionaries(words, words, max_size=2)
    program = st.none() | st.builds(Program, names, texts, texts)
    query = st.builds(QueryBatch, _query_ids, _counts)
    return Batch(
        group,
        draw(words),
        sequence,
        wanted,
        written=draw(names),
        lands_in=draw(names),
        program=draw(program),
        query=draw(query if not wanted else st.none() | query),
    )


@st.composite
def changes(draw: st.DrawFn, before: Snapshot) -> Change:
    """Return any change that a store must be able to write, also ones that the rules never make."""
    known = st.sampled_from(sorted(before.positions)) if before.positions else st.nothing()
    targets = draw(st.dictionaries(known | topic_partitions, positions, max_size=6))
    moves = {tp: Move(before.positions.get(tp), position) for tp, position in targets.items()}
    epoch, generation, sequence = draw(_epochs)
    pending = draw(st.none() | ranges())
    batch = None if pending is None else draw(_batches(before.group, sequence, pending))
    unsettled = draw(st.none() | _batches(before.group, draw(_counts), draw(ranges())))
    if unsettled is not None:
        parts = sorted(unsettled.partitions)
        unsettled = replace(unsettled, moved=tuple(tp for tp in parts if draw(st.booleans())))
    after = Snapshot(
        group=before.group,
        version=before.version + 1,
        owner=draw(st.none() | _owners),
        epoch=epoch,
        generation=generation,
        sequence=sequence,
        positions={**before.positions, **targets},
        pending=batch,
        change_id=draw(words),
        landed=draw(st.dictionaries(words, st.builds(Landed, _counts, words), max_size=2)),
        unsettled=unsettled,
        given=tuple(draw(_digests)),
        queries={**before.queries, **draw(_queries)},
        watermark_ms=draw(st.none() | _counts),
        outputs=draw(st.dictionaries(words, st.builds(Output, words, words), max_size=2)),
        partly=tuple(draw(st.lists(words, max_size=2))),
    )
    return Change(before, after, moves, draw(_entries(after)))


@st.composite
def _entries(draw: st.DrawFn, after: Snapshot) -> Entry:
    moves = st.dictionaries(topic_partitions, st.builds(Move, st.none() | _told, _told), max_size=3)
    epoch, generation, sequence = draw(_epochs)
    return Entry(
        version=after.version,
        event=draw(words),
        change_id=after.change_id,
        at_ms=draw(times),
        actor=draw(words),
        reason=draw(words),
        epoch=epoch,
        generation=generation,
        sequence=sequence,
        token=draw(words),
        ranges=draw(ranges()),
        moves=draw(moves),
        counts=draw(st.dictionaries(_query_ids, st.builds(Count, st.none() | _counts, _counts), max_size=2)),
        cuts=draw(st.dictionaries(topic_partitions, st.just(-1) | offsets, max_size=2)),
        having=draw(st.sampled_from(Having)),
        mirror=draw(st.booleans()),
    )


_number = itertools.count()


@st.composite
def histories(draw: st.DrawFn) -> list[Change]:
    """Return one to four changes, each on top of the one before, of a group that was never used before."""
    snapshot = Snapshot(f"group-{next(_number)}")
    made = []
    for _ in range(draw(st.integers(1, 4))):
        made.append(draw(changes(snapshot)))
        snapshot = made[-1].after
    return made
