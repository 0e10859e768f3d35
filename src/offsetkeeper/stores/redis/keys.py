"""The names of a group's keys in Redis, all built from one template.

    offset:{topic}:{group}      the default: the hash of each topic, field = partition, value = offset

`{topic}` and `{group}` are replaced; all other text stays, also other braces. So a template can have the hash tag that
keeps the keys of a group on one node of a Redis Cluster: `offset:{topic}:{{group}}` becomes `offset:orders:{shop}`.

The two keys of offsetkeeper for a group use the same template, with `*` for the topic and a prefix, and the same tag:

    offsetkeeper:control:offset:*:shop      hash: version, control, topics, topic_ids
    offsetkeeper:history:offset:*:shop      list of entries, newest first
"""

from __future__ import annotations

import re
from typing import NamedTuple

from offsetkeeper.core.model import check_group
from offsetkeeper.core.offsets import check_topic
from offsetkeeper.errors import Refused, SettingsError

DEFAULT = "offset:{topic}:{group}"
_PLACES = re.compile(r"(\{topic\}|\{group\})")
_GLOB = re.compile(r"([*?\[\]\\])")
_ANY_TOPIC = "*"
_CONTROL, _HISTORY = _OWN = ("offsetkeeper:control:", "offsetkeeper:history:")
_EXPRESSIONS = {"topic": "[^:/]+", "group": "(?s:.+)"}  # a topic has no : and no /, so a key has one group only


class Found(NamedTuple):
    """The group and the topic of a key; the topic is empty for a control record."""

    group: str
    topic: str


class Keys:
    """The names of keys for one template.

    Raises:
        SettingsError: the template lacks topic or group, or two keys could have the same name.
    """

    def __init__(self, template: str = DEFAULT) -> None:
        self._parts = _PLACES.split(template)
        between = self._parts[2:-1:2]
        apart = all(":" in text or "/" in text for text in between)
        reserved = template.startswith(_OWN)
        if not {"{topic}", "{group}"} <= set(self._parts) or not apart or reserved or not template.isprintable():
            raise SettingsError(
                f"key={template!r} in the store's URL: it must have {{topic}} and {{group}} with a : or / in between, "
                f"such as {DEFAULT}, and begin otherwise than {' and '.join(_OWN)}"
            )
        self._expression = re.compile(self._regex())

    def positions(self, group: str, topic: str) -> str:
        """The hash of a topic's offsets.

        Raises:
            Refused: by this template, it would be another group's control record or history.
        """
        key = self._fill({"{topic}": topic, "{group}": group})
        if key.startswith(_OWN):
            raise Refused(
                f"group {group!r} cannot be kept with key={''.join(self._parts)!r} in the store's URL: the key {key!r} "
                f"is reserved. Nothing was written. Let the template begin with another word, as {DEFAULT} does"
            )
        return key

    def control(self, group: str) -> str:
        """The hash with the control record."""
        return f"{_CONTROL}{self._fill({'{topic}': _ANY_TOPIC, '{group}': group})}"

    def history(self, group: str) -> str:
        """The list of entries."""
        return f"{_HISTORY}{self._fill({'{topic}': _ANY_TOPIC, '{group}': group})}"

    def patterns(self, group: str | None = None) -> tuple[str, str]:
        """Return the glob patterns of the hashes and the control records of one group, or of all groups."""
        parts = {"{group}": "*" if group is None else _escaped(group)}
        hashes = self._fill({"{topic}": "*", **parts}, escape=True)
        controls = self._fill({"{topic}": _escaped(_ANY_TOPIC), **parts}, escape=True)
        return hashes, f"{_CONTROL}{controls}"

    def parse(self, key: bytes) -> Found | None:
        """Return the group and the topic of a key, or None if the key does not fit the template."""
        try:
            name = key.decode()
            own = name.startswith(_OWN)
            match = self._expression.fullmatch(name.removeprefix(_CONTROL))
            if match is None:
                return None
            group, topic = check_group(match["group"]), match["topic"]
            if own:
                return Found(group, "") if self.control(group) == name else None
            return Found(group, check_topic(topic))
        except (UnicodeDecodeError, SettingsError):
            return None

    def _fill(self, places: dict[str, str], *, escape: bool = False) -> str:
        return "".join(places.get(part) or (_escaped(part) if escape else part) for part in self._parts)

    def _regex(self) -> str:
        seen: set[str] = set()
        pieces = []
        for part in self._parts:
            name = part[1:-1]
            if not _PLACES.fullmatch(part):
                pieces.append(re.escape(part))
            else:
                pieces.append(f"(?P={name})" if name in seen else f"(?P<{name}>{_EXPRESSIONS[name]})")
                seen.add(name)
        return "".join(pieces)


def _escaped(text: str) -> str:
    return _GLOB.sub(r"\\\1", text)
