"""What holds for every store while several clients ask it at once: each group is one register with compare-and-set."""
# ruff: noqa: S101 - asserting is what a suite does

from __future__ import annotations

import json
import os
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, nullcontext
from typing import Any, ClassVar

import pytest

from offsetkeeper.core.environment import wait
from offsetkeeper.core.store import Store
from offsetkeeper.testing.concurrent import Plan, counted, disturbing, run_clients, violations
from offsetkeeper.testing.conformance.histories import HistoryConformance
from offsetkeeper.testing.conformance.medium import Medium, with_setting
from offsetkeeper.testing.conformance.served import ServedMedium
from offsetkeeper.testing.proxy import Cut, TcpProxy
from offsetkeeper.testing.server import Server

WANTED = "OFFSETKEEPER_HISTORIES"
"""Environment variable: how many histories without faults are tried for each store, see `make histories`."""
WANTED_DISTURBED = "OFFSETKEEPER_DISTURBED"
"""The same for histories with faults."""
_ARMED_S, _STALLED_S, _AWAY_S = 1.0, 0.7, 0.1
_EVERY_THIRD = 3  # group is read as other programs do: some stores are asked for all groups each time
_AT_ONCE = 100  # histories of clients that are started together
_ENTRIES = 20  # kept of each group, so that old ones are deleted in long histories


class Register(Medium):
    """How the histories of a store are made and checked.

    Attributes:
        processes: in how many processes the clients are.
        calm_s: the most seconds between two faults: longer where a call is slow, or no client gets anything done.
    """

    processes: ClassVar[int] = 2
    calm_s: ClassVar[float] = 0.05

    def part(self, url: str, number: int) -> str:
        """Return the URL for the next hundred histories, where many groups in one place make a store slow."""
        del number
        return url

    def hold_against_a_register(
        self, url: str, histories: int, acts: Sequence[Callable[[], object]], read: str = ""
    ) -> None:
        """Check so many histories, and print one line of JSON.

        Args:
            url: of the clients.
            histories: how many.
            acts: what is done meanwhile.
            read: the URL by which the groups are read at the end.
        """
        own = "history=" + str(_ENTRIES) if isinstance(self, HistoryConformance) else ""
        seed, began, answers, done = secrets.token_hex(4), time.monotonic(), Counter[str](), Counter[str]()
        for number in range(0, histories, _AT_ONCE):
            plan = Plan(f"{seed}-{number}", min(_AT_ONCE, histories - number), self.processes)
            asked, looked = (
                self.part(with_setting(each, own) if own else each, number // _AT_ONCE) for each in (url, read or url)
            )
            with disturbing(acts, plan.seed, self.calm_s) if acts else nullcontext(Counter[str]()) as disturbed:
                found = run_clients(self.opener(), asked, plan)
            with closing(self.opener()(looked)) as store:
                wrong = list(violations(store, plan, found))
                wrong += [] if acts else self._unpublished(store, plan, url)
            assert not wrong, "\n".join(wrong[:3])
            answers, done = answers + counted(found), done + disturbed
        figures: dict[str, Any] = {"test": type(self).__name__, "histories": histories, "faults": dict(done)}
        print(json.dumps({**figures, "answers": dict(answers), "seconds": round(time.monotonic() - began)}))  # noqa: T201 - for `make histories`
        assert answers["done"] > (0 if acts else histories)

    def _unpublished(self, store: Store, plan: Plan, url: str) -> Iterator[str]:
        """Yield where other programs see other offsets than the ledger has, though all is at rest; of some groups."""
        for group in {plan.group(number) for number in range(0, plan.histories, _EVERY_THIRD)}:
            ledger = {tp: at.offset for tp, at in store.load(group).positions.items()}
            seen = self.read_positions(url, group)
            if bool(seen) != bool(ledger) or seen.items() - ledger.items():
                yield f"other programs see {seen} of {group}, and the ledger has {ledger}"


class ConcurrentConformance(Register):
    """For every store that can be written and fences.

    Attributes:
        histories: how many are tried, unless the environment says it; fewer where a call is slow.
    """

    histories: ClassVar[int] = 10

    def test_concurrent_clients_are_answered_as_by_one_register(self, url: str) -> None:
        """See `concurrent`: threads and processes, stale changes, and some that are sent again."""
        self.hold_against_a_register(url, int(os.environ.get(WANTED, self.histories)), [])


class DisturbedConformance(ServedMedium, Register):
    """For stores on a server.

    Attributes:
        disturbed: how many histories are tried with faults, unless the environment says it.
    """

    disturbed: ClassVar[int] = 3

    # Python leaves the socket of a connection that is reset before its TLS begins to the garbage collector.
    @pytest.mark.filterwarnings("ignore:unclosed <ssl.SSLSocket:ResourceWarning")
    def test_concurrent_clients_are_answered_as_by_one_register_while_connections_break(
        self, server: Server, proxy: TcpProxy, url: str
    ) -> None:
        """Calls are cut, held and refused, and the server is frozen; where many histories are wanted, it is killed."""
        asked = self.through(url, server, proxy)
        asked = asked if "timeout=" in asked else with_setting(asked, self.hurried)
        wanted = WANTED_DISTURBED in os.environ
        acts = [*disturbances(server, proxy), *(self.killings(server) if wanted else ())]
        self.hold_against_a_register(asked, int(os.environ.get(WANTED_DISTURBED, self.disturbed)), acts, url)

    def killings(self, server: Server) -> Sequence[Callable[[], object]]:
        """Return what kills the server and starts it again."""

        def kill() -> None:
            self.outages[0](server)

        return [kill]


def disturbances(server: Server, proxy: TcpProxy) -> Sequence[Callable[[], object]]:
    """Return what breaks connections or stalls them; all is well again when it returns."""

    def cut(where: Cut) -> None:
        if not proxy.cut(where).fired.wait(_ARMED_S):
            proxy.heal()

    def before_the_request() -> None:
        cut(Cut.REQUEST)

    def before_the_reply() -> None:
        cut(Cut.REPLY)

    def in_the_reply() -> None:
        cut(Cut.MID_REPLY)

    def held() -> None:
        proxy.hold()
        wait(_STALLED_S)
        proxy.release()

    def refused() -> None:
        proxy.refuse()
        wait(_AWAY_S)
        proxy.heal()

    def frozen() -> None:
        server.pause()
        wait(_STALLED_S)
        server.resume()

    often = [before_the_request, before_the_reply, in_the_reply]
    return [*often * 3, held, refused, frozen]
