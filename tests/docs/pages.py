"""The pages of the documentation, and the code in them."""

import os
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
_BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)


def blocks(page: Path) -> list[str]:
    """Return the page's Python blocks."""
    return _BLOCK.findall(page.read_text("utf-8"))


def hold(page: Path, name: str, text: str, variable: str) -> None:
    """Hold what follows a comment with this name on a page, up to a blank line, against what it must be.

    Args:
        page: path of the page.
        name: in the comment; the text itself may have blank lines if it is fenced.
        text: what must stand there.
        variable: name of an environment variable: if it is set, the text is written instead.
    """
    whole = page.read_text("utf-8")
    found = re.search(rf"<!-- {name} -->\n\n(```.*?\n```|.*?)\n\n", f"{whole}\n\n", re.DOTALL)
    assert found, name
    if os.environ.get(variable):
        begin = f"<!-- {name} -->\n\n"
        page.write_text(whole.replace(f"{begin}{found[1]}", f"{begin}{text}"), "utf-8")
    else:
        assert found[1] == text
