"""The names of a group's keys in Redis, all made from one template.

    offset:{topic}:{group}      the default: the hash of each topic, field = partition, value = offset

`{topic}` and `{group}` are filled in; all else stands for itself, other braces too. So a template can have the hash
tag that keeps the keys of a group on one node of a Redis Cluster: `offset:{topic}:{{group}}` makes
`offset:orders:{shop}`.

Our own two keys of a group are named after the same template, with `*` for the topic and a prefix, and have its tag:

    offsetkeeper:control:offset:*:shop      hash: version, control, topics, topic_ids
    offsetkeeper:history:offset:*:shop      list of entries, newest first
"""

from __future__ import annotations

import re
from typing import NamedTuple

from offsetkeeper.core.model import check_group, check_topic
from offsetkeeper.errors import SettingsError

DEFAULT = "offset:{topic}:{group}"
_PLACES = re.compile(r"(\{topic\}|\{group\})")
_GLOB = re.compile(r"([*?\[\]\\])")
_ANY_TOPIC = "*"


class Found(NamedTuple):
    """What a key is about; the topic is empty for a control record."""

    group: str
    topic: str


class Keys:
    """The names of keys under one template.

    Raises:
        SettingsError: it does not name both, or keys could not be told apart.
    """

    def __init__(self, template: str = DEFAULT) -> None:
        self._parts = _PLACES.split(template)
        between = self._parts[2:-1:2]
        apart = all(":" in text or "/" in text for text in between)
        if not {"{topic}", "{group}"} <= set(self._parts) or not apart or not template.isprintable():
            raise SettingsError(
                f"key={template!r} in the store's URL: write {{topic}} and {{group}} into it, with a : or / between, "
                f"such as {DEFAULT}"
            )
        self._expression = re.compile(self._regex())

    def positions(self, group: str, topic: str) -> str:
        """The hash of a topic's offsets."""
        return self._fill({"{topic}": topic, "{group}": group})

    def control(self, group: str) -> str:
        """The hash with the control record."""
        return f"offsetkeeper:control:{self.positions(group, _ANY_TOPIC)}"

    def history(self, group: str) -> str:
        """The list of entries."""
        return f"offsetkeeper:history:{self.positions(group, _ANY_TOPIC)}"

    def patterns(self, group: str | None = None) -> tuple[str, str]:
        """Return the glob patterns of the hashes and the control records of one group, or of all."""
        parts = {"{group}": "*" if group is None else _escaped(group)}
        hashes = self._fill({"{topic}": "*", **parts}, escape=True)
        controls = self._fill({"{topic}": _escaped(_ANY_TOPIC), **parts}, escape=True)
        return hashes, f"offsetkeeper:control:{controls}"

    def parse(self, key: bytes) -> Found | None:
        """Return what a key is about, or None where it is none of ours."""
        try:
            name = key.decode().removeprefix("offsetkeeper:control:")
            match = self._expression.fullmatch(name)
            if match is None:
                return None
            group, topic = check_group(match["group"]), match["topic"]
            is_control = self.control(group).encode() == key
            return Found(group, "" if is_control else check_topic(topic))
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
                pieces.append(f"(?P={name})" if name in seen else f"(?P<{name}>[^:/]+)")
                seen.add(name)
        return "".join(pieces)


def _escaped(text: str) -> str:
    return _GLOB.sub(r"\\\1", text)
