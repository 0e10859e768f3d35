"""The records of a ledger as JSON: back as they were, and garbage of every kind told as such."""

from __future__ import annotations

import copy
import json
import tracemalloc
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from offsetkeeper.core import codec
from offsetkeeper.core.batch import Batch, Program
from offsetkeeper.core.codec import dump_control, dump_entry, load_control, load_entry, load_position
from offsetkeeper.core.ledger import Ledger
from offsetkeeper.core.model import Change, Entry, Move, Owner, Snapshot
from offsetkeeper.core.offsets import OffsetRange, Position, TopicPartition
from offsetkeeper.errors import CorruptStore
from offsetkeeper.stores.memory import MemoryStore

naturals = st.integers(0, 2**63 - 1)
texts = st.text(st.characters(codec="utf-8"), max_size=12)
halves = st.text(st.characters(), max_size=12)  # lone surrogates included: as names of hosts and reasons may have
times = st.integers(0, 253_402_300_799_999)  # to the end of the year 9999
topics = st.from_regex(r"[a-zA-Z0-9_-][a-zA-Z0-9._-]{0,10}", fullmatch=True)
partitions = st.builds(TopicPartition, topics, st.integers(0, 2**31 - 1))
positions = st.builds(Position, naturals, st.none() | texts, st.none() | texts, st.none() | naturals)
unled = positions.map(lambda at: at._replace(leader_epoch=None))


@st.composite
def range_tuples(draw: st.DrawFn, least: int = 0) -> tuple[OffsetRange, ...]:
    ranges = []
    for tp in draw(st.sets(partitions, min_size=least, max_size=4)):
        start, end = sorted(draw(st.tuples(naturals, naturals).filter(lambda pair: pair[0] != pair[1])))
        ranges.append(OffsetRange(*tp, start, end))
    return tuple(sorted(ranges))


@st.composite
def snapshots(draw: st.DrawFn) -> Snapshot:
    generation, sequence = draw(naturals), draw(naturals)
    written = st.lists(texts, max_size=2).map(tuple)
    ranges, program = (
        range_tuples(least=1),
        st.none() | st.builds(Program, written, *[st.dictionaries(texts, texts, max_size=2)] * 2),
    )
    batches = st.builds(Batch, st.just("g"), texts, st.just(sequence), ranges, written=written, program=program)
    pending = draw(st.none() | batches)
    return Snapshot(
        group="g",
        version=draw(naturals),
        owner=draw(st.none() | st.builds(Owner, texts, naturals, texts)),
        epoch=draw(naturals),
        generation=generation,
        sequence=sequence,
        positions=draw(st.dictionaries(partitions, positions, max_size=2)),
        pending=pending,
        change_id=draw(texts),
    )


moves = st.dictionaries(partitions, st.builds(Move, st.none() | unled, unled), max_size=4)
entries = st.builds(
    Entry, naturals, texts, texts, times, texts, texts, naturals, naturals, naturals, texts, range_tuples(), moves
)


@given(snapshots())
def test_a_control_record_comes_back_as_it_was(snapshot: Snapshot) -> None:
    text = dump_control(snapshot)
    rows = {tp: Position(at.offset, at.topic_id) for tp, at in snapshot.positions.items()}  # as stores have them
    found = load_control(text, "g", snapshot.version, rows, "here")
    assert found == snapshot
    assert (found.pending and found.pending.program) == (snapshot.pending and snapshot.pending.program)
    assert "\n" not in text


def test_offsets_by_hand_are_kept_as_words_of_one_text() -> None:
    """One word is what an older ledger has."""
    for digests in ((), ("0a",), ("0a", "0b")):
        text = dump_control(Snapshot("g", 1, given=digests))
        assert f'"given":"{" ".join(digests)}"' in text
        assert load_control(text, "g", 1, {}, "here").given == digests


@given(entries)
def test_a_history_entry_comes_back_as_it_was(entry: Entry) -> None:
    assert load_entry(dump_entry(entry), entry.version, "here") == entry


