"""The partitions that an operator names, and refusals that list what is wrong with them. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

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
