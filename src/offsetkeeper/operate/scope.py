"""The partitions that an operator names, and refusals that list what is wrong with them. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from offsetkeeper.core.model import Snapshot
from offsetkeeper.core.offsets import TopicPartition
from offsetkeeper.errors import Refused, listed


class Scope(NamedTuple):
    """The partitions that an operator names, directly or by their topics; all partitions if nothing is named.

    Attributes:
        partitions: partitions.
        topics: topics, each with all of its partitions.
        all_topics: whether a reset moves all topics that the ledger has positions of, beside those named.
    """

    partitions: Collection[TopicPartition] = ()
    topics: Collection[str] = ()
    all_topics: bool = False

    @property
    def names_some(self) -> bool:
        """Whether a partition or a topic is named."""
        return bool(self.partitions or self.topics)

    def covers(self, tp: TopicPartition) -> bool:
        """Whether a partition is named, directly or by its topic; true for all if nothing is named."""
        return not self.names_some or tp in self.partitions or tp.topic in self.topics

    def select(self, of: Iterable[TopicPartition], what: str) -> set[TopicPartition]:
        """Return the partitions that are named; all if nothing is named.

        Args:
            of: the partitions to choose from.
            what: a name for `of`, for messages.

        Raises:
            Refused: a named partition or topic is not in `of`.
        """
        there = set(of)
        absent = sorted(set(self.topics) - {tp.topic for tp in there})
        refuse(
            [f"{tp} is not among {what}" for tp in sorted(self.partitions) if tp not in there]
            + [f"no partition of {topic} is among {what}" for topic in absent]
        )
        return {tp for tp in there if self.covers(tp)}


EVERYTHING = Scope()


def check_none_lost(snapshot: Snapshot, scope: Scope, given: Collection[TopicPartition] = (), more: str = "") -> None:
    """Check that the store has lost no position of a scope: whoever goes on at the others would begin there anew.

    Args:
        snapshot: the ledger.
        scope: the partitions that go elsewhere.
        given: partitions whose offset is known in spite of that.
        more: a further remedy, for the message.

    Raises:
        Refused: it has lost one.
    """
    wanted = snapshot.missing.difference(given)
    if lost := sorted(tp for tp in wanted if scope.all_topics or scope.covers(tp)):
        raise Refused(
            f"the store has lost positions of group {snapshot.group!r}: {listed(lost, ', ')}. Who goes on at the "
            "others alone would read these partitions again, or skip records. Put them back with offsetkeeper reset, "
            f"take them out with offsetkeeper forget, or name the others with --topic{more}"
        )


def refuse(problems: Iterable[str]) -> None:
    """Raise an error if there are problems.

    Raises:
        Refused: there is a problem; the message lists up to twenty.
    """
    if wrong := list(problems):
        raise Refused(f"nothing was changed:\n  {listed(wrong)}")


def check_exist(partitions: Iterable[TopicPartition], known: Collection[TopicPartition]) -> None:
    """Check that partitions exist.

    Raises:
        Refused: a partition does not exist; the message lists up to twenty.
    """
    refuse(missing(tp) for tp in sorted(partitions) if tp not in known)


def missing(tp: TopicPartition) -> str:
    """Return why a partition that Kafka does not have is refused."""
    return f"{tp} does not exist in Kafka: leave it out, and name the other partitions with --topic"
