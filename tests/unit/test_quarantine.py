"""How a batch that fails is cut, what is kept of its error, and what becomes of a letter after a crash."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offsetkeeper.core.batch import Batch
from offsetkeeper.core.mark import Landing
from offsetkeeper.core.model import Guarantee
from offsetkeeper.core.offsets import OffsetRange, Position, TopicPartition
from offsetkeeper.core.pending import Fate, Situation, at_start
from offsetkeeper.core.plan import Policies
from offsetkeeper.engines.quarantine import Held, halves, others, pieces, text_of, without_paths
from offsetkeeper.errors import SettingsError, StartRefused
from offsetkeeper.readers.unreadable import Place

SIZES = st.lists(st.integers(1, 30), min_size=1, max_size=1000).filter(lambda sizes: sum(sizes) > 1)


@given(SIZES)
def test_halves_hold_all_offsets_in_their_order_and_differ_by_one_at_most(sizes: list[int]) -> None:
    ranges = [OffsetRange("t", number, 5, 5 + size) for number, size in enumerate(sizes)]
    first, second = halves(ranges)
    offsets = [[(r.partition, at) for r in half for at in range(r.start, r.end)] for half in (first, second)]
    assert offsets[0] + offsets[1] == [(r.partition, at) for r in ranges for at in range(r.start, r.end)]
    assert 0 <= len(offsets[1]) - len(offsets[0]) <= 1


@pytest.mark.parametrize("offset", [5, 6, 9])
def test_an_offset_that_is_known_to_fail_is_cut_out(offset: int) -> None:
    ranges = OffsetRange("t", 0, 5, 10), OffsetRange("t", 1, 5, 10), OffsetRange("t", 2, 5, 10)
    found = pieces(ranges, Place("t", 1, offset))
    alone = (OffsetRange("t", 1, offset, offset + 1),)
    assert alone in found
    assert all(r.size for piece in found for r in piece)
    offsets = sorted((r.partition, at) for piece in found for r in piece for at in range(r.start, r.end))
    assert offsets == sorted((r.partition, at) for r in ranges for at in range(r.start, r.end))
    starts = [r.start for piece in found for r in piece if r.partition == 1]
    assert starts == sorted(starts)


@pytest.mark.parametrize("place", [None, Place("t", 0, 10), Place("u", 0, 5)])
def test_a_record_that_is_not_of_the_batch_does_not_change_how_it_is_cut(place: Place | None) -> None:
    ranges = (OffsetRange("t", 0, 5, 10),)
    assert pieces(ranges, place) == [*halves(ranges)]


def test_what_stays_written_is_tried_after_the_bad_record_elsewhere_and_then_from_the_last_one_backwards() -> None:
    """So that no older record is written over a newer one for good."""
    held = Held(
        unread=[OffsetRange("t", 0, 10, 12), OffsetRange("t", 1, 5, 6)],
        read=[OffsetRange("t", 0, 0, 10), OffsetRange("t", 1, 0, 5)],
    )
    found = others(held, OffsetRange("t", 0, 10, 11), again=3)
    assert [(r.partition, r.start, r.end) for [r] in found] == [
        *((0, 11, 12), (1, 5, 6)),
        *((0, 9, 10), (0, 8, 9), (0, 7, 8)),
    ]


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("https://host/services/T0", "https://host/…"),
        ("https://host:8443?key=1", "https://host:8443/…"),
        ("https://user:s3cret@host/path", "https://host/…"),
        ("amqps://user:s3cret@host", "amqps://host"),
        ("http://host", "http://host"),
        ("https://user:s3'cret@host/a", "https://host/…"),
        ("https://host/it's?key=1", "https://host/…"),
        ("https://user:s3/cret@host/a", "https://…/…"),
        ("https://user:12/cret@host/a", "https://…/…"),
        ("redis://:s3?cret@host", "redis://…/…"),
        ("https://user:s3#cret@host", "https://…/…"),
        ("https://host/@me", "https://host/…"),
        ("http://[::1]:9200/a", "http://[::1]:9200/…"),
        ("mongodb://user:s3cret@one:1,two:2/db", "mongodb://one:1,two:2/…"),
        ("http://host:9200:", "http://host:9200:"),
    ],
)
def test_of_a_url_a_letter_has_the_server_alone(url: str, told: str) -> None:
    assert without_paths(f"refused for url: {url} twice '{url}'") == f"refused for url: {told} twice '{told}'"


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ('postgresql://u:12"w@host/db', "postgresql://…/…"),
        ("https://u:1234/w'@h/x", "https://…/…"),
        ("https://h:443/x?sig=a'&token=abc", "https://h:443/…"),
        ('{"url":"https://host/a","n":3}', '{"url":"https://host/…","n":3}'),
    ],
)
def test_a_quote_within_a_url_ends_no_secret(url: str, told: str) -> None:
    assert without_paths(f"refused for url: {url} twice") == f"refused for url: {told} twice"


def test_of_an_error_that_spark_wraps_what_python_raised_is_told() -> None:
    wrapped = RuntimeError(
        "An error occurred while calling o1.save.\nTraceback (most recent call last):\n"
        "  File \"work.py\", line 1, in <lambda>\n    int(value)\nValueError: invalid literal: 'bad'\n\n\tat org"
    )
    assert text_of(wrapped) == "ValueError: invalid literal: 'bad'"
    assert text_of(KeyError("x")) == "KeyError: 'x'"
    assert len(text_of(ValueError("x" * 9999))) == 2000


@pytest.mark.parametrize(
    ("landing", "expected"),
    [(Landing.LANDED, Fate.COUNT), (Landing.ABSENT, Fate.DROP), (Landing.VOID, Fate.DROP), (None, Fate.DROP)],
)
@pytest.mark.parametrize("guarantee", [Guarantee.AT_LEAST_ONCE, Guarantee.EXACTLY_ONCE])
def test_a_letter_that_was_begun_counts_where_it_landed_and_is_dropped_else(
    landing: Landing | None, expected: Fate, guarantee: Guarantee
) -> None:
    batch = Batch("g", "token", 3, (OffsetRange("t", 0, 5, 6),), lands_in=("dead_letters",))
    positions = {TopicPartition("t", 0): Position(5)}
    landings = {"": Landing.ABSENT} | ({} if landing is None else {"dead_letters": landing})
    for problems in ([], ["it is gone"]):
        found = Situation(batch, positions, problems, guarantee, Policies(), ["", "dead_letters"], landings)
        assert at_start(found) is expected
    lacking = Situation(batch, positions, [], guarantee, Policies(), [""], {"": Landing.ABSENT})
    with pytest.raises(StartRefused, match="'dead_letters' may have"):
        at_start(lacking)


def test_wrong_policies_are_refused() -> None:
    for wrong in ({"poison": "skip"}, {"poison_limit": 0}, {"poison_limit": True}):
        with pytest.raises(SettingsError, match="policy poison"):
            Policies(**wrong)
