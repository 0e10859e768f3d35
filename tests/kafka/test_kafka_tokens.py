"""A provider of tokens is named by texts; what is wrong with it is told at once, and without any secret."""

from __future__ import annotations

import logging
import time
from concurrent.futures import Future
from typing import Any

import pytest

from fixtures.guarded import BEARER
from offsetkeeper.errors import NotAuthorized, SettingsError, SinkError, StoreUnavailable, TokenUnavailable
from offsetkeeper.kafka import KafkaCluster
from offsetkeeper.kafka.clients import Admin, library, redact
from offsetkeeper.kafka.own_settings import worker_modules
from offsetkeeper.kafka.tokens import TokenProvider
from offsetkeeper.kafka.transactions import Slot
from offsetkeeper.sinks import Topic
from offsetkeeper.stores import open_store
from offsetkeeper.testing.server import wait_until

HERE = __name__
SECRET = "correct-horse-battery"
answer: Any = None
asked: list[dict[str, str]] = []


def given(settings: dict[str, str]) -> Any:
    """Return what the test wants the provider to return, or raise it."""
    asked.append(settings)
    if isinstance(answer, Exception):
        raise answer
    return answer


def options(provider: str = f"{HERE}:given", **settings: str) -> dict[str, str]:
    """Return Kafka settings with a provider."""
    return (
        BEARER | {"offsetkeeper.token.provider": provider} | {f"offsetkeeper.token.{k}": v for k, v in settings.items()}
    )


def returns(monkeypatch: pytest.MonkeyPatch, found: Any) -> None:
    """Let `given` return this, or raise it."""
    monkeypatch.setattr(f"{HERE}.answer", found)


def test_a_provider_gets_its_settings_without_their_prefix(monkeypatch: pytest.MonkeyPatch) -> None:
    end = time.time() + 60
    returns(monkeypatch, ("abc", end, "clerk", {"logicalCluster": "lkc-1"}))
    provider = TokenProvider(options(region="eu-west-1", secret=SECRET))
    assert asked[-1] == {"region": "eu-west-1", "secret": SECRET}
    assert provider("") == ("abc", end, "clerk", {"logicalCluster": "lkc-1"})
    assert SECRET not in repr(provider)


@pytest.mark.parametrize(
    ("provider", "says"),
    [
        ("my_company.tokens", "write module:function"),
        ("my company:token", "write module:function"),
        ("no_such_package.tokens:token", "cannot be imported on .*: No module named 'no_such_package'"),
        (f"{HERE}:no_such_function", "cannot be imported on .* has no attribute 'no_such_function'"),
        (f"{HERE}:HERE", "is not a function"),
    ],
)
def test_a_provider_that_is_not_there_is_a_wrong_setting(provider: str, says: str) -> None:
    with pytest.raises(SettingsError, match=says):
        KafkaCluster("localhost:9092", options(provider))


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"sasl.mechanism": "PLAIN"}, "needs sasl.mechanism=OAUTHBEARER"),
        ({"security.protocol": "SSL"}, "needs sasl.mechanism=OAUTHBEARER"),
        ({"sasl.oauthbearer.method": "oidc"}, "exclude each other"),
        ({"offsetkeeper.tokens.region": "x"}, "offsetkeeper.tokens.region is unknown"),
    ],
)
def test_settings_that_do_not_fit_are_refused_before_the_provider_is_called(more: dict[str, str], says: str) -> None:
    asked.clear()
    for make in (
        lambda: KafkaCluster("localhost:9092", options() | more),
        lambda: Topic("localhost:9092", "orders", kafka=options() | more),
        lambda: open_store("kafka://localhost:9092?" + "&".join(f"{k}={v}" for k, v in (options() | more).items())),
    ):
        with pytest.raises(SettingsError, match=says):
            make()
    assert not asked


def test_settings_of_no_provider_are_refused() -> None:
    with pytest.raises(SettingsError, match=r"give offsetkeeper\.token\.provider too"):
        KafkaCluster("localhost:9092", BEARER | {"offsetkeeper.token.region": "x"})


