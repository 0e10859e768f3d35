"""Closes clients that have fetched, with a limit for the wait. Executors use it too."""

from __future__ import annotations

import logging
from concurrent.futures import Future
from threading import Thread
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger("offsetkeeper")
CLOSE_S = 10.0


def close(client_close: Callable[[], None], most_s: float = CLOSE_S) -> None:
    """Close a client that has fetched records; leave it to its own threads where that takes too long.

    librdkafka 2.16 waits for its threads for ever where a broker answers, while the client closes, that an offset is
    out of range. After a batch with a wrong checksum this is common: the client takes bytes from the middle of that
    batch for the next one, and asks for the offset that it finds there.

    Args:
        client_close: closes the client; runs in a thread of its own. What it raises is raised.
        most_s: seconds to wait for it.
    """
    closed: Future[None] = Future()

    def run() -> None:
        try:
            client_close()
        except BaseException as error:  # noqa: BLE001 - whoever waits gets it
            closed.set_exception(error)
        else:
            closed.set_result(None)

    Thread(target=run, name="offsetkeeper-close", daemon=True).start()
    try:
        closed.result(most_s)
    except TimeoutError:
        log.warning(
            "A Kafka client does not close within %g s. Its threads stay until this process ends; nothing else waits "
            "for them",
            most_s,
        )
