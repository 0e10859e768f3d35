"""Replies of Redis that are well-formed and of another kind are errors of ours; after a script the outcome is unknown.

The server is a fake that answers by command, as no real server answers so.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator, Sequence

import pytest

from offsetkeeper.core.codec import dump_entry
from offsetkeeper.errors import CorruptStore, OffsetkeeperError, OutcomeUnknown, Refused, StoreUnavailable
from offsetkeeper.stores.redis import RedisStore, connections
from offsetkeeper.stores.redis import store as redis_store
from offsetkeeper.stores.redis.connections import texts
from stores.test_foreign_answers import CHANGE, ENDLESS, Listener, little

OK, NULL, NONE = b"+OK\r\n", b"$-1\r\n", b"*0\r\n"
ODD = {
    "a number": b":1\r\n",
    "no list": b"*-1\r\n",
    "no text": NULL,
    "a status": OK,
    "a list of a number": b"*1\r\n:1\r\n",
    "a list of nothing": b"*1\r\n$-1\r\n",
    "a list of lists": b"*2\r\n*1\r\n:1\r\n*1\r\n+x\r\n",
    "three texts": b"*3\r\n+x\r\n+y\r\n+z\r\n",
    "a list with an error": b"*1\r\n-ERR x\r\n",
    "no UTF-8": b"$1\r\n\xff\r\n",
    "a length that is none": b"$x\r\n",
    "another protocol": b"~hunter2\r\n",
    "a redirect to nowhere": b"-MOVED 1\r\n",
}
Said = Callable[[Sequence[bytes]], bytes]


def reply(*items: bytes) -> bytes:
    """Return a list of replies."""
    return b"*%d\r\n" % len(items) + b"".join(items)


def text(data: bytes) -> bytes:
    """Return a text as a reply."""
    return b"$%d\r\n%b\r\n" % (len(data), data)


MASTER = reply(text(b"master"), b":0\r\n", NONE)
PAST = reply(text(b"0"), NONE)
NUMBER = reply(b":1\r\n")


class Speaker(Listener):
    """A server of Redis with nothing in it, except for some commands.

    Args:
        said: what it answers to a command; an empty answer is the usual one.
        more: what follows for ever on an answer of `said`.

    Attributes:
        heard: the commands of all connections.
        accepted: number of connections.
    """

    def __init__(self, said: Said, more: bytes = b"") -> None:
        super().__init__(b"", more=False)
        self._said, self._follows = said, more
        self.heard: list[bytes] = []
        self.accepted = 0

    def _serve(self, client: socket.socket) -> None:
        self.accepted += 1
        queued: list[bytes] = []
        with client, contextlib.suppress(OSError, ValueError):
            client.settimeout(20)
            file = client.makefile("rb")
            while line := file.readline():
                command = [file.read(int(file.readline()[1:]) + 2)[:-2] for _ in range(int(line[1:]))]
                self.heard.append(command[0])
                answer = self._said(command)
                client.sendall(answer or self._usual(command[0], queued))
                while answer and self._follows:
                    client.sendall(self._follows)

    def _usual(self, name: bytes, queued: list[bytes]) -> bytes:
        stored = {b"ROLE": MASTER, b"HGETALL": NONE, b"HGET": NULL, b"LRANGE": NONE}
        if name == b"EXEC":
            done = reply(*queued[1:])
            queued.clear()
            return done
        if name == b"MULTI" or queued:
            queued.append(stored.get(name, OK))
            return OK
        if name in stored:
            return stored[name]
        time = reply(text(b"1"), text(b"2"))
        return {b"SCAN": PAST, b"EVALSHA": text(b"done"), b"TIME": time, b"CONFIG": NONE}.get(name, OK)


def load(store: RedisStore) -> object:
    return store.load("g")


def history(store: RedisStore) -> object:
    return store.history("g")


def groups(store: RedisStore) -> object:
    return store.groups()


def settings(store: RedisStore) -> object:
    return store.server_settings()


def clock(store: RedisStore) -> object:
    return store.clock_ms()


def change(store: RedisStore) -> None:
    store.apply(CHANGE)


@contextlib.contextmanager
def speaking(said: Said, more: bytes = b"") -> Iterator[tuple[RedisStore, Speaker]]:
    """Yield a store, and the server."""
    with Speaker(said, more) as server:
        store = RedisStore(f"redis://127.0.0.1:{server.port}/0?timeout=5")
        try:
            yield store, server
        finally:
            store.close()


def to(name: bytes, answer: bytes) -> Said:
    """Return what gives one command this answer, and others the usual one."""
    return lambda command: answer if command[0] == name else b""


def failure(said: Said, ask: Callable[[RedisStore], object], more: bytes = b"") -> OffsetkeeperError:
    """Return the error of ours, which shows nothing of the answer."""
    with speaking(said, more) as (store, server), pytest.raises(OffsetkeeperError) as told:
        ask(store)
    assert f"127.0.0.1:{server.port}" in str(told.value)
    assert "hunter2" not in str(told.value)
    return told.value


def test_the_fake_is_a_redis_to_the_store() -> None:
    with speaking(to(b"CLUSTER", b"-ERR This instance has cluster support disabled\r\n")) as (store, _):
        assert store.load("g").version == 0
        assert (list(store.history("g")), list(store.groups()), store.clock_ms()) == ([], [], 1000)
        store.apply(CHANGE)
        assert store.load("g").positions == {}


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize(
    ("ask", "name"),
    [
        (load, b"EXEC"),
        (load, b"SCAN"),
        (history, b"EXEC"),
        (groups, b"SCAN"),
        (groups, b"CLUSTER"),
        (settings, b"ROLE"),
        (settings, b"CONFIG"),
        (clock, b"TIME"),
    ],
)
def test_an_odd_reply_to_a_question_is_no_answer(odd: str, ask: Callable[[RedisStore], object], name: bytes) -> None:
    refused = odd == "a list with an error" and name == b"EXEC"
    assert isinstance(failure(to(name, ODD[odd]), ask), Refused if refused else StoreUnavailable)


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("ask", [load, history])
def test_an_odd_reply_within_a_right_one_is_no_answer(odd: str, ask: Callable[[RedisStore], object]) -> None:
    kinds = (StoreUnavailable, CorruptStore if odd == "three texts" else Refused)
    right = [MASTER] if ask is load else [MASTER, text(b"1")]
    for each in [(*right, ODD[odd]), (*right, ODD[odd], NONE), (*right[:-1], ODD[odd]), (ODD[odd],)]:
        assert isinstance(failure(to(b"EXEC", reply(*each)), ask), kinds)


@pytest.mark.parametrize("odd", ODD)
def test_after_an_odd_reply_to_a_script_it_may_have_run(odd: str) -> None:
    assert isinstance(failure(to(b"EVALSHA", ODD[odd]), change), OutcomeUnknown)


@pytest.mark.parametrize(
    "found",
    [
        (b"done",),
        (b"version",),
        (b"hunter2", b"offset:a:g", b"0"),
        (b"position", b"hunter2", b"0"),
        (b"position", b"offset:a:g", b"hunter2"),
        (b"position", b"offset:a:g"),
    ],
)
def test_what_the_script_cannot_have_found_is_no_other_writer(found: tuple[bytes, ...]) -> None:
    assert isinstance(failure(to(b"EVALSHA", reply(*map(text, found))), change), OutcomeUnknown)


def test_a_version_that_is_no_number_is_a_damaged_record() -> None:
    found = reply(text(b"version"), text(b"hunter2"))
    assert isinstance(failure(to(b"EVALSHA", found), change), CorruptStore)
    assert isinstance(failure(to(b"EXEC", reply(MASTER, text(b"hunter2"), NONE)), history), CorruptStore)
    entry = reply(text(b"1 hunter2"))
    assert isinstance(failure(to(b"EXEC", reply(MASTER, text(b"1"), entry)), history), CorruptStore)


@pytest.mark.parametrize(
    "error",
    [
        b"-upstream failure\r\n",
        b"-no upstream host\r\n",
        b"-ERR Connection timed out\r\n",
        b"-ERR Connection reset by peer\r\n",
    ],
)
def test_a_proxy_that_lost_the_server_may_have_sent_the_script(error: bytes) -> None:
    """Envoy and twemproxy say so."""
    assert isinstance(failure(to(b"EVALSHA", error), change), OutcomeUnknown)
    assert isinstance(failure(to(b"EXEC", error), load), StoreUnavailable)


def test_what_an_error_quotes_of_the_script_is_not_shown_or_judged() -> None:
    error = b"-ERR unknown command 'EVALSHA', with args beginning with: 'upstream ' 'hunter2'\r\n"
    assert isinstance(failure(to(b"EVALSHA", error), change), Refused)


def test_no_connection_is_kept_after_an_odd_reply() -> None:
    """The next reply on it may be of an earlier request, of another group even."""
    odd = [b":1\r\n"]
    with speaking(lambda command: odd.pop() if odd and command[0] == b"TIME" else b"") as (store, server):
        with pytest.raises(StoreUnavailable, match="makes no sense"):
            store.clock_ms()
        assert (store.clock_ms(), server.accepted) == (1000, 2)


@pytest.mark.parametrize(
    ("ask", "name", "answer"),
    [
        (clock, b"TIME", NUMBER),
        (history, b"EXEC", reply(MASTER, text(b"1"), NUMBER)),
        (change, b"EVALSHA", NUMBER),
        (load, b"SCAN", reply(text(b"0"), NUMBER)),
    ],
)
def test_no_other_caller_gets_the_connection_of_an_odd_reply(
    ask: Callable[[RedisStore], object], name: bytes, answer: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread could borrow it before the reply was looked at, and take for its own the next one."""
    odd, others = [answer], list[object]()

    def looked_at(found: object) -> list[bytes]:
        if not others:
            others.append(None)
            others.append(RedisStore.clock_ms(store))
        return texts(found)

    for module in (connections, redis_store):
        monkeypatch.setattr(module, "texts", looked_at)
    with speaking(lambda command: odd.pop() if odd and command[0] == name else b"") as (store, server):
        with pytest.raises(OffsetkeeperError, match="makes no sense"):
            ask(store)
        assert (others, server.accepted) == ([None, 1000], 2)


