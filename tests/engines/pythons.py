"""Pythons that lack something, for Spark's workers and planner."""

from __future__ import annotations

import sys
from pathlib import Path


def python_without(folder: Path, *words: str) -> Path:
    """Return a Python with all that this one has installed, but for what has one of the words in its name."""
    packages = folder / "packages"
    packages.mkdir()
    for place in filter(lambda path: path.endswith("site-packages"), sys.path):
        for entry in Path(place).iterdir():
            if entry.suffix != ".pth" and not any(word in entry.name for word in words):
                (packages / entry.name).symlink_to(entry)
    script = folder / "python"
    script.write_text(f'#!/bin/sh\nPYTHONPATH="{packages}:$PYTHONPATH" exec {sys.executable} -S "$@"\n')
    script.chmod(0o755)
    return script
