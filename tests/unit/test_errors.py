"""The tree of errors is the one drawn in its docstring."""

from __future__ import annotations

import re

from offsetkeeper import errors


def drawn() -> dict[str, str]:
    """Return name and parent of each error in the drawing."""
    parents: dict[str, str] = {}
    path: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        if found := re.match(r"    ([│├└─ ]*)([A-Z]\w+)", line):
            depth = len(found[1]) // 4
            path[depth:] = [found[2]]
            parents[found[2]] = path[depth - 1] if depth else "Exception"
    return parents


def test_the_drawing_and_the_classes_agree() -> None:
    classes = [each for each in vars(errors).values() if isinstance(each, type)]
    assert drawn() == {each.__name__: each.__bases__[0].__name__ for each in classes}
