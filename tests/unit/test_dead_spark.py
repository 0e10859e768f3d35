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
        monkeypatch.setattr(spark, "lastStageAttempt", lambda _: stop.check_spark(None))
        with pytest.raises(ConnectionRefusedError):
            check()


@pytest.mark.usefixtures("dead")
def test_a_frame_of_spark_connect_needs_no_jvm_here() -> None:
    """A process whose own JVM has died may go on with a server of Spark Connect."""
    frame = type("DataFrame", (), {"__module__": "pyspark.sql.connect.dataframe"})()
    stop.check_spark(frame)
    with pytest.raises(ConnectionRefusedError):
        stop.check_spark(None)


def test_rows_are_whole_only_if_the_jvm_has_served_them_all() -> None:
    """Its thread may fail while the JVM lives: without memory it ends, and nobody is told. PySpark does not ask it."""
    made = SimpleNamespace(create=lambda number, unit: f"{number} {unit}")
    java = SimpleNamespace(scala=SimpleNamespace(concurrent=SimpleNamespace(duration=SimpleNamespace(Duration=made))))

    def waits(limit: str) -> None:
        assert limit == "30 s"
        raise TimeoutError("Futures timed out after [30 seconds]")

    for end in (lambda _: None, waits):
        served = (["a", "b"], "secret", SimpleNamespace(getResult=end))
        frame = Frame(SimpleNamespace(collectToPython=lambda served=served: served), SimpleNamespace(_jvm=java))
        assert frame.collect() == ["a", "b"]
        if end is waits:
            with pytest.raises(TimeoutError, match="timed out"):
                collected(frame)
        else:
            assert collected(frame) == ["a", "b"]
