"""Which records of the store in Kafka count."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from offsetkeeper.kafka.ledger_log import Line, chain, deletes, newest, read_line


def line(offset: int, version: int, token: str, previous: str, value: bytes = b"x") -> Line:
    return Line(offset, "g", version, token, previous, value)


def test_of_two_that_build_on_the_same_the_first_counts() -> None:
    lines = [line(0, 1, "a", ""), line(1, 2, "b", "a"), line(2, 2, "c", "a")]
    assert newest(lines) == newest(lines[1:]) == lines[1]
    assert list(chain(lines[1], lines)) == [lines[1], lines[0]]


def test_a_line_sent_twice_counts_once() -> None:
    lines = [line(0, 1, "a", ""), line(1, 2, "b", "a"), line(2, 2, "b", "a"), line(3, 3, "c", "b")]
    assert newest(lines) == lines[3]
    assert newest(lines[:3]) == lines[1]
    assert list(chain(lines[3], lines)) == [lines[3], lines[1], lines[0]]


def test_one_that_lost_to_a_line_sent_twice_does_not_win_once_the_first_of_the_two_is_compacted_away() -> None:
    """Releases before 0.3 sent a line again after a lost reply; others may have appended meanwhile."""
    base, first, lost, again = line(0, 1, "p", ""), line(1, 2, "a", "p"), line(2, 2, "b", "p"), line(3, 2, "a", "p")
    later = [line(4, 3, "c", "a"), line(5, 4, "d", "c")]
    for left in ([base, first, lost, again, *later], [base, lost, again, *later], [lost, again, *later]):
        assert newest(left) == newest([first, *left]) == later[-1]
        assert list(chain(later[-1], left))[:2] == later[::-1]


def test_a_stray_whose_base_was_deleted_does_not_count() -> None:
    stray, kept, head = line(3, 3, "s", "b"), line(2, 3, "c", "b"), line(4, 4, "d", "c")
    assert newest([kept, stray, head]) == head
    assert newest([kept, stray]) == kept
    assert newest([stray, head, line(5, 3, "s", "", b"")]) == head


def test_what_is_deleted_is_gone() -> None:
    lines = [line(0, 1, "a", ""), line(1, 1, "a", "", b"")]
    assert newest(lines) is None
    assert newest([]) is None


def test_a_deletion_counts_where_it_hits_what_is_followed() -> None:
    one, two, three = line(0, 1, "a", ""), line(1, 2, "b", "a"), line(2, 3, "c", "b")
    assert not deletes(None, [])
    assert not deletes(one, [two, three])
    assert not deletes(two, [three, one._replace(value=b"")])
    assert deletes(one, [two, three, one._replace(value=b"")])
    assert deletes(one, [two, three, two._replace(value=b"")])
    assert not deletes(None, [three._replace(value=b"")])


def test_a_key_of_others_is_no_line() -> None:
    assert read_line(7, b"a/b/12/0aff", b"00", b"v") == Line(7, "a/b", 12, "0aff", "00", b"v")
    assert read_line(7, b"a/b/12/0aff", b"00", b"v").key == "a/b/12/0aff"  # type: ignore[union-attr]
    for key in (b"", b"a", b"a/1", b"a/x/0aff", b"/1/0aff", b"a/1/xyz", b"\xff\xfe"):
        assert read_line(0, key, b"", b"v") is None


@given(
    tries=st.lists(st.tuples(st.booleans(), st.sampled_from(["once", "twice", "later"])), max_size=30),
    kept=st.integers(1, 8),
    start=st.integers(0, 30),
    cleaned=st.integers(0, 60),
)
def test_all_readers_agree_with_who_was_there(
    tries: list[tuple[bool, str]], kept: int, start: int, cleaned: int
) -> None:
    """Writers append in any order: on the newest, or on the one before it; old ones are deleted.

    A line is there once or twice, and the second time at once or behind the next one. At any time the records so far
    are compacted: of each key the last one is kept.
    """
    log: list[Line] = []
    counts: list[Line] = []
    late: list[Line] = []
    for number, (stale, sent) in enumerate(tries):
        base = counts[-2] if stale and len(counts) > 1 else counts[-1] if counts else None
        made = line(len(log), base.version + 1 if base else 1, f"{number:04x}", base.token if base else "")
        if base is (counts[-1] if counts else None):
            counts.append(made)
        again = [*([made] if sent == "twice" else []), *late]
        late = [made] if sent == "later" else []
        log += [made, *(each._replace(offset=len(log) + 1 + place) for place, each in enumerate(again))]
    head = counts[-1] if counts else None
    old = {each.token for each in log if head and each.version <= head.version - kept}
    deleted = [each._replace(offset=len(log) + place, value=b"") for place, each in enumerate(log) if each.token in old]
    left = [each for each in log if each.token not in old]
    assert newest(log) == newest(left) == newest([*log, *deleted]) == head
    if head is None:
        return
    assert [each.token for each in chain(head, left)] == [each.token for each in counts[::-1][:kept]]
    last = {each.key: each.offset for each in log[:cleaned]}
    compacted = [each for each in log if last.get(each.key, each.offset) == each.offset]
    known = counts[min(start, len(counts) - 1)]
    for read in (compacted, left, [each for each in compacted if each.token not in old]):
        found = [newest(read), newest([known, *(each for each in read if each.offset > known.offset)])]
        assert all(each and each.version == head.version for each in found)
        lost = [each for each in read if each.version == head.version and each.token != head.token]
        copies = [each.offset for each in log if each.token == head.token]
        if not any(copies[0] < each.offset < copies[-1] for each in lost):  # else the head has to have a successor
            assert [each and each.token for each in found] == [head.token] * 2
