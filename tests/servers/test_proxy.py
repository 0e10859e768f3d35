"""Each fault of the proxy, seen from both ends."""

import select
import socket
import socketserver
import struct
import threading
from collections.abc import Iterator

import pytest

from offsetkeeper.testing.errors import ServerError
from offsetkeeper.testing.proxy import Cut, TcpProxy
from offsetkeeper.testing.server import free_port


class Echo(socketserver.ThreadingTCPServer):
    """Answers each line with itself.

    Attributes:
        lines: what it has got, before it answered.
    """

    allow_reuse_address = True

    def __init__(self) -> None:
        self.lines: list[bytes] = []
        super().__init__(("127.0.0.1", 0), EchoHandler)


class EchoHandler(socketserver.StreamRequestHandler):
    """Serves one connection."""

    def handle(self) -> None:
        """Answer until the client ends, or is cut off."""
        assert isinstance(self.server, Echo)
        try:
            while line := self.rfile.readline():
                self.server.lines.append(line)
                self.wfile.write(line)
        except ConnectionError:
            return


@pytest.fixture
def echo() -> Iterator[Echo]:
    """The server behind the proxy."""
    with Echo() as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture
def proxy(echo: Echo) -> Iterator[TcpProxy]:
    """A proxy in front of the echo server."""
    with TcpProxy("127.0.0.1", echo.server_address[1]) as proxy:
        yield proxy


@pytest.fixture
def client(proxy: TcpProxy) -> Iterator[socket.socket]:
    """A connection through the proxy."""
    with connect(proxy) as found:
        yield found


def connect(proxy: TcpProxy) -> socket.socket:
    """Open a connection through the proxy."""
    return socket.create_connection(("127.0.0.1", proxy.port), timeout=10)


def ask(client: socket.socket, line: bytes) -> bytes:
    """Send a line and read as many bytes back."""
    client.sendall(line)
    answer = b""
    while len(answer) < len(line) and (some := client.recv(1 << 16)):
        answer += some
    return answer


def test_bytes_pass_both_ways_however_many(client: socket.socket, echo: Echo) -> None:
    line = b"x" * (1 << 22) + b"\n"
    sender = threading.Thread(target=client.sendall, args=(line,))
    sender.start()
    got = 0
    while got < len(line):
        got += len(client.recv(1 << 16))
    sender.join(10)
    assert echo.lines == [line]


def test_the_end_of_one_direction_leaves_the_other_open(client: socket.socket) -> None:
    client.sendall(b"last\n")
    client.shutdown(socket.SHUT_WR)
    assert client.recv(100) == b"last\n"
    assert client.recv(100) == b""


def test_a_cut_request_never_reaches_the_server(proxy: TcpProxy, client: socket.socket, echo: Echo) -> None:
    assert ask(client, b"one\n") == b"one\n"
    with proxy.cut(Cut.REQUEST):
        assert proxy.armed == 1
        with pytest.raises(ConnectionResetError):
            ask(client, b"two\n")
    assert proxy.armed == 0
    with connect(proxy) as again:
        assert ask(again, b"three\n") == b"three\n"
    assert echo.lines == [b"one\n", b"three\n"]


def test_a_cut_reply_is_lost_after_the_server_did_its_work(proxy: TcpProxy, client: socket.socket, echo: Echo) -> None:
    fault = proxy.cut(Cut.REPLY)
    with pytest.raises(ConnectionResetError):
        ask(client, b"one\n")
    fault.wait()
    assert echo.lines == [b"one\n"]
    with connect(proxy) as again:
        assert ask(again, b"two\n") == b"two\n"


@pytest.mark.parametrize("cut", [Cut.REPLY, Cut.MID_REPLY])
def test_a_server_that_answers_in_parts_does_all_of_its_work_before_a_cut(cut: Cut) -> None:
    """MySQL answers each statement of a request by itself, and does not do the next one for a client that is gone."""
    with socket.create_server(("127.0.0.1", 0)) as listener, TcpProxy(*listener.getsockname()) as proxy:
        fault = proxy.cut(cut)
        with connect(proxy) as client, listener.accept()[0] as server:
            server.settimeout(10)
            client.sendall(b"one; two")
            assert server.recv(100) == b"one; two"
            server.sendall(b"did one")
            assert server.recv(100) == b""  # the end, and not a reset
            assert not fault.fired.is_set()
            server.sendall(b"did two")
            server.close()
            fault.wait()
            got = client.recv(100) if cut is Cut.MID_REPLY else b"did"
            assert got == b"did"
            with pytest.raises(ConnectionResetError):
                client.recv(100)


