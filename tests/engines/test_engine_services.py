"""A function that writes into a service: records that fail there, an outage, and a program that is wrong."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from engines.lab import Lab
from engines.services import SECRET, NoAnswer, Service, Web, from_driver, from_tasks
from offsetkeeper import Batch, Policies
from offsetkeeper.sinks import Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

NewTopic = Callable[..., str]
Tables = Callable[[str], list[Any]]


def run(lab: Lab, source: str, function: Any, **settings: Any) -> Any:
    letters = Table(lab.store, "letters")
    given = {"policies": Policies(poison="quarantine"), "dead_letters": letters, "attempts": 1, **settings}
    return lab.pipeline(source, **given).run(lab.spark, function, guarantee="at_least_once", until="caught_up")


def letters_in(tables: Tables) -> list[int]:
    return [offset for (offset,) in tables('select "offset" from letters order by 1')]


@pytest.mark.parametrize("requests_lost", [1, 4, 5, 6, 1000])
def test_a_service_that_is_away_for_a_while_puts_no_record_into_the_dead_letters(
    requests_lost: int, lab: Lab, topic: NewTopic, tables: Tables
) -> None:
    """Whenever it comes back: while the batch is cut, or while others are tried. If it stays away, the run ends."""
    lab.produce(source := topic(1), *"abcdef")
    service = Service(away=range(4, 4 + requests_lost))
    try:
        run(lab, source, service, max_records=3)
    except NoAnswer:
        assert [*lab.offsets().values()] == [3]
        service.away = ()
        run(lab, source, service)
    else:
        assert requests_lost < 1000
    assert set(service.taken) == set(range(6))
    assert letters_in(tables) == []


def test_a_record_that_a_service_cannot_use_is_in_the_dead_letters_wherever_it_stands(
    lab: Lab, topic: NewTopic, tables: Tables
) -> None:
    """The first of all, the last of all, and several in a row."""
    values = ["bad", "1", "2", "bad", "bad", "5", "6", "bad", "bad", "bad"]
    lab.produce(source := topic(1), *values)
    service = Service()
    summary = run(lab, source, service)
    bad = [offset for offset, value in enumerate(values) if value == "bad"]
    assert letters_in(tables) == bad
    assert summary.quarantined == len(bad)
    assert set(service.taken) == {1, 2, 5, 6}
    last = {offset: at for at, offset in enumerate(service.taken)}
    assert sorted(last, key=lambda offset: last[offset]) == [1, 2, 5, 6]  # where the newest write wins, 6 does


def test_a_function_that_fails_for_each_record_quarantines_none(lab: Lab, topic: NewTopic, tables: Tables) -> None:
    """However often it is started, and though the release before has written some."""
    lab.produce(source := topic(1), *"abc")
    service = Service()
    run(lab, source, service)
    lab.produce(source, *"defg")

    def broken(frame: DataFrame, _: Batch) -> None:
        if frame.count():
            raise KeyError("a new release is broken")

    for _ in range(2):
        with pytest.raises(KeyError, match="a new release is broken") as told:
            run(lab, source, broken)
        assert "no other record" in "".join(told.value.__notes__)
        assert letters_in(tables) == []
    run(lab, source, service)
    assert sorted(service.taken) == list(range(7))


def test_a_function_gets_no_record_that_its_group_was_never_to_read(lab: Lab, topic: NewTopic, tables: Tables) -> None:
    """It began behind that record. So there is no other one to write, and the run stops."""
    lab.produce(source := topic(1), "before")
    service = Service()
    run(lab, source, service, start="latest")
    lab.produce(source, "bad")
    with pytest.raises(ValueError, match="cannot be used") as told:
        run(lab, source, service, start="latest")
    assert "no other record" in "".join(told.value.__notes__)
    assert (service.taken, letters_in(tables)) == ([], [])


@pytest.fixture
def web() -> Iterator[Web]:
    """A web service."""
    with Web() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("function", [from_driver, from_tasks])
@pytest.mark.parametrize("status", [0, 503], ids=["hangs up", "says 503"])
def test_a_web_service_that_is_away_is_waited_for_and_its_url_is_in_no_history(
    status: int, function: Callable[[str], Any], web: Web, lab: Lab, topic: NewTopic, tables: Tables
) -> None:
    """A URL has secrets in its path or its query, and the text of the error has the URL."""
    lab.produce(source := topic(1), "a", "b")
    web.answers = [status] * 3
    run(lab, source, function(web.url))
    assert sorted(web.taken) == [0, 1]
    assert letters_in(tables) == []
    [told] = [entry.reason for entry in lab.history() if entry.event == "wait"]
    assert told.endswith(
        f": requests.exceptions.{'HTTPError' if status else 'ConnectionError'}: see the log of the run"
    )
    assert SECRET not in str(lab.history())


def test_a_letter_has_the_error_without_the_path_of_a_url(web: Web, lab: Lab, topic: NewTopic, tables: Tables) -> None:
    lab.produce(source := topic(1), "a", "b")
    web.refused = 0
    run(lab, source, from_driver(web.url), max_records=1)
    assert sorted(set(web.taken)) == [1]
    [(error,)] = tables("select error from letters")
    assert error == f"HTTPError: 422 Client Error: Unprocessable Entity for url: http://127.0.0.1:{web.server_port}/…"
