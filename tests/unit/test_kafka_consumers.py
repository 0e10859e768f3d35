"""How the store in Kafka reads its topic to the end."""

from __future__ import annotations

from unittest.mock import Mock

from offsetkeeper.kafka.consumers import Consumers


def record(offset: int) -> Mock:
    message = Mock(**{"offset.return_value": offset, "error.return_value": None, "headers.return_value": []})
    message.configure_mock(**{"key.return_value": f"shop/{offset + 1}/0a".encode(), "value.return_value": b"some"})
    return message


def end(offset: int) -> Mock:
    return Mock(**{"offset.return_value": offset, "error.return_value.name.return_value": "_PARTITION_EOF"})


def test_records_that_a_new_leader_holds_back_are_waited_for() -> None:
    """A reader made up, as it is over in no time: one of three is shown, until the others are known to have them."""
    reader = Mock()
    reader.get_watermark_offsets.return_value = 0, 3
    reader.poll.side_effect = [record(0), end(1), record(1), record(2), end(3)]
    lines, found = Consumers(lambda _: reader, 5).read("offsetkeeper", "shop")
    assert ([line.version for line in lines], found) == ([1, 2, 3], 3)