@given(snapshots(), entries)
def test_records_are_plain_ascii(snapshot: Snapshot, entry: Entry) -> None:
    """So no store's character set, and no broken name of a host, can keep a change from being written."""
    assert dump_control(snapshot).isascii()
    assert dump_entry(entry).isascii()


def test_the_control_record_holds_no_offsets() -> None:
    """They are the store's own rows; a copy could contradict them. It names their partitions."""
    at = {TopicPartition("orders", number): Position(41) for number in (0, 1, 2, 4)}
    stored = dump_control(Snapshot("g", 1, positions=at))
    assert "41" not in stored
    assert '"holds":{"orders":"0-2,4"}' in stored


def test_the_control_record_names_the_cluster_once_where_all_positions_are_in_it() -> None:
    """And names what is in it where they are not."""
    at = {TopicPartition("orders", number): Position(1, None, "A") for number in range(9)}
    assert '"clusters":{"A":"*"}' in dump_control(Snapshot("g", 1, positions=at))
    at |= {TopicPartition("orders", 9): Position(1, None, "B"), TopicPartition("orders", 10): Position(1)}
    stored = dump_control(Snapshot("g", 1, positions=at))
    assert '"clusters":{"A":{"orders":"0-8"},"B":{"orders":"9"}}' in stored
    assert load_control(stored, "g", 1, {tp: Position(1) for tp in at}, "here").positions == at


def test_a_history_entry_without_clusters_is_as_it_was() -> None:
    entry = Entry(1, "place", "c", 1, "h", moves={TopicPartition("t", 0): Move(Position(1, "id"), Position(2))})
    assert '"moves":[["t",0,[1,"id"],[2,null]]]' in dump_entry(entry)


def test_positions_that_the_control_record_names_and_the_store_has_no_more_are_missing() -> None:
    at = {TopicPartition(topic, number): Position(1) for topic in ("a", "b") for number in range(12)}
    stored = dump_control(Snapshot("g", 1, positions=at))
    kept = {tp: each for tp, each in at.items() if tp not in {("a", 0), ("b", 5), ("b", 6)}}
    found = load_control(stored, "g", 1, kept, "here")
    assert sorted(found.missing) == [("a", 0), ("b", 5), ("b", 6)]
    assert load_control(dump_control(found), "g", 2, kept, "here").missing == found.missing
    more = {**kept, TopicPartition("c", 0): Position(7)}
    assert load_control(stored, "g", 1, more, "here").missing == found.missing


@pytest.mark.parametrize("spans", ["", "1-", "-1", "2-1", "0-1000000", "a", "1,,2", "0-99999999999999999999"])
def test_partitions_that_no_topic_has_are_refused(spans: str) -> None:
    stored = dump_control(Snapshot("g", 1, positions={TopicPartition("a", 0): Position(1)}))
    with pytest.raises(CorruptStore):
        load_control(stored.replace('"a":"0"', f'"a":"{spans}"'), "g", 1, {}, "here")


@pytest.mark.parametrize("named", ["holds", "clusters"])
def test_partitions_that_no_cluster_has_are_refused_before_there_is_one_of_them(named: str) -> None:
    """A record of some hundred bytes took gigabytes."""
    at = {TopicPartition("a", 0): Position(1, cluster_id="here"), TopicPartition("b", 0): Position(1)}
    many = ",".join(["0-999999"] * 2000)
    stored = json.loads(dump_control(Snapshot("g", 1, positions=at)))
    stored[named] = {"a": many}
    if named == "clusters":
        stored[named] = {f"cluster {number}": {"a": "0-999999"} for number in range(2000)}
    tracemalloc.start()
    with pytest.raises(CorruptStore):
        load_control(json.dumps(stored), "g", 1, at, "here")
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 20 << 20


