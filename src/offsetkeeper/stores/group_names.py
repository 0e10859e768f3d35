"""Names of groups in systems that take fewer characters: each stays as it is there, if it can be one there.

So offsets that other programs keep under a name are those of the group of that name. In a name with characters that the
system does not take, these and the percent signs are written as %XX. A name that looks like such a one is refused, as
two groups would be one.
"""

from __future__ import annotations

import re
from urllib.parse import quote, unquote

from offsetkeeper.errors import Refused


def name_of(group: str, unsafe: re.Pattern[str]) -> str:
    """Return the name by which a system that does not take `unsafe` characters knows a group.

    Raises:
        Refused: another group has that name there.
    """
    if unsafe.search(group):
        return _written(group, unsafe)
    if (other := group_of(group, unsafe)) != group:
        raise Refused(f"{group!r} is how this store writes the name of the group {other!r}: give that one")
    return group


def group_of(name: str, unsafe: re.Pattern[str]) -> str:
    """Return the group that a system knows by a name."""
    group = unquote(name)
    return group if unsafe.search(group) and _written(group, unsafe) == name else name


def _written(group: str, unsafe: re.Pattern[str]) -> str:
    return "".join(quote(each, safe="") if each == "%" or unsafe.match(each) else each for each in group)
