"""Ledgers that older versions have written, as their servers held them: they are read, and work goes on in them.

A golden ledger is put into the real server by the server's own client, and found by its URL. What is in it lies beside
it, as the version that wrote it told it. See `golden.scenario` and `golden.write`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from typing import Any, NamedTuple

import pytest

from golden import scenario
from golden.medium import Medium
from golden.scenario import GROUPS, ODD, ORDERS, SALES
from golden.values import readable, written
from golden.written import FACTS, KINDS, formats, read
from offsetkeeper.core.batch import Batch
from offsetkeeper.core.codec import FORMAT
from offsetkeeper.core.ledger import Ledger
from offsetkeeper.core.offsets import OffsetRange
from offsetkeeper.core.store import Store
from offsetkeeper.stores import open_store


class Golden(NamedTuple):
    """Ledgers in their server.

    Attributes:
        medium: where they are.
        content: what was put there.
        facts: what they say, by group.
        store: opened there.
    """

    medium: Medium
    content: Any
    facts: dict[str, Any]
    store: Store


def kept(number: int, name: str) -> Any:
    """Return the parameter for a store's ledgers of a format, which is run where the store's tests have its server."""
    return pytest.param((number, name), id=f"{name}-{number}", marks=pytest.mark.xdist_group(f"test_{name}"))


@pytest.fixture(params=[kept(number, name) for name in KINDS for number in formats()])
def golden(request: pytest.FixtureRequest) -> Iterator[Golden]:
    """The golden ledgers of each store and each format."""
    number, name = request.param
    content = read(number, name)
    with closing(KINDS[name].medium(request.getfixturevalue(KINDS[name].fixture))) as medium:
        medium.restore(content)
        with closing(open_store(medium.url)) as store:
            yield Golden(medium, content, read(number, FACTS), store)


def test_what_an_older_version_wrote_is_read_whole_and_left_as_it_is(golden: Golden) -> None:
    assert {group: scenario.facts(golden.store, group) for group in GROUPS} == golden.facts
    assert golden.store.groups() == sorted(GROUPS)
    for group in GROUPS:
        assert golden.medium.positions(group) == scenario.positions(golden.facts[group])
    assert golden.medium.dump() == golden.content


def test_runs_go_on_in_what_an_older_version_wrote(golden: Golden) -> None:
    """The batch under way keeps its id, as outputs may know it by that; the one after has an id that never was."""
    found = golden.facts[ORDERS]["ledger"]
    run = Ledger(golden.store, ORDERS, name="run")
    assert run.acquire().epoch == found["epoch"] + 1
    pending = begun(run)
    assert [pending.id, list(pending.written)] == [found["pending"]["id"], ["audit"]]
    assert [list(each) for each in pending.ranges] == found["pending"]["ranges"]
    run.note_written(pending, "table")
    assert [begun(run).id, begun(run).written] == [found["pending"]["id"], ("audit", "table")]
    run.commit(begun(run))
    run.release()
    moved = {(topic, partition): end for topic, partition, _, end in found["pending"]["ranges"]}
    expected = scenario.positions(golden.facts[ORDERS]) | moved
    assert golden.medium.positions(ORDERS) == expected

    run = Ledger(golden.store, ORDERS, name="next run")
    run.acquire()
    start = expected[SALES, 0]
    run.begin(run.batch([OffsetRange(SALES, 0, start, start + 3)]))
    with closing(open_store(golden.medium.url)) as other:
        later = Ledger(other, ORDERS)
        later.load()
        assert begun(later).id == begun(run).id != pending.id
    run.commit(begun(run))
    run.release()
    assert golden.medium.positions(ORDERS) == expected | {(SALES, 0): start + 3}
    told = ["acquire", "mark", "commit", "release", "acquire", "begin", "commit", "release"]
    assert_added(golden, ORDERS, told)

    nightly = Ledger(golden.store, ODD, name="nightly")
    nightly.acquire()
    nightly.commit(nightly.batch([OffsetRange(SALES, 0, 7, 9)]))
    nightly.release()
    operator = Ledger(golden.store, ODD, name="operator")
    stored = operator.load().positions
    operator.rewind({tp: at._replace(offset=8) for tp, at in stored.items()}, "once more")
    assert golden.medium.positions(ODD) == {(SALES, 0): 8}
    assert_added(golden, ODD, ["acquire", "commit", "release", "rewind"])


def test_the_newest_golden_ledgers_are_of_the_format_before_this_one_or_of_this_one() -> None:
    """Whoever changes the format writes those of the one before by `golden.write`, before the change."""
    assert formats()[-1] >= FORMAT - 1
    assert formats() == list(range(1, formats()[-1] + 1))


@pytest.mark.parametrize(
    "content", [b'{"a":[1]}', b'17 {"a":"\\u00e9"}', b'{"a": 1}', b"15", b"", b"\xff\0", "é".encode()]
)
def test_what_is_kept_as_readable_text_comes_back_byte_for_byte(content: bytes) -> None:
    assert written(json.loads(json.dumps(readable(content)))) == content


def begun(ledger: Ledger) -> Batch:
    """Return the pending batch."""
    assert ledger.snapshot.pending is not None
    return ledger.snapshot.pending


def assert_added(golden: Golden, group: str, events: list[str]) -> None:
    """Check that another store finds the old history whole, and these events after it."""
    with closing(open_store(golden.medium.url)) as other:
        history = scenario.facts(other, group)["history"]
    old = golden.facts[group]["history"]
    assert [each["event"] for each in history[: -len(old)]] == events[::-1]
    assert history[-len(old) :] == old
    versions = [each["version"] for each in history]
    assert versions == list(range(len(old) + len(events), 0, -1))
