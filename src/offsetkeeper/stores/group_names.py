"""Names of groups in systems that hold fewer names than Kafka: a name does not change if the system holds it.

So offsets that other programs keep under a name belong to the group with that name. In every other name the unsafe
characters and percent signs are written as %XX, and a colon before it is the mark of such a written name. Groups of
older releases have no colon, so none of them has the place of another group now. These releases had no mark, and wrote
only some characters as %XX; names that need no more than that stay as they are.
"""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import unquote

from offsetkeeper.errors import Refused

MARK = ":"
_NOTHING = re.compile(r"(?!)")


class Names(NamedTuple):
    """How one system names groups.

    Attributes:
        unsafe: what a name cannot have there, or a place where it cannot have it.
        quoted: characters that are written as %XX without the mark, as older releases do.
        longest: the most bytes of a name there.
    """

    unsafe: re.Pattern[str] = _NOTHING
    quoted: re.Pattern[str] = _NOTHING
    longest: int = 32_767

    def name_of(self, group: str) -> str:
        """Return the name of a group in the system; no two groups have the same.

        Raises:
            Refused: it is too long for the system.
        """
        name = self._name(group)
        if (size := len(name.encode())) > self.longest:
            raise Refused(
                f"group {group!r} cannot be kept in this store: with the characters that it writes as %XX, the name "
                f"has {size} bytes there, and {self.longest} fit. Nothing was written. Give the group a shorter name"
            )
        return name

    def group_of(self, name: str) -> str:
        """Return the group that has this name in the system; `name` itself if no group has it."""
        group = unquote(name.removeprefix(MARK))
        return group if self._name(group) == name else name

    def others_name(self, group: str) -> str:
        """Return the name that another program uses for a group, if this one uses another; else empty.

        A name that stands for another group is the other group's.
        """
        return group if self._name(group) != group and self.group_of(group) == group else ""

    def _name(self, group: str) -> str:
        if self.unsafe.search(group) or self._looks_written(group):
            return MARK + "".join(_as_bytes(each) if self._is_odd(each) else each for each in group)
        return self._quoted(group)

    def _looks_written(self, group: str) -> bool:
        """Whether it may be how another group is written."""
        if group.startswith(MARK):
            return "%" in self._quoted(group)
        other = unquote(group)
        return other != group and not self.unsafe.search(other) and self._quoted(other) == group

    def _quoted(self, group: str) -> str:
        if not self.quoted.search(group):
            return group
        return "".join(_as_bytes(each) if each == "%" or self.quoted.match(each) else each for each in group)

    def _is_odd(self, each: str) -> bool:
        return each == "%" or bool(self.unsafe.search(each) or self.quoted.match(each))


def _as_bytes(text: str) -> str:
    return "".join(f"%{byte:02X}" for byte in text.encode("utf-8", "surrogatepass"))