def test_half_of_a_reply_arrives_before_a_cut_in_its_middle(proxy: TcpProxy, client: socket.socket, echo: Echo) -> None:
    proxy.cut(Cut.MID_REPLY)
    client.sendall(b"1234567\n")
    assert client.recv(100) == b"1234"
    with pytest.raises(ConnectionResetError):
        client.recv(100)
    assert echo.lines == [b"1234567\n"]


def test_a_fault_waits_for_the_request_it_is_meant_for(proxy: TcpProxy, client: socket.socket, echo: Echo) -> None:
    fault = proxy.cut(Cut.REQUEST, containing=b"COMMIT")
    assert ask(client, b"INSERT\n") == b"INSERT\n"
    assert not fault.fired.is_set()
    with pytest.raises(ConnectionResetError):
        ask(client, b"COMMIT\n")
    assert echo.lines == [b"INSERT\n"]


def test_two_faults_fire_one_after_the_other(proxy: TcpProxy, echo: Echo) -> None:
    proxy.cut(Cut.REPLY)
    proxy.cut(Cut.REQUEST)
    for _ in range(2):
        with connect(proxy) as client, pytest.raises(ConnectionResetError):
            ask(client, b"x\n")
    assert proxy.armed == 0
    assert echo.lines == [b"x\n"]


def test_a_fault_cuts_only_the_connection_it_meets(proxy: TcpProxy, client: socket.socket) -> None:
    assert ask(client, b"one\n") == b"one\n"
    with proxy.cut(Cut.REQUEST), connect(proxy) as other, pytest.raises(ConnectionResetError):
        ask(other, b"two\n")
    assert ask(client, b"three\n") == b"three\n"


def test_a_refusing_proxy_drops_old_connections_and_takes_new_ones_once_healed(
    proxy: TcpProxy, client: socket.socket
) -> None:
    assert ask(client, b"one\n") == b"one\n"
    port = proxy.port
    proxy.refuse()
    with pytest.raises(ConnectionResetError):
        client.recv(100)
    with pytest.raises(ConnectionRefusedError):
        connect(proxy)
    proxy.heal()
    assert proxy.port == port
    with connect(proxy) as again:
        assert ask(again, b"two\n") == b"two\n"


@pytest.mark.parametrize("cut", [Cut.REQUEST, Cut.REPLY])
def test_a_cut_that_refuses_lets_nobody_ask_what_happened(proxy: TcpProxy, client: socket.socket, cut: Cut) -> None:
    """Whoever sees its connection reset finds the proxy closed already."""
    with connect(proxy) as other:
        assert ask(other, b"one\n") == b"one\n"
        with proxy.cut(cut, refuse=True), pytest.raises(ConnectionResetError):
            ask(client, b"two\n")
        with pytest.raises(ConnectionRefusedError):
            connect(proxy)
        with pytest.raises(ConnectionResetError):
            other.recv(100)
    proxy.heal()
    with connect(proxy) as again:
        assert ask(again, b"three\n") == b"three\n"


def test_healing_disarms_what_has_not_fired(proxy: TcpProxy, client: socket.socket) -> None:
    fault = proxy.cut(Cut.REQUEST)
    proxy.heal()
    assert proxy.armed == 0
    assert ask(client, b"one\n") == b"one\n"
    with pytest.raises(
        ServerError, match=r"no request met the cut before the request reached the server within 0\.1 s"
    ):
        fault.wait(0.1)


def test_a_connection_is_reset_while_no_server_listens(proxy: TcpProxy, echo: Echo) -> None:
    echo.server_close()
    with connect(proxy) as client, pytest.raises(ConnectionResetError):
        client.recv(100)