def test_a_scan_that_does_not_move_ends() -> None:
    assert "makes no sense" in str(failure(to(b"SCAN", reply(text(b"7"), NONE)), load))


def test_a_page_of_a_history_that_comes_again_is_its_end() -> None:
    entry = dump_entry(CHANGE.entry).encode()
    lines = reply(*(text(b"%d %b" % (version, entry)) for version in range(90, 40, -1)))
    with speaking(to(b"EXEC", reply(MASTER, text(b"90"), lines))) as (store, server):
        assert [each.version for each in store.history("g", 1000)] == [*range(90, 40, -1)]
        assert server.heard.count(b"EXEC") == 2


def test_topics_that_never_end_are_an_error_of_ours() -> None:
    count = iter(range(10**6))

    def more(command: Sequence[bytes]) -> bytes:
        if command[0] != b"EXEC":
            return b""
        number = next(count)
        topics = b" ".join(b"t%d" % each for each in range(number + 1))
        return reply(MASTER, reply(text(b"topics"), text(topics)), *[NONE] * number)

    assert "faster" in str(failure(more, load))


@pytest.mark.parametrize("topics", [b"a hunter2/x", b"\xff"])
def test_a_topic_that_can_be_none_is_not_shown(topics: bytes) -> None:
    record = reply(text(b"topics"), text(topics))
    assert isinstance(failure(to(b"EXEC", reply(MASTER, record)), load), CorruptStore)