@pytest.mark.parametrize(
    ("found", "says"),
    [
        (RuntimeError(SECRET), "raised RuntimeError in given, line .* of .*test_kafka_tokens.py"),
        (None, r"returned NoneType instead of \(token, its end"),
        ((SECRET,), r"returned tuple instead of \(token, its end"),
        ((b"abc", 2e9), "no text of printable ASCII"),
        (("", 2e9), "no text of printable ASCII"),
        ((f"{SECRET}\n", 2e9), "no text of printable ASCII"),
        ((SECRET, "tomorrow"), "no number as the token's end"),
        ((SECRET, float("nan")), "no number as the token's end"),
        ((SECRET, 1.0), "ended [0-9]{9,} s ago"),
        ((SECRET, time.time() * 1000), "Milliseconds must be divided by 1000"),
        ((SECRET, time.time() + 3600, None), "a wrong principal or wrong extensions"),
        ((SECRET, time.time() + 3600, "", {"auth": "x"}), "a wrong principal or wrong extensions"),
        ((SECRET, time.time() + 3600, "", {"a_key": "x"}), "a wrong principal or wrong extensions"),
    ],
)
def test_an_answer_that_is_no_token_is_told_without_a_part_of_it(
    found: Any, says: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    returns(monkeypatch, found)
    with pytest.raises(TokenUnavailable, match=says) as raised:
        KafkaCluster("localhost:9092", options())
    assert f"the token provider {HERE}:given " in str(raised.value)
    assert SECRET not in f"{raised.value} {caplog.text}"
    error = raised.value  # a traceback would show what the provider raised
    assert (error.__cause__, error.__suppress_context__) == (None, True)


def test_while_a_token_lasts_a_provider_may_fail(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    end = time.time() + 60
    returns(monkeypatch, ("first", end))
    provider = TokenProvider(options())
    assert provider("")[0] == "first"
    returns(monkeypatch, RuntimeError(SECRET))
    assert provider("") == ("first", end, "", {})
    assert "raised RuntimeError" in caplog.text
    assert SECRET not in caplog.text
    monkeypatch.setattr("offsetkeeper.kafka.tokens.now_ms", lambda: int(end * 1000))
    with pytest.raises(TokenUnavailable):
        provider("")
    assert isinstance(provider.failure, TokenUnavailable)


def test_a_request_that_the_token_s_end_interrupts_names_the_provider_that_failed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The request has an error of its own then, which only says that the login failed."""
    kafka = library()
    text = "Failed while waiting for response from broker: Local: Authentication failure"
    lost: Future[Any] = Future()
    lost.set_exception(kafka.KafkaException(kafka.KafkaError(kafka.KafkaError._AUTHENTICATION, text)))
    returns(monkeypatch, ("short", time.time() + 2))
    admin = Admin("localhost:1", options(), 20)
    returns(monkeypatch, RuntimeError(SECRET))
    wait_until(lambda: "raised RuntimeError" in caplog.text, "the client has asked for its next token", 20)
    with pytest.raises(NotAuthorized, match=f"the token provider {HERE}:given raised RuntimeError"):
        admin.gather(["orders"], lambda keys, _: dict.fromkeys(keys, lost), "topic {}")


def test_a_store_and_a_sink_without_a_token_have_surely_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    returns(monkeypatch, RuntimeError(SECRET))
    given = options()
    monkeypatch.setenv("OFFSETKEEPER_TOKEN_PROVIDERS", given["offsetkeeper.token.provider"])
    store = open_store("kafka://localhost:9092?" + "&".join(f"{name}={value}" for name, value in given.items()))
    with pytest.raises(StoreUnavailable, match="raised RuntimeError"):
        store.load("group")
    with pytest.raises(SinkError, match=r"raised RuntimeError.* Nothing was written"):
        Slot("slot", "orders", "localhost:9092", given, 1.0).said()


def test_of_a_provider_s_settings_only_secrets_are_hidden() -> None:
    given = options(region="eu-west-1", client_secret=SECRET)
    text = f"b-1.eu-west-1.example.org refused {SECRET} of {HERE}"
    assert redact(text, given) == f"b-1.eu-west-1.example.org refused *** of {HERE}"


def test_workers_import_the_provider_s_module() -> None:
    assert worker_modules(options("my_company.tokens:msk.token")) == ("confluent_kafka", "my_company.tokens")
    assert worker_modules({}) == ("confluent_kafka",)
    assert Topic("localhost:9092", "orders", kafka=options("a.b:c")).worker_modules == (
        "confluent_kafka",
        "a.b",
        "pyarrow",
    )
