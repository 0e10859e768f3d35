"""Names of groups in systems that allow fewer characters: a name does not change if the system allows it.

So offsets that other programs keep under a name belong to the group with that name. If a name has characters that the
system does not allow, these and percent signs are written as %XX. A group name that looks like such a written name is
refused, because two groups would have the same name.
"""

from __future__ import annotations

import re
from urllib.parse import quote, unquote

from offsetkeeper.errors import Refused


def name_of(group: str, unsafe: re.Pattern[str]) -> str:
    """Return the name of a group in a system that does not allow `unsafe` characters.

    Raises:
        Refused: another group already has that name there.
    """
    if unsafe.search(group):
        return _written(group, unsafe)
    if (other := group_of(group, unsafe)) != group:
        raise Refused(f"{group!r} is how this store writes the name of group {other!r}: use that name")
    return group


def group_of(name: str, unsafe: re.Pattern[str]) -> str:
    """Return the group that has this name in the system."""
    group = unquote(name)
    return group if unsafe.search(group) and _written(group, unsafe) == name else name


def _written(group: str, unsafe: re.Pattern[str]) -> str:
    return "".join(quote(each, safe="") if each == "%" or unsafe.match(each) else each for each in group)
