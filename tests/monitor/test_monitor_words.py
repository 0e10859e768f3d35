"""The meaning of each word, and what to do: the page serves what the docs say, and asks no other host."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from monitor.gallery import group, view
from offsetkeeper.monitor.pages import Pages
from offsetkeeper.operate import words
from offsetkeeper.operate.status import Status

DOCS = Path(__file__).parents[2] / "docs"
PAGES = Pages("postgresql://db/shop", "kafka:9092", every_s=5, changes=False)


def told(page: str, heading: str) -> dict[str, str]:
    """The first two columns of a table of the docs, as text."""
    text = (DOCS / page).read_text("utf-8").partition(f"\n## {heading}\n")[2].partition("\n## ")[0] if heading else ""
    rows = [
        line.strip("| ").split(" | ")
        for line in (text or (DOCS / page).read_text("utf-8")).splitlines()
        if line.startswith("| ")
    ]
    return {
        word: re.sub(r"\[([^\]]+)\]\([^)]*\)", r"\1", meaning)
        for row in rows[1:]
        for word in row[0].split(", ")
        for meaning in row[1:]
    }


@pytest.mark.parametrize(
    ("heading", "table"),
    [
        ("Status of a group", words.MEANINGS),
        ("Verdicts of a start", words.VERDICTS),
        ("Events of a history", words.EVENTS),
        ("Findings in a history", words.FINDINGS),
    ],
)
def test_the_page_and_the_docs_give_a_word_one_meaning(heading: str, table: dict[str, str]) -> None:
    assert {str(word): meaning for word, meaning in table.items()} == told("words.md", heading)


def test_a_group_that_cannot_be_read_is_not_called_ok() -> None:
    spoilt = group("shop", [0], error="no control record")
    page = PAGES.group(view(spoilt), "shop")
    head = page.partition('<div class="head"')[2].partition("</div>")[0]
    assert "cannot be read" in head
    assert "no problem" not in head
    assert "It was ok" in head
    assert 'id="last-known"' in page


def test_the_page_and_the_docs_have_one_next_step_for_each_status() -> None:
    assert {str(status): step for status, step in words.NEXT.items()} == told("night.md", "")
    assert set(Status) - set(words.NEXT) == {Status.OK}


def test_the_page_of_words_has_every_word_with_its_meaning() -> None:
    page = re.sub(r"<[^>]+>", "", PAGES.words(view())).replace("&#39;", "'").replace("&amp;", "&")
    for table in (words.MEANINGS, words.NEXT, words.VERDICTS, words.EVENTS, words.FINDINGS):
        for word, meaning in table.items():
            assert str(word) in page
            assert f"{meaning.replace('`', '')}." in page


def test_each_page_has_the_next_step_beside_the_status() -> None:
    stopped, idle = group("my shop's", [3], 100), group("idle", [0])
    shown = PAGES.groups(view(stopped, idle))
    assert "start the job" in shown.split('data-key="my shop&#39;s"')[1].split("</tr>")[0]
    assert "step" not in shown.split('data-key="idle"')[1].split("</tr>")[0]
    page = PAGES.group(view(stopped), "my shop's")
    assert "start the job (if the store was restored, compare first); <code>" in page
    assert "<code>offsetkeeper history &#39;my shop&#39;&#34;&#39;&#34;&#39;s&#39;</code> shows" in page
    assert 'href="/words#stopped"' in page
    assert "Next:" not in PAGES.group(view(idle), "idle")


def test_the_code_of_a_step_is_for_the_group_and_for_a_shell() -> None:
    step = words.pieces("see orders: `offsetkeeper lag orders --watch 5`, `retention.ms`", "a b; rm -rf \\1")
    assert [piece.text for piece in step if piece.code] == [
        "offsetkeeper lag 'a b; rm -rf \\1' --watch 5",
        "retention.ms",
    ]
    assert step[0] == ("see orders: ", False)
