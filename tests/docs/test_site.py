"""The site: its tables are those of the code, and every page can be reached."""

import re
import runpy
import tomllib
from pathlib import Path
from typing import get_args

import pytest

from docs.pages import PAGES, ROOT
from offsetkeeper import Verdict, errors
from offsetkeeper.cli import main
from offsetkeeper.core import rules
from offsetkeeper.demo.run import POINTS
from offsetkeeper.monitor import changes
from offsetkeeper.operate import copy
from offsetkeeper.operate.audit import Kind
from offsetkeeper.operate.status import Status

DOCS = ROOT / "docs"
COLUMNS = 120
MOST_BYTES = 150_000


def rows(page: str, heading: str) -> list[list[str]]:
    """Return the rows of the table under a heading."""
    part = re.split(r"^#+ ", (DOCS / page).read_text("utf-8"), flags=re.MULTILINE)
    (text,) = (one for one in part if one.startswith(f"{heading}\n"))
    return [
        [cell.strip(" `") for cell in line.strip("|").split("|")]
        for line in re.findall(r"^\|.*", text, re.MULTILINE)[2:]
    ]


def exit_code(error: type[Exception], monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the exit code of a command that ends with the error."""

    def fail(*_: object, **__: object) -> None:
        raise error("for the table")

    monkeypatch.setattr(main, "app", fail)
    with pytest.raises(SystemExit) as ended:
        main.main()
    return str(ended.value.code)


def test_every_error_is_in_the_table_with_its_codes(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = []
    for name, error in vars(errors).items():
        if isinstance(error, type) and issubclass(error, errors.OffsetkeeperError):
            status = next((code for kind, code in changes._CODES if issubclass(error, kind)), 500)
            expected.append([name, str(status), exit_code(error, monkeypatch)])
    assert [[row[0], row[2], row[3]] for row in rows("errors.md", "Errors")] == expected


@pytest.mark.parametrize(
    ("heading", "words"),
    [("Status of a group", Status), ("Verdicts of a start", Verdict), ("Findings in a history", Kind)],
)
def test_every_word_is_in_its_table(heading: str, words: type[Status] | type[Verdict] | type[Kind]) -> None:
    assert [row[0] for row in rows("words.md", heading)] == [*map(str, words)]


def test_every_event_is_in_its_table() -> None:
    events = {rules.event_name(event) for event in get_args(rules.Event)} | {copy._COPY}
    assert {row[0] for row in rows("words.md", "Events of a history")} == events


def test_the_glossary_is_short() -> None:
    _, glossary = (DOCS / "words.md").read_text("utf-8").split("## Glossary\n")
    assert 0 < len(glossary.strip().splitlines()) <= 15


def test_every_page_is_in_the_index_once() -> None:
    trees = re.findall(r"^```\{toctree\}\n(.*?)^```", (DOCS / "index.md").read_text("utf-8"), re.DOTALL | re.MULTILINE)
    named = [line for tree in trees for line in tree.splitlines() if line and line[0] != ":"]
    pages = {path.stem for path in DOCS.glob("*.md")} - {"index"}
    assert sorted(name for name in named if "/" not in name) == sorted(pages)


@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_the_front_pages_show_what_the_demo_does(page: str) -> None:
    """Its moments of a kill; and each door leads to a page that is in the index, with pictures that load fast."""
    text = (ROOT / page).read_text("utf-8")
    assert [point for point in POINTS.values() if point not in text] == []
    doors = re.findall(r"^\| .*?\]\((?:docs/)?([\w-]+)\.md\)", text.split("| you say |")[1], re.MULTILINE)
    assert doors == [
        "migrate-dstreams",
        "migrate-checkpoints",
        "guarantees",
        "topics",
        "night",
        "clusters",
        "getting-started",
    ]
    for picture in re.findall(r"pictures/[\w.-]+", text):
        assert 0 < (DOCS / picture).stat().st_size < MOST_BYTES, picture


def test_code_is_not_cut_on_a_screen_of_1440_pixels() -> None:
    """So many columns fit beside both side bars, see docs/_static/site.css."""
    for page in DOCS.glob("*.md"):
        blocks = re.findall(r"^```(.*?)\n(.*?)^```", page.read_text("utf-8"), re.DOTALL | re.MULTILINE)
        lines = [line for kind, block in blocks for line in block.splitlines() if not kind.startswith("{")]
        assert [line for line in lines if len(line) > COLUMNS] == [], page.name


def headings(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub and the site make them."""
    text = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
    found = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in found}


def test_links_lead_to_headings() -> None:
    """`make docs` holds them too, and takes longer."""
    for page in PAGES:
        for link, anchor in re.findall(r"\]\(([\w./-]*)#([^)]+)\)", page.read_text("utf-8")):
            target = page.parent / link if link else page
            assert target.exists(), (page.name, link)
            assert anchor in headings(target) or target.suffix != ".md", (page.name, link, anchor)


def test_headings_and_code_begin_at_a_line() -> None:
    """Lines that were joined hide a chapter, and its code from the tests."""
    for page in PAGES:
        for line in page.read_text("utf-8").splitlines():
            assert not re.search(r"\S.*```|\S #{2,} ", line), (page.name, line[:200])


def test_every_extra_is_in_the_table_with_its_packages() -> None:
    """Versions are left to the build; so are the extras of a package."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    expected = {name: [re.split(r"[\[<>=]", package)[0] for package in packages] for name, packages in extras.items()}
    assert {row[0]: re.findall(r"[\w-]+", row[1]) for row in rows("extras.md", "Extras")} == expected


def test_the_page_of_settings_describes_every_argument() -> None:
    """It refuses arguments without a description, as a build does."""
    page = runpy.run_path(str(DOCS / "settings.py"))
    found = page["page"]()
    for expected in (
        "| `max_records` | `None` | the most offsets in one batch. |",
        "| `recreated` | `'stop'` |",
        "| `slots` | `1` |",
        "| `history` | `1000` |",
        "| `alerts.webhook` |",
        "| `--port` | `8117` |",
    ):
        assert expected in found

    def undescribed(*, other: str) -> None:
        """Do something."""

    with pytest.raises(ValueError, match="other"):
        page["arguments"](undescribed)


def test_decisions_are_numbered_in_reading_order() -> None:
    numbers = re.findall(r"^(\d+)\. ", (DOCS / "design.md").read_text("utf-8"), re.MULTILINE)
    assert [*map(int, numbers)] == [*range(1, len(numbers) + 1)]