@pytest.fixture
def ends(proxy: TcpProxy, echo: Echo) -> Iterator[tuple[socket.socket, socket.socket]]:
    """Both ends of a connection through the proxy, the client's and the server's."""
    echo.shutdown()
    with connect(proxy) as client, echo.get_request()[0] as server:
        server.settimeout(10)
        yield client, server


def silent(end: socket.socket) -> bool:
    """Whether nothing arrives for a while, no end and no reset either."""
    readable, _, _ = select.select([end], [], [], 0.2)
    return not readable


def test_what_is_held_arrives_once_released(proxy: TcpProxy, ends: tuple[socket.socket, socket.socket]) -> None:
    client, server = ends
    proxy.hold()
    client.sendall(b"request")
    server.sendall(b"reply")
    assert silent(client)
    assert silent(server)
    proxy.release()
    assert (client.recv(100), server.recv(100)) == (b"reply", b"request")


@pytest.mark.parametrize("number", [0, 1], ids=["client", "server"])
def test_the_end_of_a_held_connection_is_held_too(
    proxy: TcpProxy, ends: tuple[socket.socket, socket.socket], number: int
) -> None:
    dying, other = ends[number], ends[1 - number]
    proxy.hold()
    dying.close()
    assert silent(other)
    proxy.release()
    assert other.recv(100) == b""


@pytest.mark.parametrize("number", [0, 1], ids=["client", "server"])
def test_the_reset_of_a_held_connection_is_held_too(
    proxy: TcpProxy, ends: tuple[socket.socket, socket.socket], number: int
) -> None:
    dying, other = ends[number], ends[1 - number]
    proxy.hold()
    dying.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    dying.close()
    assert silent(other)
    proxy.release()
    with pytest.raises(ConnectionResetError):
        other.recv(100)


def test_a_new_connection_is_held_too(proxy: TcpProxy, echo: Echo) -> None:
    proxy.hold()
    with connect(proxy) as client:
        client.sendall(b"one\n")
        assert silent(client)
        assert echo.lines == []
        proxy.release()
        assert client.recv(100) == b"one\n"


def test_a_held_connection_can_be_cut(proxy: TcpProxy, client: socket.socket, echo: Echo) -> None:
    proxy.hold()
    client.sendall(b"one\n")
    proxy.refuse()
    with pytest.raises(ConnectionResetError):
        client.recv(100)
    assert echo.lines == []


def test_a_connection_can_wait_for_the_server_to_listen() -> None:
    port = free_port()
    with TcpProxy("127.0.0.1", port, patience=30) as proxy, connect(proxy) as client:
        client.sendall(b"one\n")
        assert silent(client)
        with socket.create_server(("127.0.0.1", port)) as listener:
            listener.settimeout(10)
            server, _ = listener.accept()
            with server:
                assert server.recv(100) == b"one\n"


def test_a_request_that_is_kept_back_lands_after_others(proxy: TcpProxy, client: socket.socket, echo: Echo) -> None:
    """Its client waits, and then has its answer; what others send passes."""
    held = proxy.keep_back(b"late")
    client.sendall(b"late\n")
    held.wait()
    with socket.create_connection(("127.0.0.1", proxy.port), 20) as other:
        other.sendall(b"early\n")
        assert other.recv(100) == b"early\n"
    assert echo.lines == [b"early\n"]
    held.land()
    assert client.recv(100) == b"late\n"
    client.sendall(b"late\n")
    assert client.recv(100) == b"late\n"
    proxy.refuse()
    with pytest.raises(ConnectionResetError):
        client.recv(100)


def test_a_request_lands_when_its_client_is_gone(proxy: TcpProxy, client: socket.socket, echo: Echo) -> None:
    """Also where the proxy refuses all others."""
    held = proxy.keep_back(b"late")
    client.sendall(b"late\n")
    held.wait()
    proxy.refuse()
    held.abandon()
    with pytest.raises(ConnectionResetError):
        client.recv(100)
    assert echo.lines == []
    held.land()
    assert echo.lines == [b"late\n"]


def test_a_request_that_never_lands_is_told(proxy: TcpProxy, client: socket.socket) -> None:
    held = proxy.keep_back(b"late")
    with pytest.raises(ServerError, match="no request with b'late' came"):
        held.wait(0.05)
    client.sendall(b"la\n")
    assert client.recv(100) == b"la\n"