FULL = dump_control(
    Snapshot(
        "g", 3, Owner("id", 2, "host:1"), 2, 1, 5, {}, Batch("g", "one", 5, (OffsetRange("t", 0, 3, 9),)), "change"
    )
)
ENTRY = dump_entry(
    Entry(
        3, "place", "change", 17, "host:1", "why", 2, 1, 5, "one", (OffsetRange("t", 0, 3, 9),),
        {TopicPartition("t", 0): Move(Position(1, "id"), Position(2)), TopicPartition("t", 1): Move(None, Position(0))},
    )
)  # fmt: skip
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


def paths(node: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the way to every value in a tree of JSON."""
    below = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    return [path, *(found for key, child in below for found in paths(child, (*path, key)))]


@st.composite
def mutants(draw: st.DrawFn, text: str) -> str:
    """Return a record with one value replaced or removed, or with some of its characters changed."""
    if draw(st.booleans()):
        at, length = draw(st.integers(0, len(text))), draw(st.integers(0, 4))
        return text[:at] + draw(st.text(max_size=3)) + text[at + length :]
    tree = [json.loads(text)]
    *way, last = draw(st.sampled_from(paths(tree)[1:]))
    parent: Any = tree
    for key in way:
        parent = parent[key]
    if draw(st.booleans()):
        parent[last] = draw(json_values | st.just(copy.deepcopy(parent)))
    else:
        del parent[last]
    return json.dumps(tree[0]) if tree else ""


def well_formed(snapshot: Snapshot) -> bool:
    """Whether every part has the type the rules count on."""
    owner, pending = snapshot.owner, snapshot.pending
    numbers = [snapshot.version, snapshot.epoch, snapshot.generation, snapshot.sequence]
    strings = [snapshot.change_id]
    if owner is not None:
        numbers.append(owner.epoch)
        strings += [owner.id, owner.name]
    if pending is not None:
        assert pending.ranges
        assert pending.sequence == snapshot.sequence
        strings.append(pending.token)
        for r in pending.ranges:
            assert r.start < r.end
            numbers += [r.partition, r.start, r.end]
            strings.append(r.topic)
    return all(type(n) is int and n >= 0 for n in numbers) and all(type(s) is str for s in strings)


@settings(max_examples=500)
@given(mutants(FULL))
@example(FULL.replace('{"id":"id","epoch":2,"name":"host:1"}', "0"))
@example(FULL.replace('{"id":"id","epoch":2,"name":"host:1"}', '""'))
@example(FULL.replace('"name":"host:1"', '"name":7'))
@example(FULL.replace('{"t":[[0,3,9]]}', "{}"))
@example(FULL.replace('{"t":[[0,3,9]]}', '{"t":[]}'))
@example(FULL.replace("[0,3,9]", "[0,9,3]"))
@example(FULL.replace("[0,3,9]", "[0,3,3]"))
@example(FULL.replace("[0,3,9]", "[0,3,9.0]"))
@example(FULL.replace('{"token":"one","ranges":{"t":[[0,3,9]]},"written":[]}', "[]"))
@example(FULL.replace('{"t":', '{"no topic!":'))
@example(FULL.replace('"format":4', '"format":"2"'))
@example(FULL.replace('"format":4', '"format":NaN'))
@example(FULL.replace('"format":4', '"format":4' + "0" * 5000))
@example("[" * 100_000)
@example("")
@example("null")
def test_a_broken_control_record_is_corrupt_or_a_sound_ledger_but_nothing_else(text: str) -> None:
    try:
        snapshot = load_control(text, "g", 3, {}, "here")
    except CorruptStore as error:
        assert str(error).startswith("here ")  # noqa: PT017 - either outcome is right
    else:
        assert well_formed(snapshot)
        assert load_control(dump_control(snapshot), "g", 3, {}, "here") == snapshot


@settings(max_examples=500)
@given(mutants(ENTRY))
@example(ENTRY.replace('"event":"place"', '"event":null'))
@example(ENTRY.replace('"at_ms":17', '"at_ms":"17"'))
@example(ENTRY.replace('[1,"id"]', "0"))
@example(ENTRY.replace('[1,"id"]', '["1","id"]'))
@example(ENTRY.replace('[1,"id"]', "[1,2]"))
@example(ENTRY.replace("[2,null]", "null"))
@example("[" * 100_000)
def test_a_broken_history_entry_is_corrupt_or_a_sound_entry_but_nothing_else(text: str) -> None:
    try:
        entry = load_entry(text, 3, "here")
    except CorruptStore as error:
        assert str(error).startswith("here ")  # noqa: PT017 - either outcome is right
    else:
        assert all(type(n) is int for n in (entry.at_ms, entry.epoch, entry.generation, entry.sequence))
        assert all(type(s) is str for s in (entry.event, entry.change_id, entry.actor, entry.reason, entry.token))
        assert load_entry(dump_entry(entry), 3, "here") == entry


def test_a_control_record_that_no_store_could_change_is_told() -> None:
    """Stores look for the change's id in its text."""
    with pytest.raises(
        CorruptStore, match=r"here was edited: write its JSON without spaces, so that it contains \"change_id\":"
    ):
        load_control(json.dumps(json.loads(FULL)), "g", 3, {}, "here")


@pytest.mark.parametrize("load", [load_entry, lambda text, v, where: load_control(text, "g", v, {}, where)])
@pytest.mark.parametrize("garbage", [None, 7, b"\xff\xfe", b"{}", "\x00", "true", [], {}, object], ids=repr)
def test_what_is_not_even_text_is_corrupt(load: Any, garbage: Any) -> None:
    """Clients without types hand over whatever the server sent."""
    with pytest.raises(CorruptStore, match=r"^here is not a "):
        load(garbage, 3, "here")


@pytest.mark.parametrize("version", [None, -1, "3", 3.0, True], ids=repr)
def test_a_version_that_is_no_number_is_corrupt(version: Any) -> None:
    with pytest.raises(CorruptStore, match="here is not a control record: a value is wrong"):
        load_control(FULL, "g", version, {}, "here")
    with pytest.raises(CorruptStore, match="here is not a history entry: a value is wrong"):
        load_entry(ENTRY, version, "here")


def test_a_record_of_a_newer_version_is_not_called_garbage() -> None:
    newer = FULL.replace(f'"format":{codec.FORMAT}', f'"format":{codec.FORMAT + 1}')
    with pytest.raises(
        CorruptStore, match=r"here was written by a newer offsetkeeper .format 5.: upgrade this program"
    ):
        load_control(newer, "g", 3, {}, "here")


def test_records_of_format_1_are_read_and_the_batch_keeps_its_identity() -> None:
    """There a batch was named by its generation."""
    old = FULL.replace('"format":4', '"format":1').replace('"token":"one"', '"generation":17')
    pending = load_control(old, "g", 3, {}, "here").pending
    assert pending is not None
    assert pending.id == "g/17/5"
    entry = json.loads(ENTRY)
    del entry["token"]
    assert load_entry(json.dumps(entry), 3, "here").token == "1"
    assert load_entry(json.dumps({**entry, "ranges": {}}), 3, "here").token == ""


def test_the_message_shows_the_beginning_of_the_record_and_the_remedy() -> None:
    with pytest.raises(CorruptStore) as caught:
        load_control("x" * 10_000, "g", 3, {}, "sqlite:///o.db, group 'g',")
    message = str(caught.value)
    assert message.startswith("sqlite:///o.db, group 'g', is not a control record")
    assert "correct or delete that record" in message
    assert len(message) < 600


@pytest.mark.parametrize("position", [0, "", [], {}, False])
def test_a_forgotten_position_that_is_none_and_not_null_is_corrupt(position: object) -> None:
    """Null means that the store had lost it; these were taken for positions, and an undo failed on them."""
    entry = {**json.loads(ENTRY), "forgot": [["a", 0, position]]}
    with pytest.raises(CorruptStore):
        load_entry(json.dumps(entry), 3, "here")
    assert load_entry(json.dumps({**entry, "forgot": [["a", 0, None]]}), 3, "here").forgot == {
        TopicPartition("a", 0): None
    }


def test_an_entry_with_more_in_it_than_is_known_can_still_be_read() -> None:
    """The history outlives versions of this software."""
    more = ENTRY.replace('"event"', '"host_id":"x","event"')
    assert load_entry(more, 3, "here") == load_entry(ENTRY, 3, "here")


def test_positions_of_a_store_are_checked() -> None:
    assert load_position(0, None, "here") == Position(0)
    assert load_position(2**63 - 1, "id", "here") == Position(2**63 - 1, "id")


@pytest.mark.parametrize("offset", [-1, -1001, 2**63, "5", b"5", 5.0, None, True], ids=repr)
def test_an_offset_that_cannot_be_one_is_corrupt(offset: Any) -> None:
    with pytest.raises(CorruptStore, match=r"^row 7 of here holds .* not an offset"):
        load_position(offset, None, "row 7 of here")


@pytest.mark.parametrize("topic_id", [b"id", 7, ["id"]], ids=repr)
def test_a_topic_id_that_is_no_text_is_corrupt(topic_id: Any) -> None:
    """Made into text by force it would differ from Kafka's, and the topic seem made again."""
    with pytest.raises(CorruptStore, match=r"^here holds .* not a topic id"):
        load_position(5, topic_id, "here")


def test_a_group_without_a_control_record_has_the_positions_others_stored() -> None:
    held = {TopicPartition("t", 0): Position(4)}
    assert codec.empty("g", held) == Snapshot("g", version=0, positions=held)


@given(halves, halves)
@example("h\udcf6st", "\ud800")
def test_half_a_character_makes_no_ledger_unreadable(name: str, reason: str) -> None:
    """As programs before this one stored them: what cannot be printed becomes a question mark."""
    snapshot = Snapshot("g", version=1, owner=Owner("id", 1, name), epoch=1, change_id="id")
    read = load_control(dump_control(snapshot), "g", 1, {}, "here")
    assert read.owner is not None
    assert read.owner.name == name.encode("utf-8", "replace").decode()
    entry = load_entry(dump_entry(Entry(1, "rewind", "id", 10**30, name, reason)), 1, "here")
    assert entry.reason == reason.encode("utf-8", "replace").decode()
    assert datetime.fromtimestamp(entry.at_ms / 1000, UTC).year == 9999  # or no page could show it


def test_half_a_character_is_never_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    store, written = MemoryStore("memory://half-characters"), list[Entry]()
    apply = store.apply

    def remember(change: Change) -> None:
        written.append(change.entry)
        apply(change)

    monkeypatch.setattr(store, "apply", remember)
    ledger = Ledger(store, "g", name="h\udcf6st")
    ledger.acquire("gr\udcfcn")
    assert [(entry.actor, entry.reason) for entry in written] == [("h?st", "gr?n")]


def test_leader_epochs_count_only_with_the_offsets_they_were_stored_with() -> None:
    """An offset that another program has edited may be of records after an election that nobody has checked."""
    tps = [TopicPartition("orders", number) for number in range(3)]
    stored = {tp: Position(10, leader_epoch=epoch) for tp, epoch in zip(tps, (3, 4, None), strict=True)}
    text = dump_control(Snapshot("g", version=1, change_id="x", positions=stored))
    rows = {tp: Position(10) for tp in tps}
    assert load_control(text, "g", 1, rows, "here").positions == stored
    unchecked = {**rows, tps[2]: Position(11)}
    assert load_control(text, "g", 1, unchecked, "here").positions == {**stored, tps[2]: Position(11)}
    for edited in ({**rows, tps[0]: Position(11)}, {tp: rows[tp] for tp in tps[1:]}):
        assert all(at.leader_epoch is None for at in load_control(text, "g", 1, edited, "here").positions.values())
