"""Ids of topics and clusters: which show that it is another one."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from offsetkeeper.core.identity import is_elsewhere, is_recreated


@pytest.mark.parametrize("differs", [is_elsewhere, is_recreated])
def test_two_ids_differ_whichever_sorts_first_and_an_unknown_one_shows_nothing(
    differs: Callable[[str | None, str | None], bool],
) -> None:
    assert differs("a", "b")
    assert differs("b", "a")
    assert not differs("a", "a")
    assert not differs(None, "a")
    assert not differs("a", None)
    assert not differs(None, None)
