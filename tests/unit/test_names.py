"""Names of groups in systems that take fewer characters."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from offsetkeeper.errors import Refused
from offsetkeeper.stores.group_names import group_of, name_of
from offsetkeeper.testing import strategies

UNSAFE = re.compile("[^ -~]")


@pytest.mark.parametrize("group", ["orders", "50%off", "50%25off", "100%", "%41", "a%20b", "%2525", "%FF", "%zz", "%"])
def test_a_name_that_the_system_takes_is_itself_there(group: str) -> None:
    assert name_of(group, UNSAFE) == group_of(group, UNSAFE) == group


def test_a_name_that_it_does_not_take_is_written_with_percent_signs() -> None:
    assert name_of("50% für alle", UNSAFE) == "50%25 f%C3%BCr alle"
    assert group_of("50%25 f%C3%BCr alle", UNSAFE) == "50% für alle"


def test_a_name_that_stands_for_another_is_refused() -> None:
    with pytest.raises(Refused, match="'%C3%A4' is how this store writes the name of group 'ä'"):
        name_of("%C3%A4", UNSAFE)


@given(group=strategies.groups | st.text(alphabet="ä%C3A425"))
@example(group="%C3%A4")
def test_every_group_is_found_again_under_its_name_alone(group: str) -> None:
    """So no two have the same."""
    try:
        name = name_of(group, UNSAFE)
    except Refused:
        assert name_of(group_of(group, UNSAFE), UNSAFE) == group
        return
    assert not UNSAFE.search(name)
    assert group_of(name, UNSAFE) == group
