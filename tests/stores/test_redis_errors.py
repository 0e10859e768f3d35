"""The store in Redis: what refuses it, that nothing is half written then, TLS, and that no password is shown."""

from __future__ import annotations

import secrets
import shutil
import subprocess
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from urllib.parse import quote

import pytest
import redis

from offsetkeeper.core import rules
from offsetkeeper.core.model import Change, Snapshot
from offsetkeeper.core.offsets import Position, TopicPartition
from offsetkeeper.errors import CorruptStore, Refused, SettingsError, StoreUnavailable
from offsetkeeper.stores.redis import RedisStore
from offsetkeeper.testing.proxy import TcpProxy
from offsetkeeper.testing.redis import RedisServer
from offsetkeeper.testing.server import free_port, wait_until
from stores.let_in_suite import Doors, LetInSuite, refusal

A, B = TopicPartition("a", 0), TopicPartition("b", 0)
SECRET = "s3cret/@:%"
Opener = Callable[[str], RedisStore]


def rewind(snapshot: Snapshot, offset: int) -> Change:
    positions = {A: Position(offset, "id"), B: Position(offset)}
    return rules.decide(snapshot, rules.Rewind(positions, force=True), rules.Author("me", "me", 0, "id"))


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    """A server of this file's own, which asks for a password."""
    with RedisServer(settings={"requirepass": SECRET}, fsync=False) as server:
        yield server


@pytest.fixture
def admin(server: RedisServer) -> Iterator[redis.Redis]:
    """A client beside the store's."""
    with redis.Redis(port=server.port, password=SECRET, decode_responses=True) as client:
        client.flushall()
        yield client


@pytest.fixture
def url(server: RedisServer, admin: redis.Redis) -> str:
    """URL with the password."""
    assert admin.dbsize() == 0
    return f"redis://:{quote(SECRET, safe='')}@127.0.0.1:{server.port}"


@pytest.fixture
def open_store(at_end: ExitStack) -> Opener:
    """Open stores that are closed at the end of the test."""
    return lambda url: at_end.enter_context(closing(RedisStore(url)))


@pytest.fixture
def store(open_store: Opener, url: str) -> RedisStore:
    """The store with all rights."""
    return open_store(url)


class TestLetIn(LetInSuite):
    """The default user, with a password."""

    said = Doors("password", "Authentication required", "DB index is out of range", "refused", "")

    @pytest.fixture
    def doors(self, url: str, server: RedisServer) -> Doors:
        """See `LetInSuite`."""
        return Doors(
            url.replace(quote(SECRET, safe=""), "wr0ng"),
            server.url(),
            f"{url}/99",
            url.replace(str(server.port), str(free_port())),
            url.replace("127.0.0.1", "nowhere.invalid"),
        )


def test_an_unknown_user_is_a_setting(url: str, caplog: pytest.LogCaptureFixture) -> None:
    assert "password" in refusal(url.replace("//:", "//nobody:"), Refused, caplog)


def test_no_password_where_none_is_known_before_a_change_is_a_setting_too(
    server: RedisServer, open_store: Opener
) -> None:
    with pytest.raises(Refused, match="Authentication required"):
        open_store(server.url()).apply(rewind(Snapshot("g"), 1))


