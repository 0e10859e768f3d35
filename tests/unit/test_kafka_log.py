"""Which records of the store in Kafka count."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from offsetkeeper.kafka.ledger_log import Line, chain, deletes, follow, lacks, newest, read_line


def line(offset: int, version: int, token: str, previous: str, value: bytes = b"x") -> Line:
    return Line(offset, "g", version, token, previous, value)


def test_of_two_that_build_on_the_same_the_first_counts() -> None:
    lines = [line(0, 1, "a", ""), line(1, 2, "b", "a"), line(2, 2, "c", "a"), line(3, 3, "d", "c")]
    assert newest(lines) == follow(None, lines) == lines[1]
    assert list(chain(lines[1], lines)) == [lines[1], lines[0]]


def test_a_line_sent_twice_counts_once() -> None:
    lines = [line(0, 1, "a", ""), line(1, 2, "b", "a"), line(2, 2, "b", "a"), line(3, 3, "c", "b")]
    assert newest(lines) == follow(None, lines) == lines[3]
    assert list(chain(lines[3], lines)) == [lines[3], lines[1], lines[0]]


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
    tries=st.lists(st.tuples(st.booleans(), st.booleans()), max_size=30),
    kept=st.integers(1, 8),
    start=st.integers(0, 30),
)
def test_all_readers_agree_with_who_was_there(tries: list[tuple[bool, bool]], kept: int, start: int) -> None:
    """Writers append in any order: on the newest, or on the one before it; sent once or twice; old ones are deleted."""
    log: list[Line] = []
    counts: list[Line] = []
    for number, (stale, twice) in enumerate(tries):
        base = counts[-2] if stale and len(counts) > 1 else counts[-1] if counts else None
        made = line(len(log), base.version + 1 if base else 1, f"{number:04x}", base.token if base else "")
        if base is (counts[-1] if counts else None):
            counts.append(made)
        log += [made, made._replace(offset=made.offset + 1)] if twice else [made]
    head = counts[-1] if counts else None
    old = [each for each in log if head and each.version <= head.version - kept]
    left = [each for each in log if each not in old]
    left += [each._replace(offset=len(log) + number, value=b"") for number, each in enumerate(old)]
    assert newest(left) == newest(log) == follow(None, log) == head
    if head is not None:
        assert list(chain(head, left)) == counts[::-1][:kept]
        seen = counts[min(start, len(counts) - 1)]
        assert follow(seen, log[seen.offset + 1 :]) == head
        compacted = [each for each in log if each not in old]
        read = [each for each in compacted if each.offset > seen.offset]
        found = follow(seen, read)
        assert (newest(compacted) if lacks(found, read) else found) == head
