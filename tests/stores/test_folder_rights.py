"""The modes on the page are enough for a user of a file or folder, and each letter is needed; who lacks one is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from fixtures.nobody import nobody, open_up, set_letters
from fixtures.rights import Row, rows
from fixtures.rights_tasks import LETTERS, each_right, granted, keeps, looks, name_of
from offsetkeeper.errors import Refused
from offsetkeeper.stores import open_store
from offsetkeeper.stores.folder import FolderStore

TASKS = {
    "SQLite": {
        "store that makes its file": keeps,
        "store, the file is there": keeps,
        "store, only looked at: `show`, `lag`, `history`, `groups`": looks,
    },
    "A folder: `file://`": {
        "store, new groups": keeps,
        "store, a group of another user": keeps,
        "store, only looked at: `show`, `lag`, `history`, `groups`": looks,
    },
}
ROWS = {heading: rows(heading) for heading in TASKS}
EACH = [(heading, pair) for heading in TASKS for pair in each_right(ROWS[heading])]


class Place:
    """A folder of this machine, in which another user has begun a group or not."""

    MADE_BY_THE_TASK = ("store that makes its file", "store, new groups")

    def __init__(self, heading: str, task: str, folder: Path) -> None:
        self.act = TASKS[heading][task]
        self.path = folder / "offsets"
        FolderStore(f"file://{self.path}").init()
        self.file = self.path / "offsets.db"
        self.url = f"sqlite:///{self.file}" if heading == "SQLite" else f"file://{self.path}"
        open_store(self.url).close()  # else its modules would be loaded by a user who may not read them
        if task not in self.MADE_BY_THE_TASK:
            keeps(self.url)

    def on(self, word: str) -> list[Path]:
        """Return what a word of the page stands for here."""
        named = {"the folder": [self.path], "the file": [self.file], "shop": [self.path / "shop"]}
        named |= {".tmp": [self.path / ".tmp"], "the group's files": sorted(self.path.glob("shop/*.json"))}
        return named[word]

    def permit(self, rights: list[tuple[str, str]]) -> None:
        """Set the modes of all that is there."""
        letters: dict[Path, int] = {}
        for right, word in rights:
            for path in self.on(word):
                letters[path] = letters.get(path, 0) | LETTERS[right]
        set_letters(self.path, letters)


def try_without(heading: str, task: str, folder: Path, lacking: tuple[Row, str] | None = None) -> None:
    place = Place(heading, task, folder)
    place.permit(granted(ROWS[heading], task, lacking))
    try:
        with nobody():
            place.act(place.url)
    finally:
        open_up(place.path)


@pytest.mark.parametrize("heading", TASKS)
def test_the_page_has_each_task(heading: str) -> None:
    assert {row.task for row in ROWS[heading]} == TASKS[heading].keys()


@pytest.mark.parametrize(("heading", "task"), [(heading, task) for heading, of in TASKS.items() for task in of])
def test_the_modes_on_the_page_are_enough(heading: str, task: str, reachable_folder: Path) -> None:
    try_without(heading, task, reachable_folder)


@pytest.mark.parametrize(("heading", "lacking"), EACH, ids=[f"{h}: {name_of(pair)}" for h, pair in EACH])
def test_without_a_letter_of_the_page_it_is_told(
    heading: str, lacking: tuple[Row, str], reachable_folder: Path
) -> None:
    row, _ = lacking
    with pytest.raises(Refused) as found:
        try_without(heading, row.task, reachable_folder, lacking)
    assert row.without in str(found.value)
