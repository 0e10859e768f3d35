"""What is done with rows once the JVM that gave them is dead, or has not sent all: a stand-in takes its place."""

from __future__ import annotations

import socket
from types import SimpleNamespace
from typing import Any

import pytest

from offsetkeeper.core.model import Guarantee
from offsetkeeper.core.spark_session import collected
from offsetkeeper.engines import stop
from offsetkeeper.engines.recomputed import watched
from offsetkeeper.errors import SparkGone
from unit.test_deliver import Scene
from unit.test_recomputed import Late


class Frame:
    """A frame of classic PySpark, as far as `collect` goes."""

    def __init__(self, jdf: Any, session: object) -> None:
        self._jdf, self.sparkSession = jdf, session

    def collect(self) -> list[str]:
        """Return what the JVM serves."""
        rows, *_ = self._jdf.collectToPython()
        return list(rows)


@pytest.fixture
def dead(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark has died in this process: nothing listens at its port."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address, port = server.getsockname()

    def call() -> None:
        raise ConnectionRefusedError("as py4j says it")

    gateway = SimpleNamespace(
        gateway_parameters=SimpleNamespace(address=address, port=port),
        jvm=SimpleNamespace(System=SimpleNamespace(nanoTime=call)),
    )
    monkeypatch.setattr(stop, "_gateway", lambda: gateway)


@pytest.mark.parametrize("names", [("one",), ("one", "two")])
@pytest.mark.usefixtures("dead")
def test_what_a_function_wrote_is_not_committed_once_spark_is_dead(names: tuple[str, ...]) -> None:
    """It may have got a part of its rows. Nothing is tried again."""
    scene = Scene(*names)
    with pytest.raises(SparkGone, match="its JVM at"):
        scene.deliver()
    assert (scene.calls, scene.events()) == (["one"], ["begin"])


@pytest.mark.usefixtures("dead")
def test_at_most_once_the_run_ends_with_the_error() -> None:
    """Its offsets are committed, and rows may be missing: the run does not end as if all was well."""
    scene = Scene("one", guarantee=Guarantee.AT_MOST_ONCE)
    with pytest.raises(SparkGone):
        scene.deliver()
    assert scene.events() == ["commit"]


@pytest.mark.usefixtures("dead")
def test_a_dead_spark_does_not_say_that_it_computed_nothing_again(monkeypatch: pytest.MonkeyPatch) -> None:
    spark = Late(0)
    with watched(Frame(None, spark)) as check:  # type: ignore[arg-type] # a stand-in
        monkeypatch.setattr(spark, "lastStageAttempt", lambda _: stop.check_spark())
        with pytest.raises(ConnectionRefusedError):
            check()


def test_rows_are_whole_only_if_the_jvm_has_served_them_all() -> None:
    """Its thread may fail while the JVM lives, as without memory. PySpark does not ask it."""

    def failed() -> None:
        raise MemoryError("Java heap space")

    for end in (lambda: None, failed):
        served = (["a", "b"], "secret", SimpleNamespace(getResult=end))
        frame = Frame(SimpleNamespace(collectToPython=lambda served=served: served), object())
        assert frame.collect() == ["a", "b"]
        if end is failed:
            with pytest.raises(MemoryError, match="Java heap space"):
                collected(frame)
        else:
            assert collected(frame) == ["a", "b"]
