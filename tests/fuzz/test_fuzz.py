"""Whatever is in a URL, a setting, a file, a record or a request: a result or an error of ours, soon, and no secret."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from starlette.applications import Starlette

from fixtures.fake_cluster import Fake
from fuzz.mutate import SECRET, Mutations
from fuzz.outside_readers import Reader, readers
from offsetkeeper import Ledger, OffsetRange, Position, TopicPartition, open_store
from offsetkeeper.core.bounds import Bounds
from offsetkeeper.errors import OffsetkeeperError
from offsetkeeper.kafka.cluster import Timestamps
from offsetkeeper.monitor.changes import Changes, routes
from offsetkeeper.operate.reset_plan import load_plan

LIMIT_S = 20.0  # for one input, on a machine that is busy
KINDS = sorted(readers(Path()))
ACTIONS = ("reset", "rewind", "undo", "execute")
FEW, MANY = 250, 46_000  # of each of 22 kinds
COUNTS = [pytest.param(FEW, id="few"), pytest.param(MANY, id="many", marks=pytest.mark.soak)]


@contextmanager
def bounded(text: str) -> Iterator[None]:
    """End the block where it takes too long."""

    def end(_: int, __: FrameType | None) -> None:
        raise AssertionError(f"it hangs: {text[:2000]!r}")

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, LIMIT_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def told(error: BaseException | None) -> str:
    """Return all that Python shows of an error: its causes too."""
    lines = []
    while error is not None:
        lines += [str(error), repr(error)]
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return "\n".join(lines)


def judge(read: Callable[[str], object], text: str, *, hides: bool) -> str:
    """Return what is wrong with how a text is read; empty where nothing is."""
    with bounded(text):
        try:
            read(text)
        except OffsetkeeperError as error:
            shown = told(error)
            try:
                shown.encode()
            except UnicodeError:
                return "its error cannot be printed"
            return f"its error shows a secret: {shown[:500]}" if hides and SECRET in shown else ""
        except Exception as error:  # noqa: BLE001 - that is what is looked for
            return f"{type(error).__name__}: {str(error)[:300]}"
    return ""


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", COUNTS)
def test_any_text_is_read_or_refused_by_an_error_of_ours(
    kind: str, count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    reader: Reader = readers(tmp_path)[kind]
    wrong: dict[str, str] = {}
    for text in Mutations(reader.examples, seed=count).take(count):
        if (what := judge(reader.read, text, hides=reader.hides)) and len(wrong) < 5:
            wrong.setdefault(what, text[:500])
    assert not wrong


@pytest.mark.parametrize("kind", KINDS)
def test_the_examples_are_read(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else all inputs would be refused at the first letter, and nothing behind it looked at."""
    monkeypatch.chdir(tmp_path)
    taken = 0
    reader = readers(tmp_path)[kind]
    for text in reader.examples:
        try:
            reader.read(text)
        except OffsetkeeperError:
            continue
        taken += 1
    assert taken > 0 or kind == "sink URLs"  # of which each sink takes others


class Kafka(Fake):
    """A cluster that holds fifty records of two partitions."""

    def estimate_timestamps(self, asked: Any, *_: Any, **__: Any) -> dict[TopicPartition, Any]:
        """Return none."""
        del asked
        return {}

    def record_timestamps(self, *_: Any, **__: Any) -> Timestamps:
        """Return none."""
        return Timestamps({}, frozenset(), 0)


class Api:
    """The routes of changes, called as a server calls them, without one: a million requests take minutes so."""

    def __init__(self) -> None:
        fake, store = Kafka(), open_store("memory://api")
        for number in (0, 1):
            fake.held_[TopicPartition("orders", number)] = Bounds(0, 50, "id")
        ledger = Ledger(store, "shop", name="host:1")
        ledger.acquire("start")
        ledger.place({TopicPartition("orders", number): Position(5, "id") for number in (0, 1)})
        ledger.commit(ledger.batch([OffsetRange("orders", 0, 5, 9)]))
        ledger.release("end")
        cluster: Any = fake
        self._app = Starlette(routes=routes(Changes(store, cluster, lambda: None), SECRET))
        self._loop = asyncio.new_event_loop()

    def post(self, action: str, body: bytes) -> tuple[int, bytes]:
        """Send a request with the token; return status and body of the answer."""
        return self._loop.run_until_complete(self._post(action, body))

    def close(self) -> None:
        """Close the loop."""
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()

    async def _post(self, action: str, body: bytes) -> tuple[int, bytes]:
        sent: list[Any] = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: Any) -> None:
            sent.append(message)

        path = f"/api/{action}/shop"
        headers = [(b"content-type", b"application/json"), (b"authorization", f"Bearer {SECRET}".encode())]
        scope = {
            "type": "http",
            "method": "POST",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "headers": headers,
            "http_version": "1.1",
            "scheme": "http",
            "root_path": "",
            "client": ("host", 1),
        }
        await self._app(scope, receive, send)
        return sent[0]["status"], b"".join(each.get("body", b"") for each in sent[1:])


BODIES = (
    '{"to":"earliest","all_topics":true}',
    '{"to":5,"topics":["orders"]}',
    '{"to":"2026-01-31T12:00:00+00:00","partitions":[["orders",0]]}',
    '{"shift":-2,"topics":["orders"],"partitions":[["orders",1]]}',
    '{"offsets":[["orders",0,3],["orders",1,4]]}',
    '{"version":2}',
    '{"digest":"abc","reason":"why","force":true}',
)


@pytest.mark.parametrize("count", COUNTS)
def test_any_body_of_a_request_is_answered_without_a_failure_of_the_server(count: int) -> None:
    api = Api()
    wrong: dict[str, str] = {}
    for number, text in enumerate(Mutations(BODIES, seed=count).take(count)):
        action = ACTIONS[number % 3 if count == FEW else number % 4]
        with bounded(text):
            try:
                status, answer = api.post(action, text.encode("utf-8", "surrogatepass"))
            except Exception as error:  # noqa: BLE001 - that is what is looked for
                status, answer = 500, repr(error)[:300].encode()
        if status // 100 not in {2, 4} or SECRET.encode() in answer:
            wrong.setdefault(f"{action}: {status} {answer[:300]!r}", text[:300])
    api.close()
    assert not wrong


@pytest.mark.parametrize("depth", [98, 99, 100, 101, 500, *range(900, 1_100, 3)])
def test_json_of_any_depth_is_refused_by_an_error_of_ours(depth: int) -> None:
    """At one depth it can be read, and not be walked any more."""
    for text in ("[" * depth + "]" * depth, '{"digest":' * depth + "1" + "}" * depth):
        before = time.monotonic()
        with pytest.raises(OffsetkeeperError, match=r"plan\.json"):
            load_plan(text, "plan.json")
        assert time.monotonic() - before < LIMIT_S


def test_an_input_of_the_generator_is_the_same_in_each_run() -> None:
    taken = [list(Mutations(BODIES, seed=7).take(100)) for _ in range(2)]
    assert taken[0] == taken[1]
    assert len({*taken[0]}) > 90
    assert any(_is_json(text) for text in taken[0][7:])


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True
