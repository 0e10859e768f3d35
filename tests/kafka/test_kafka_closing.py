"""Clients that do not close, as those of librdkafka now and then: nobody waits for them for ever."""

from __future__ import annotations

import threading

import pytest

from offsetkeeper.kafka.closing import close


def test_a_client_that_does_not_close_is_left_and_told(caplog: pytest.LogCaptureFixture) -> None:
    ended, here = threading.Event(), threading.Event()

    def hang() -> None:
        ended.wait()
        here.set()

    close(hang, most_s=0.01)
    assert "does not close within 0.01 s" in caplog.messages[0]
    assert not here.is_set()
    ended.set()
    assert here.wait(30), "it ran in a thread of its own"


def test_what_a_client_raises_when_it_closes_is_raised() -> None:
    def fail() -> None:
        raise RuntimeError("closed twice")

    with pytest.raises(RuntimeError, match="closed twice"):
        close(fail)
