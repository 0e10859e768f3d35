"""Files import one another in one direction only, whether at the top of a file or inside a function."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

import offsetkeeper

PACKAGE = Path(offsetkeeper.__file__).parent


def _modules(root: Path) -> dict[str, Path]:
    """Return the files of a package, by the names of their modules."""
    files = {".".join((root.name, *path.relative_to(root).with_suffix("").parts)): path for path in root.rglob("*.py")}
    return {name.removesuffix(".__init__"): path for name, path in files.items()}


def _nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Yield all that runs: not what stands under `if TYPE_CHECKING`."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and ast.unparse(child.test).endswith("TYPE_CHECKING"):
            for other in child.orelse:
                yield from (other, *_nodes(other))
        else:
            yield from (child, *_nodes(child))


def _imported(text: str, names: Mapping[str, Path]) -> set[str]:
    """Return the modules of `names` that a file's text imports."""
    found: set[str] = set()
    for node in _nodes(ast.parse(text)):
        if isinstance(node, ast.Import):
            found |= {each.name for each in node.names}
        elif isinstance(node, ast.ImportFrom):
            inside = {each.name: f"{node.module}.{each.name}" for each in node.names}
            found |= {full if full in names else str(node.module) for full in inside.values()}
    return found & names.keys()


def circles(root: Path) -> list[list[str]]:
    """Return each set of modules that reach one another by their imports, sorted."""
    names = _modules(root)
    arrows = {name: _imported(path.read_text("utf-8"), names) for name, path in names.items()}
    reached = {name: _reached(name, arrows) for name in arrows}
    rings = {frozenset(o for o in reached[name] if name in reached[o]) for name in arrows if name in reached[name]}
    return sorted(sorted(ring) for ring in rings)


def _reached(start: str, arrows: Mapping[str, set[str]]) -> set[str]:
    found: set[str] = set()
    left = [start]
    while left:
        new = arrows[left.pop()] - found
        found |= new
        left += new
    return found


def test_no_files_import_one_another_in_a_circle() -> None:
    assert circles(PACKAGE) == []


def test_a_circle_is_found_through_functions_and_submodules_and_not_through_types(tmp_path: Path) -> None:
    texts = {
        "__init__": "from house.a import A",
        "a": "def f():\n    from house import b\n",
        "b": "import house.c",
        "c": "from house.a import A\nfrom typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from house.d import D",
        "d": "from house.c import C",
    }
    root = tmp_path / "house"
    root.mkdir()
    for name, text in texts.items():
        (root / f"{name}.py").write_text(text, "utf-8")
    assert circles(root) == [["house.a", "house.b", "house.c"]]
