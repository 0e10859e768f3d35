"""Names of groups in systems that hold fewer names than Kafka."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from offsetkeeper.errors import Refused
from offsetkeeper.stores import files
from offsetkeeper.stores.group_names import Names
from offsetkeeper.stores.kafka.store import NAMES as KAFKA
from offsetkeeper.stores.kafka.store import KafkaStore
from offsetkeeper.stores.mysql.store import NAMES as MYSQL
from offsetkeeper.stores.redis.keys import Keys
from offsetkeeper.stores.zookeeper.nodes import NAMES as ZOOKEEPER
from offsetkeeper.testing import strategies

EACH = {"kafka": KAFKA, "mysql": MYSQL, "zookeeper": ZOOKEEPER}
PLAIN = ["orders", "50%off", "50%25off", "100%", "%41", "a%20b", "%2525", "%FF", "%zz", "%", "a.b", "...", ":", "a b"]
WRITTEN = [
    # group, in Kafka, in MySQL, in ZooKeeper, folder
    ("team/orders:v2", "team/orders:v2", "team/orders:v2", "team%2Forders:v2", "%3Ateam%2Forders%3Av2"),
    ("50% f\u00fcr", "50%25 f%C3%BCr", "50% f\u00fcr", "50% f\u00fcr", "50% f\u00fcr"),
    ("\U0001f986", "%F0%9F%A6%86", "\U0001f986", "%F0%9F%A6%86", "\U0001f986"),
    ("%F0%9F%A6%86", ":%25F0%259F%25A6%2586", "%F0%9F%A6%86", ":%25F0%259F%25A6%2586", "%25F0%9F%A6%86"),
    ("a%2Fb", "a%2Fb", "a%2Fb", ":a%252Fb", "a%2Fb"),
    (":a%2Fb", "::a%252Fb", "::a%252Fb", "::a%252Fb", "%3A%3Aa%252Fb"),
    ("a ", "a ", ":a%20", "a ", "%3Aa%20"),
    (" a", ":%20a", " a", " a", "%3A%20a"),
    ("a\nb", "a%0Ab", "a\nb", ":a%0Ab", "%3Aa%0Ab"),
    ("a%0Ab", ":a%250Ab", "a%0Ab", "a%0Ab", "a%0Ab"),
    (".", ".", ".", ":%2E", "%2E"),
    ("..", "..", "..", ":%2E%2E", "%2E."),
    (".a", ".a", ".a", ".a", "%2Ea"),
    ("%2Ea", "%2Ea", "%2Ea", "%2Ea", "%252Ea"),
]
"""Where each store keeps a group. Releases have ledgers there, so no place may ever change."""


@pytest.mark.parametrize("names", EACH.values(), ids=EACH)
@pytest.mark.parametrize("group", PLAIN)
def test_a_name_that_the_system_holds_is_itself_there(group: str, names: Names) -> None:
    assert names.name_of(group) == names.group_of(group) == group


@pytest.mark.parametrize("row", WRITTEN, ids=[row[0].encode("unicode_escape").decode() for row in WRITTEN])
def test_each_other_name_has_a_place_of_its_own(row: tuple[str, ...]) -> None:
    group, *wanted, folder = row
    assert [names.name_of(group) for names in EACH.values()] == wanted
    assert [names.group_of(name) for names, name in zip(EACH.values(), wanted, strict=True)] == [group] * 3
    assert files.folder_of(group) == folder


def test_no_two_of_these_have_one_place() -> None:
    for names in EACH.values():
        assert len({names.name_of(row[0]) for row in WRITTEN}) == len(WRITTEN)
    assert len({files.folder_of(row[0]) for row in WRITTEN}) == len(WRITTEN)


@pytest.mark.parametrize("names", EACH.values(), ids=EACH)
@given(group=strategies.groups | st.text(alphabet="a\u00e4\U0001f986%C34:250/. \n", min_size=1, max_size=20))
@example(group="%C3%A4")
@example(group=":%2525")
@example(group=":\x1f")
def test_every_group_is_found_again_under_its_name_alone(group: str, names: Names) -> None:
    """So no two have the same."""
    name = names.name_of(group)
    assert names.group_of(name) == group
    assert names.others_name(group) in {"", group}
    if names.group_of(group) != group:  # it is the place of another
        assert name != group
        assert not names.others_name(group)


@given(group=st.text(alphabet="a%2E3A:/. \n", min_size=1, max_size=20))
def test_a_folder_is_never_hidden_and_leads_back_to_its_group(group: str) -> None:
    folder = files.folder_of(group)
    assert not re.search(r"[/:\n]|^[. ]| \Z", folder)
    assert files.group_of(folder) == group


def test_a_name_that_is_too_long_where_it_is_written_is_refused_in_words() -> None:
    with pytest.raises(Refused, match=r"has 301 bytes there, and 253 fit\. Nothing was written"):
        files.folder_of("/" * 100)
    assert len(files.folder_of("x" * 249)) == 249


def test_a_prefix_or_a_template_may_lead_another_group_to_the_same_ledger() -> None:
    """So docs/stores.md says when a deployment may change from one name to the other."""
    kafka = KafkaStore("kafka://host:9092"), KafkaStore("kafka://host:9092?prefix=team-")
    redis = Keys("offset:{topic}:{group}"), Keys("offset:{topic}:team-{group}")
    for plain, prefixed in ((kafka[0]._name, kafka[1]._name), (redis[0].control, redis[1].control)):
        assert plain("team-orders") == prefixed("orders")
        assert plain("orders") != prefixed("orders")
