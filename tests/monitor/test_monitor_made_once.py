"""An answer is made once of each view, by one thread for all who ask."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from starlette.responses import Response

from monitor.scene import LIMIT_S
from offsetkeeper.monitor.made_once import MadeOnce

VIEWS: list[Any] = [type("View", (), {"number": number})() for number in range(3)]


def test_an_answer_is_made_once_of_a_view_for_all_who_ask() -> None:
    made: list[tuple[int, str]] = []

    async def ask() -> list[bytes]:
        once = MadeOnce(lambda: newest[0], 100)

        def answer(key: str) -> Any:
            def make(view: Any) -> Response:
                made.append((view.number, key))
                return Response(f"{view.number}{key}")

            return once.of(key, make)

        found = await asyncio.gather(*(answer(key) for key in "aab" * 20))
        newest[0] = VIEWS[1]
        found += await asyncio.gather(*(answer(key) for key in "ab" * 20))
        return [bytes(each.body) for each in found]

    newest = VIEWS[:1]
    assert asyncio.run(ask()) == [b"0a", b"0a", b"0b"] * 20 + [b"1a", b"1b"] * 20
    assert sorted(made) == [(0, "a"), (0, "b"), (1, "a"), (1, "b")]


def test_while_too_many_wait_others_are_told_to_try_again() -> None:
    goes = threading.Event()

    async def ask() -> list[int]:
        once = MadeOnce(lambda: VIEWS[0], 2)
        asked = [asyncio.create_task(once.of(key, lambda _: Response(str(goes.wait(LIMIT_S))))) for key in range(5)]
        busy, _ = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED, timeout=LIMIT_S)
        assert {each.result().status_code for each in busy} == {503}
        goes.set()
        return [each.status_code for each in await asyncio.gather(*asked)]

    assert sorted(asyncio.run(ask())) == [200, 200, 200, 503, 503]


def test_answers_are_kept_up_to_a_limit_and_the_newest_always() -> None:
    """However large: whoever waits for it has no other made."""
    made: list[int] = []

    async def ask(*sizes: int) -> None:
        once = MadeOnce(lambda: VIEWS[0], 100)
        for size in sizes:
            await once.of(size, lambda _, size=size: made.append(size) or Response(bytes(size)))  # type: ignore[misc, func-returns-value]

    ten, large = 10_000_000, 40_000_000
    asyncio.run(ask(ten, ten + 1, ten, large, large, ten, large, large))
    assert made == [ten, ten + 1, large, ten, large]


def test_small_answers_are_kept_up_to_a_limit_too() -> None:
    """Each takes more than its body: its headers and its key."""
    made: list[int] = []

    async def ask(keys: range) -> None:
        for key in keys:
            await once.of(key, lambda _, key=key: made.append(key) or Response())  # type: ignore[misc, func-returns-value]

    once = MadeOnce(lambda: VIEWS[0], 100)
    asyncio.run(ask(range(100)))
    _, answers, size = once._kept
    assert len(answers) == 100
    assert size > 100 * 1000


def test_long_keys_count_too() -> None:
    """While the store is away, a stranger gets an answer for each name."""

    async def ask() -> None:
        for number in range(200):
            await once.of(("show", "\U0001f600" * 100_000, number), lambda _: Response())

    once = MadeOnce(lambda: VIEWS[0], 100)
    asyncio.run(ask())
    assert len(once._kept[1]) < 100
