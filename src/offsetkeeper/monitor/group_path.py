"""The name of a group as the last part of a path, which may be any text."""

from __future__ import annotations

import re
from urllib.parse import quote

from starlette.convertors import Convertor, register_url_convertor

from offsetkeeper.stores.group_names import Names

IN_ROUTE = "{group:group}"
_NAMES = Names(re.compile(r"^\.\.?\Z"))  # browsers drop such parts of a path, however they are written


def path_of(group: str) -> str:
    """Return a group's name for a path."""
    return quote(_NAMES.name_of(group), safe="")


class _GroupConvertor(Convertor[str]):
    """`{group:group}` in a route: the rest of the path, also if it has slashes and line ends."""

    regex = "(?s:.*)"

    def convert(self, value: str) -> str:
        return _NAMES.group_of(value)

    def to_string(self, value: str) -> str:
        return path_of(value)


register_url_convertor("group", _GroupConvertor())
