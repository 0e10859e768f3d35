"""How the store in Kafka reads its topic to the end."""

from __future__ import annotations

from unittest.mock import Mock

import pytest

from offsetkeeper.kafka.consumers import Consumers, Gone, Mark


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
    read = Consumers(lambda _: reader, 5).read("offsetkeeper", "shop")
    assert ([line.version for line in read.lines], read.end, read.last) == ([1, 2, 3], 3, Mark(2, b"shop/3/0a"))


def test_what_comes_after_a_record_is_read_if_the_record_is_still_there() -> None:
    reader = Mock()
    reader.get_watermark_offsets.return_value = 0, 3
    reader.poll.side_effect = [record(1), record(2)]
    read = Consumers(lambda _: reader, 5).read("offsetkeeper", "shop", Mark(1, b"shop/2/0a"))
    assert ([line.version for line in read.lines], read.end, read.last) == ([3], 3, Mark(2, b"shop/3/0a"))


@pytest.mark.parametrize("there", [record(1), record(2), end(1)], ids=["another", "a later one", "the end"])
def test_a_record_that_is_not_in_its_place_any_more_is_told(there: Mock) -> None:
    reader = Mock()
    reader.get_watermark_offsets.return_value = 0, there.offset()
    reader.poll.side_effect = [there]
    with pytest.raises(Gone):
        Consumers(lambda _: reader, 5).read("offsetkeeper", "shop", Mark(1, b"shop/2/ff"))