def test_a_node_without_a_name_is_the_one_that_was_asked() -> None:
    """So it answers where it does not know how it is reached."""
    for host in (NULL, text(b"")):
        port: list[bytes] = []

        def said(command: Sequence[bytes], host: bytes = host, port: list[bytes] = port) -> bytes:
            return reply(reply(b":0\r\n", b":16383\r\n", reply(host, port[0]))) if command[0] == b"CLUSTER" else b""

        with speaking(said) as (store, server):
            port.append(b":%d\r\n" % server.port)
            assert store.groups() == []
            assert server.heard.count(b"SCAN") == 2


@pytest.mark.parametrize("refusal", [b"-NOAUTH Authentication required.\r\n", b"-NOPERM no permissions\r\n"])
def test_a_node_that_refuses_is_not_asked_for_ever(refusal: bytes) -> None:
    """A group has moved on meanwhile, or an address has got to another server."""
    with Speaker(to(b"TIME", refusal)) as elsewhere:
        moved = [b"-MOVED 7 127.0.0.1:%d\r\n" % elsewhere.port]
        with speaking(lambda command: moved.pop() if moved and command[0] == b"TIME" else b"") as (store, server):
            with pytest.raises(Refused):
                store.clock_ms()
            heard = len(elsewhere.heard)
            assert store.clock_ms() == 1000
            assert len(elsewhere.heard) == heard
            assert server.heard