def test_a_password_for_a_server_that_asks_for_none_is_never_shown(
    redis_server: RedisServer, url: str, server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    refusal(url.replace(str(server.port), str(redis_server.port)), Refused, caplog)


def test_a_server_that_does_not_know_the_command_for_passwords_shows_none(caplog: pytest.LogCaptureFixture) -> None:
    """Its message quotes what it did not understand."""
    with RedisServer(settings={"rename-command": 'AUTH ""'}, fsync=False) as server:
        refusal(f"redis://:{quote(SECRET, safe='')}@127.0.0.1:{server.port}", Refused, caplog)


@pytest.mark.parametrize(
    "url",
    [
        "redis://:s3cret@host/name",
        "redis://:s3cret@host/0/1",
        "redis://:s3cret@host:0/0",
        "redis://:s3cret@host#x",
        "redis://:s3cret@host?ttl=-1",
        "redis://:s3cret@host?ttl=soon",
        "redis://:s3cret@host?key=offset",
        "redis://:s3cret@host?table=x",
        "redis://:s3cret@host?retry_on_timeout=yes",
        "redis://:s3cret@host?ssl_ca_certs=/x",
        "redis://:s3cret@host?socket_connect_timeout=soon",
        "rediss://:s3cret@host?ssl_cert_reqs=perhaps",
    ],
)
def test_a_wrong_url_is_refused_and_shows_no_password_in_redis(url: str) -> None:
    with pytest.raises(SettingsError) as caught:
        RedisStore(url)
    assert "s3cret" not in "".join(traceback.format_exception(caught.value)).replace(url, "")


def content(admin: redis.Redis) -> dict[str, object]:
    """Return all that counts: the history may have an entry too many, which is not read."""
    return {key: admin.dump(key) for key in map(str, admin.scan_iter()) if "history" not in key}


def refused(store: RedisStore, admin: redis.Redis, kind: type[Exception], match: str) -> None:
    """Try a change and check that nothing of it is written."""
    before = content(admin)
    change = rewind(Snapshot("g", version=1, change_id="id", positions={A: Position(1, "id"), B: Position(1)}), 2)
    with pytest.raises(kind, match=match):
        store.apply(change)
    assert content(admin) == before


@pytest.mark.parametrize("ttl", [0, 1000])
@pytest.mark.parametrize(
    "right",
    [
        *("-evalsha", "-hget", "-lpush", "-ltrim", "-persist", "-expire", "-hset"),
        *("resetkeys ~offset:*", "resetkeys ~offsetkeeper:*", "resetkeys ~offset:a:* ~offsetkeeper:*"),
        *("resetkeys ~offset:* ~offsetkeeper:control:*", "resetkeys ~offset:* ~offsetkeeper:history:*"),
    ],
)
def test_a_user_without_a_right_is_told_and_nothing_is_half_written(
    store: RedisStore, open_store: Opener, admin: redis.Redis, url: str, right: str, ttl: int
) -> None:
    """Redis does not roll back a script that fails half-way."""
    store.apply(rewind(Snapshot("g"), 1))
    rights = ["reset", "on", ">s3cret", "~*", "+@all", *right.split()]
    admin.execute_command("ACL", "SETUSER", "limited", *rights)  # type: ignore[no-untyped-call]
    limited = open_store(url.replace(f":{quote(SECRET, safe='')}@", "limited:s3cret@") + f"?ttl={ttl}")
    if right == "-expire" and not ttl:
        limited.apply(rewind(store.load("g"), 2))
        return
    refused(limited, admin, Refused, "(?i)permission|can't run|access")
    assert store.load("g").version == 1
    assert [entry.version for entry in store.history("g")] == [1]
    store.apply(rewind(store.load("g"), 2))
    assert [entry.version for entry in store.history("g")] == [2, 1]


def test_a_full_memory_refuses_and_is_worth_another_try(store: RedisStore, admin: redis.Redis) -> None:
    store.apply(rewind(Snapshot("g"), 1))
    admin.config_set("maxmemory", 1)
    try:
        refused(store, admin, StoreUnavailable, "nothing was written.*command not allowed")
    finally:
        admin.config_set("maxmemory", 0)
    assert store.load("g").version == 1
    store.apply(rewind(store.load("g"), 2))


def test_too_few_replicas_refuse_and_are_worth_another_try(store: RedisStore, admin: redis.Redis) -> None:
    store.apply(rewind(Snapshot("g"), 1))
    admin.config_set("min-replicas-to-write", 1)
    try:
        refused(store, admin, StoreUnavailable, "nothing was written.*NOREPLICAS")
    finally:
        admin.config_set("min-replicas-to-write", 0)


def test_a_server_busy_with_a_script_refuses_and_is_worth_another_try(
    store: RedisStore, server: RedisServer, admin: redis.Redis
) -> None:
    store.apply(rewind(Snapshot("g"), 1))
    admin.config_set("lua-time-limit", 1)

    def loop() -> None:
        with redis.Redis(port=server.port, password=SECRET) as client, pytest.raises(redis.ResponseError):
            client.eval("while true do end", 0)

    def busy() -> bool:
        try:
            admin.ping()
        except redis.ResponseError:
            return True
        return False

    looping = threading.Thread(target=loop)
    looping.start()
    try:
        wait_until(busy, "the server is busy", 60)
        with pytest.raises(StoreUnavailable, match="BUSY"):
            store.apply(rewind(Snapshot("g", version=1, change_id="id", positions={A: Position(1), B: Position(1)}), 2))
        with pytest.raises(StoreUnavailable, match="BUSY"):
            store.load("g")
    finally:
        admin.script_kill()
        looping.join(60)
    assert store.load("g").version == 1


def test_a_server_that_still_loads_its_data_is_worth_another_try() -> None:
    settings = {"key-load-delay": "200"}  # microseconds for each key, at the start
    with RedisServer(settings=settings, fsync=False) as server, redis.Redis(port=server.port) as client:
        store = RedisStore(server.url())
        store.apply(rewind(Snapshot("g"), 1))
        with client.pipeline() as pipeline:
            for number in range(20_000):
                pipeline.set(f"other:{number}", "x")
            pipeline.execute()
        server.kill()
        starting = threading.Thread(target=server.restart)
        starting.start()
        try:
            wait_until(lambda: "loading" in failure(lambda: store.load("g")), "the server loads", 60)
            late = rewind(Snapshot("g", version=1, change_id="id", positions={A: Position(1), B: Position(1)}), 2)
            assert "loading" in failure(lambda: store.apply(late))
        finally:
            starting.join(100)
        assert store.load("g").version == 1
        store.close()


def failure(call: Callable[[], object]) -> str:
    """Return the message of the StoreUnavailable that the call raises; any other error passes."""
    try:
        call()
    except StoreUnavailable as error:
        return str(error)
    return ""


def test_a_replica_is_neither_read_nor_written(server: RedisServer, store: RedisStore) -> None:
    """It may be behind."""
    store.apply(rewind(Snapshot("g"), 1))
    settings = {"replicaof": f"127.0.0.1 {server.port}", "masterauth": SECRET, "appendonly": "no"}
    with RedisServer(settings=settings, fsync=False) as replica, redis.Redis(port=replica.port) as client:
        wait_until(lambda: client.hget("offset:a:g", "0") == b"1", "the replica has the offsets", 60)
        behind = RedisStore(replica.url())
        for attempt in (lambda: behind.load("g"), lambda: behind.history("g")):
            with pytest.raises(StoreUnavailable, match="is a replica"):
                attempt()
        with pytest.raises(StoreUnavailable, match=r"(?i)read.?only"):
            behind.apply(rewind(store.load("g"), 2))
        client.replicaof("NO", "ONE")
        assert behind.load("g") == store.load("g")
        behind.close()


@pytest.mark.parametrize("how", ["it is read", "it is written", "it has no replica left"])
def test_a_connection_to_a_master_that_was_replaced_is_not_kept(open_store: Opener, how: str) -> None:
    """The address leads to the new master by then. A run tried again on the old connection until it gave up."""
    with RedisServer(fsync=False) as old, RedisServer(fsync=False) as new, TcpProxy("127.0.0.1", old.port) as address:
        store = open_store(new.url(port=address.port))
        for each in (old, new):
            open_store(each.url()).apply(rewind(Snapshot("g"), 1))
        seen = store.load("g")
        address.lead_to("127.0.0.1", new.port)
        with redis.Redis(port=old.port) as client:
            if how == "it has no replica left":
                client.config_set("min-replicas-to-write", 1)
            else:
                client.replicaof("127.0.0.1", str(new.port))
        with pytest.raises(StoreUnavailable, match=r"is a replica|(?i:read.?only)|NOREPLICAS"):
            store.load("g") if how == "it is read" else store.apply(rewind(seen, 2))
        store.apply(change := rewind(store.load("g"), 3))
        assert open_store(new.url()).load("g") == change.after


def test_offsets_of_another_type_are_told_before_anything_is_written(store: RedisStore, admin: redis.Redis) -> None:
    admin.set("offset:b:g", "1")
    with pytest.raises(CorruptStore, match="another type"):
        store.load("g")
    before = content(admin)
    with pytest.raises(CorruptStore, match="another type"):
        store.apply(rewind(Snapshot("g"), 1))
    assert content(admin) == before
    admin.delete("offset:b:g")
    admin.set("offsetkeeper:history:offset:*:g", "1")
    before = content(admin)
    with pytest.raises(CorruptStore, match="another type"):
        store.apply(rewind(Snapshot("g"), 1))
    assert content(admin) == before


@contextmanager
def tls_server(folder: Path) -> Iterator[tuple[RedisServer, Path]]:
    """Start a server that speaks TLS on a second port; yield it and the certificate to trust."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("needs openssl to make a certificate")
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    options = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2", "-subj", "/CN=test"]
    subprocess.run(
        [
            openssl,
            "req",
            "-x509",
            *options,
            "-addext",
            "subjectAltName=IP:127.0.0.1",
            "-keyout",
            key,
            "-out",
            certificate,
        ],
        check=True,
        capture_output=True,
    )
    files = {"tls-cert-file": str(certificate), "tls-key-file": str(key), "tls-ca-cert-file": str(certificate)}
    settings = {"tls-port": str(free_port()), "tls-auth-clients": "no", **files}
    with RedisServer(settings=settings, fsync=False) as server:
        yield server, certificate


def test_tls_is_spoken_and_a_certificate_nobody_vouches_for_is_a_setting_in_redis(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with tls_server(tmp_path) as (server, certificate):
        url = f"rediss://127.0.0.1:{server._settings['tls-port']}"
        store = RedisStore(f"{url}?ssl_ca_certs={certificate}")
        store.apply(rewind(Snapshot("g"), 1))
        assert store.load("g").version == 1
        store.close()
        assert "signed by no CA that this machine knows" in refusal(url, Refused, caplog)


def test_stores_of_other_settings_do_not_share_connections(url: str, open_store: Opener) -> None:
    one, two = open_store(f"{url}/1"), open_store(f"{url}/2")
    group = secrets.token_hex(6)
    one.apply(rewind(Snapshot(group), 1))
    assert two.load(group) == Snapshot(group)
