"""Whether a file is mounted without its folder, as the kernel of Linux tells; others do not tell."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import NamedTuple

_ESCAPED = re.compile(rb"\\([0-7]{3})")  # a blank, a tab, a line feed or a backslash


class _Mount(NamedTuple):
    """A line of `/proc/self/mountinfo`, see proc_pid_mountinfo(5): `root` of `device` is seen at `place`."""

    device: bytes
    root: Path
    place: Path


def is_alone(path: Path) -> bool:
    """Return whether a file is itself the place of a mount, and its folder does not lead to the same file."""
    file = path.resolve()
    own = _mount_of(file)
    if own is None or own.place != file:
        return False
    folder = _mount_of(file.parent)
    return folder is None or own[:2] != (folder.device, folder.root / file.relative_to(folder.place))


def _mount_of(path: Path) -> _Mount | None:
    """Return the mount by which a path is reached now; another one may hide those before it."""
    kind = getattr(os, "O_PATH", None)  # closing any other descriptor would end the locks of SQLite on the file
    if kind is None:
        return None
    try:
        opened = os.open(path, kind)
        try:
            about = Path(f"/proc/self/fdinfo/{opened}").read_bytes()
        finally:
            os.close(opened)
        lines = Path("/proc/self/mountinfo").read_bytes().splitlines()
    except OSError:  # there is no such file, or the system has no such list
        return None
    number = about.partition(b"mnt_id:")[2].split()[:1]
    found = (line.split(b" ") for line in lines)
    return next((_Mount(each[2], *map(_plain, each[3:5])) for each in found if each[:1] == number), None)


def _plain(escaped: bytes) -> Path:
    return Path(os.fsdecode(_ESCAPED.sub(lambda found: bytes([int(found[1], 8)]), escaped)))