def test_a_mistake_of_our_own_is_not_taken_for_an_odd_reply(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(*_: object) -> None:
        raise LookupError("ours")

    monkeypatch.setattr(RedisStore, "_conflict", wrong)
    with speaking(lambda _: b"") as (store, _):
        keys, _ = store._arguments(CHANGE)
    found = reply(text(b"position"), text(keys[0].encode()), text(b"0"))
    with speaking(to(b"EVALSHA", found)) as (store, _), pytest.raises(LookupError, match="ours"):
        store.apply(CHANGE)


@pytest.mark.parametrize(
    "ranges", [[], [(0, 5460)], [(1, 16383)], [(0, 16382)], [(0, 99), (101, 16383)], [(0, 100), (100, 16383)]]
)
def test_a_cluster_that_does_not_serve_each_slot_is_no_empty_store(ranges: list[tuple[int, int]]) -> None:
    """Nor one of which two nodes say that they have the same: so it is after a node was reset, or lost."""
    node = reply(text(b"127.0.0.1"), b":1\r\n")
    slots = reply(*(reply(b":%d\r\n" % first, b":%d\r\n" % last, node) for first, last in ranges))
    told = failure(to(b"CLUSTER", slots), groups)
    assert isinstance(told, StoreUnavailable)
    assert "slots have no node, or several" in str(told)


@pytest.mark.parametrize("port", [text(b"hunter2"), NULL, NONE])
def test_a_node_without_a_port_is_no_answer(port: bytes) -> None:
    slots = reply(reply(b":0\r\n", b":16383\r\n", reply(text(b"h"), port)))
    assert "makes no sense" in str(failure(to(b"CLUSTER", slots), groups))


@pytest.mark.parametrize("began", [b"+", b"$99999999999\r\n", b"*999999999\r\n:1\r\n"])
@pytest.mark.parametrize(("ask", "name"), [(load, b"EXEC"), (change, b"EVALSHA"), (load, b"CLIENT")])
def test_an_answer_without_an_end_is_given_up(
    monkeypatch: pytest.MonkeyPatch, ask: Callable[[RedisStore], object], name: bytes, began: bytes
) -> None:
    monkeypatch.setattr(connections, "_MOST", 1 << 20)
    more = b":1\r\n" * (1 << 14) if began.startswith(b"*") else ENDLESS
    with little():
        told = failure(to(name, began), ask, more)
    assert isinstance(told, OutcomeUnknown if ask is change else StoreUnavailable)


def test_an_answer_that_trickles_takes_no_longer_than_the_timeout() -> None:
    over = threading.Event()

    class Trickling(Speaker):
        def _usual(self, name: bytes, queued: list[bytes]) -> bytes:
            return b"" if name == b"TIME" else super()._usual(name, queued)

        def _serve(self, client: socket.socket) -> None:
            threading.Thread(target=self._drip, args=(client.dup(),), daemon=True).start()
            super()._serve(client)

        def _drip(self, client: socket.socket) -> None:
            with client, contextlib.suppress(OSError):
                while not over.wait(0.05):
                    client.sendall(b"+" if b"TIME" in self.heard else b"")

    with Trickling(lambda _: b"") as server, little():
        store = RedisStore(f"redis://127.0.0.1:{server.port}/0?timeout=0.5")
        with pytest.raises(StoreUnavailable, match="no answer came"):
            store.clock_ms()
        store.close()
        over.set()
