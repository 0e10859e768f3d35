"""Clients of Kafka: settings are checked, secrets hidden, and one function makes them all. Executors use it too."""

from __future__ import annotations

import logging
import platform
import re
import sys
from collections import deque
from concurrent.futures import wait
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast, get_args

from offsetkeeper.core.cluster import Isolation
from offsetkeeper.core.outside import shown_name
from offsetkeeper.core.retry import retry
from offsetkeeper.core.urls import redacted
from offsetkeeper.errors import BrokerUnavailable, MissingExtra, SettingsError
from offsetkeeper.kafka.codes import LOGIN_FAILED, NO_REASON, CodeVerdict, broker_error, judge
from offsetkeeper.kafka.own_settings import TOKEN, TOKEN_PROVIDER, check_own, librdkafka_options
from offsetkeeper.kafka.tls import is_hopeless, is_on, key_hint, objection, speaks_tls, wrong_file
from offsetkeeper.kafka.tokens import TokenProvider

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping
    from concurrent.futures import Future

    from offsetkeeper.errors import BrokerError

K = TypeVar("K")
T = TypeVar("T")

log = logging.getLogger(__name__)
log.addHandler(logging.NullHandler())  # an error says why; without a log that was asked for, these lines would bury it
NO_OPTIONS: Mapping[str, str] = MappingProxyType({})
_BROKER = re.compile(r"(?:[A-Za-z_]+://)?(?:\[[0-9a-fA-F:.%]+\]|[A-Za-z0-9._-]+)(?::(?P<port>\d{1,5}))?")
_SECRET = re.compile(
    r"password|passphrase|secret|token(?!\.endpoint)|jaas|credential|\bpem\b|sasl\.username|oauthbearer\.config",
    re.IGNORECASE,
)
_UNREACHED = re.compile(r"(?:[a-z_]+://)?(.+):(\d+)/(\d+): ")
"""The start of a report on a broker that the cluster has told of. A given address has no id, but `/bootstrap`."""
# librdkafka cuts a long message, and a value may have quotes.
_VALUE = re.compile('value ".*?(?:"(?= for )|\\Z)', re.DOTALL)
_FIRST_S = 2.0
_DOUBTFUL = {CodeVerdict.NOT_SEEN, CodeVerdict.UNKNOWN_TOPIC}
_OURS = {
    "bootstrap.servers": "give the brokers as their own setting",
    "metadata.broker.list": "give the brokers as their own setting",
    "isolation.level": "give the isolation as its own setting",
    "group.id": "readers name the group by themselves",
    "group.instance.id": "readers never join a group",
    "auto.offset.reset": "an offset that is gone is an error, never a jump",
    "enable.auto.commit": "offsets are committed by the ledger only",
    "enable.auto.offset.store": "offsets are committed by the ledger only",
    "enable.partition.eof": "readers need it, and set it",
    "allow.auto.create.topics": "no client makes a topic, as one that was deleted would come back empty",
}

# Admin clients and producers ask again, by themselves, for each topic that they were asked for. By default, a broker
# with auto.create.topics.enable then makes one that was deleted, with its own number of partitions.
_ALWAYS = {"allow.auto.create.topics": "false"}

_USUAL: Mapping[str, Mapping[str, str]] = {
    "Consumer": {"check.crcs": "true"},  # as Kafka's Java client does: a disk or a network may have changed a bit
    # Most requests go to the broker that the client takes for the controller. Where it has died, they wait until fresh
    # metadata name another one; librdkafka asks for them every five minutes.
    "AdminClient": {"topic.metadata.refresh.interval.ms": "5000"},
}
_QUEUE = "queue.buffering.max.kbytes"
_PRODUCER = {
    "partitioner": "murmur2_random",
    "topic.metadata.propagation.max.ms": "5000",  # how long a topic that a broker does not know is asked for again
    _QUEUE: "65536",  # else a gigabyte waits in an executor's memory
}


def check_brokers(brokers: str) -> str:
    """Return `brokers` if it is a list `host:port,host:port,…` as Kafka clients take it; the port may be left out.

    Raises:
        SettingsError: it is not.
    """
    for number, broker in enumerate(brokers.split(",") if isinstance(brokers, str) else [""], 1):
        match = _BROKER.fullmatch(broker.strip())
        if match is None or not 0 < int(match["port"] or 9092) < 2**16:  # its text may be a URL with a password
            raise SettingsError(
                f"the brokers are not a list of brokers: number {number} is wrong. Write host:port,host:port"
            )
    return brokers


def check_isolation(isolation: str) -> Isolation:
    """Return `isolation` if it is one of Kafka's two levels.

    Raises:
        SettingsError: it is not.
    """
    if isolation not in get_args(Isolation):
        raise SettingsError(f"{isolation!r} is not an isolation level: use one of {', '.join(get_args(Isolation))}")
    return cast("Isolation", isolation)


def check_options(options: Mapping[str, str]) -> dict[str, str]:
    """Return a copy of `options`, settings of librdkafka, if they are texts and none is offsetkeeper's own to set.

    Whether librdkafka knows each name is found out when a client is made of them.

    Raises:
        SettingsError: an option is not a text, or is set by offsetkeeper itself.
    """
    for name, value in options.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise SettingsError(f"the Kafka option {shown_name(name)} must be a text with a text as its value")
        if name in _OURS:
            raise SettingsError(f"take the Kafka option {name} out: {_OURS[name]}")
    check_own(options)
    return dict(options)


def redact(text: str, options: Mapping[str, str]) -> str:
    """Return `text` with the value of every secret option replaced by `***`.

    Values of fewer than 4 characters stay: any text has them by chance.
    """
    return redacted(text, (value for name, value in options.items() if _SECRET.search(name.removeprefix(TOKEN))))


def library() -> Any:
    """Return confluent_kafka, loaded when first used; untyped, as its stubs lack much of what is used here.

    Raises:
        MissingExtra: it is not installed here.
    """
    try:
        import confluent_kafka.admin  # noqa: PLC0415 - it must be there on executors, and is not needed before
    except ImportError:
        raise MissingExtra(
            f"confluent-kafka is not installed in {sys.executable} on {platform.node()}: "
            "install it for the Python of every executor, or use reader='connector'"
        ) from None
    return confluent_kafka


def timed_out() -> Any:
    """Return librdkafka's own exception for an answer that did not come in time."""
    kafka = library()
    return kafka.KafkaException(kafka.KafkaError(kafka.KafkaError._TIMED_OUT))  # noqa: SLF001 - librdkafka's name


def open_client(
    kind: Literal["AdminClient", "Consumer", "Producer"],
    brokers: str,
    options: Mapping[str, str],
    settings: Mapping[str, Any] = NO_OPTIONS,
    report: Callable[[Any], None] | None = None,
    make: Callable[[dict[str, Any]], Any] | None = None,
    provider: TokenProvider | None = None,
) -> Any:
    """Return a client of librdkafka.

    Args:
        kind: of client.
        brokers: `host:port,…`.
        options: settings that users gave. With a token provider the client takes a second to open: the library waits
            so long for its first token.
        settings: our own, which win.
        report: called with each `KafkaError` that is not an answer, which is logged too, by this module. The
            client itself logs nothing: with a Python logger, clients of librdkafka 2.16 now and then hang for ever, or
            crash the process, when their broker ends.
        make: makes the client of librdkafka's settings, where it is not confluent-kafka's own class.
        provider: see `token_provider`; without one, one is made of the options.

    Raises:
        SettingsError: librdkafka does not take the options, for example because a file is missing here.
        MissingExtra: see `library`.
        TokenUnavailable: the token provider failed.
    """
    kafka = library()
    config: dict[str, Any] = {"log_level": "0", **_USUAL.get(kind, {}), **librdkafka_options(options)}
    config |= {**_ALWAYS, **settings, "bootstrap.servers": brokers}
    provider = provider or token_provider(options)
    if provider is not None:
        config["oauth_cb"] = provider
    if report is not None:
        config["error_cb"] = _logged(report, provider, options, brokers)
    theirs = kafka.admin.AdminClient if kind == "AdminClient" else getattr(kafka, kind)
    try:
        return (make or theirs)(config)
    except kafka.KafkaException as error:
        text = error.args[0].str()
        if why := wrong_file(text, options):
            raise SettingsError(f"librdkafka refuses the Kafka options: {why}") from None
        raise SettingsError(
            f"librdkafka refuses the Kafka options: {_refusal(text, options)} (on {platform.node()}). "
            "Its CONFIGURATION.md lists all names and values"
        ) from None
    except (UnicodeError, ValueError, TypeError):  # a lone surrogate or a NUL, which no C string has
        raise SettingsError(
            "librdkafka refuses the Kafka options: one has a character that it cannot take, such as a NUL"
        ) from None


def token_provider(options: Mapping[str, str]) -> TokenProvider | None:
    """Return the provider of the tokens of a client with these options; None if they name none.

    Raises:
        SettingsError, TokenUnavailable: see `TokenProvider`.
    """
    return TokenProvider(options) if TOKEN_PROVIDER in options else None


def open_producer(
    brokers: str,
    options: Mapping[str, str],
    transactional_id: str,
    report: Callable[[Any], None],
    failed: Callable[[Any], None],
    make: Callable[[dict[str, Any]], Any] | None = None,
) -> Any:
    """Return a transactional producer, which chooses partitions as the Java client does.

    It logs to a queue that is never read: else librdkafka writes to stderr, at any log level, that it was fenced.

    Args:
        brokers: `host:port,…`.
        options: settings that users gave.
        transactional_id: for brokers, only the newest producer of an id may write.
        report: see `open_client`. A fatal error is not reported: whatever call comes next raises it.
        failed: called with the `KafkaError` of each message that was not delivered.
        make: see `open_client`.

    Raises:
        SettingsError, MissingExtra: see `open_client`.
    """
    ours = {
        "transactional.id": transactional_id,
        "log.queue": "true",
        "delivery.report.only.error": True,
        "on_delivery": lambda error, _: failed(error),
    }
    return open_client("Producer", brokers, {**_PRODUCER, **_room(options), **options}, ours, report, make)


def _room(options: Mapping[str, str]) -> dict[str, str]:
    """Return the setting with which a message as large as the options allow finds room: else it would wait for ever."""
    most = options.get("message.max.bytes", "")
    kilobytes = int(most) // 1024 + 1 if most.isdecimal() else 0
    return {_QUEUE: str(kilobytes)} if kilobytes > int(_PRODUCER[_QUEUE]) else {}


def _refusal(text: str, options: Mapping[str, str]) -> str:
    """Return why librdkafka refuses options, without their values, and without a name that may be a password."""
    hint = key_hint(text, options)
    for name in sorted(options, key=len, reverse=True):
        text = text.replace(f'"{name}"', shown_name(name))
    return _VALUE.sub("value", redacted(text, options.values())) + hint


def _logged(
    report: Callable[[Any], None], provider: TokenProvider | None, options: Mapping[str, str], brokers: str
) -> Callable[[Any], None]:
    objections: dict[str, str] = {}

    def log_and_report(error: Any) -> None:
        if why := objection(error.str(), options, objections):  # while one broker is accepted, it may have the answer
            code = LOGIN_FAILED if is_hopeless(brokers, objections) else error.name()
            error = library().KafkaError(getattr(library().KafkaError, code), why)
        error = _with_cause(error, provider)
        log.error("%s", redact(error.str(), options))
        report(error)

    return log_and_report


def _with_cause(error: Any, provider: TokenProvider | None) -> Any:
    """Return an error; if a client had no valid token, its text is that of the provider's failure."""
    if provider is None or provider.failure is None or error.name() != LOGIN_FAILED:
        return error
    return library().KafkaError(error.code(), str(provider.failure))


class Admin:
    """The admin client of a cluster: asks again while leaders move or brokers restart, for at most `timeout_s` seconds.

    Args:
        brokers: `host:port,…`.
        options: settings of librdkafka.
        timeout_s: seconds after which a question without an answer is an error.

    Raises:
        SettingsError: librdkafka does not take the options.
    """

    def __init__(self, brokers: str, options: Mapping[str, str], timeout_s: float) -> None:
        self._brokers, self._options, self._timeout_s = brokers, options, timeout_s
        self._reports: deque[Any] = deque(maxlen=100)
        self._provider = token_provider(options)
        report = self._reports.append
        self.client = open_client("AdminClient", brokers, options, report=report, provider=self._provider)
        self._cluster_id: tuple[str | None] | None = None

    def cluster_id(self, topic: str) -> str | None:
        """Return Kafka's id of the cluster, as it was when it was asked first; None if it has none.

        Args:
            topic: one of its topics. Otherwise the answer has all of them.

        Raises:
            BrokerError: see `broker_error`.
        """
        if self._cluster_id is None:
            found = self.call(lambda seconds: self.client.list_topics(topic, seconds).cluster_id)
            self._cluster_id = (None if found is None else str(found),)
        return self._cluster_id[0]

    def ask_cluster_id(self) -> Callable[[], str | None]:
        """Ask for Kafka's id of the cluster as it is now; return what waits for the answer, which may raise.

        So it takes no time beside another question. Whatever is asked in between, the answer is of the same client.

        Raises:
            BrokerError: see `broker_error`.
        """
        asked = [self.client.describe_cluster(request_timeout=self._timeout_s)]

        def ask(keys: list[str], seconds: float) -> dict[str, Future[Any]]:
            found = asked.pop() if asked else self.client.describe_cluster(request_timeout=seconds)
            return dict.fromkeys(keys, found)

        def answer() -> str | None:
            found = self.gather(["the cluster"], ask, "{}")["the cluster"].cluster_id
            return str(found) if found else None

        return answer

    def gather(
        self,
        keys: Collection[K],
        ask: Callable[[list[K], float], Mapping[K, Future[Any]]],
        what: str,
        *,
        absent: Collection[CodeVerdict] = (),
        check_exist: Callable[[Collection[K]], object] | None = None,
    ) -> dict[K, Any]:
        """Ask until every key has its answer, which is None where the error has one of the verdicts `absent`.

        Args:
            keys: what to ask for.
            ask: asks for some of them, with the seconds that are left.
            what: a key in words, for errors, with `{}` in the key's place.
            absent: verdicts that mean that the key does not exist.
            check_exist: raises for keys that do not exist; asked where the client may only not have seen them yet.

        Raises:
            BrokerError: see `broker_error`.
        """
        answers: dict[K, Any] = {}

        def ask_rest(seconds: float) -> None:
            left = [key for key in keys if key not in answers]
            futures = ask(left, seconds)
            self._wait(futures.values())
            errors = {key: error for key in left if (error := _error(futures[key])) is not None}
            answers.update({key: futures[key].result() for key in left if key not in errors})
            for key, error in errors.items():
                if judge(error) in absent:
                    answers[key] = None
                elif check_exist is not None and judge(error) in _DOUBTFUL:
                    check_exist(left)
                    raise self._failure(error, what.format(key), CodeVerdict.NOT_SEEN)
                else:
                    raise self._failure(error, what.format(key))

        self.patiently(ask_rest)
        self._reports.clear()
        return answers

    def call(self, ask: Callable[[float], T]) -> T:
        """Return the answer to a question that librdkafka asks at once, without a future.

        Raises:
            BrokerError: see `broker_error`.
        """
        limits = [_FIRST_S] if is_on(self._options) else []  # then it is heard if a certificate is not accepted

        def ask_once(seconds: float) -> T:
            try:
                return ask(min(seconds, limits.pop() if limits else seconds))
            except library().KafkaException as error:
                self.client.poll(0)
                refused = (report for report in self._reports if judge(report) is CodeVerdict.REFUSED)
                raise self._failure(next(refused, error.args[0]), "the cluster") from None

        return self.patiently(ask_once)

    def unreached(self) -> dict[str, tuple[str, int]]:
        """Return host and port of brokers that the cluster has told of and that were not reached, by their ids."""
        self.client.poll(0)
        found = [_UNREACHED.match(report.str()) for report in self._reports]
        return {match[3]: (match[1], int(match[2])) for match in found if match}

    def patiently(self, ask: Callable[[float], T]) -> T:
        """Ask, each time with the seconds that are left, until there is an answer or an error that does not pass.

        Refusals of earlier questions are forgotten first. Other reports stay until all is answered: librdkafka tells
        why it cannot connect when it tries, with ever longer pauses, and that is the reason for whatever fails
        meanwhile.
        """
        self.client.poll(0)
        for report in [report for report in self._reports if judge(report) is CodeVerdict.REFUSED]:
            self._reports.remove(report)
        try:
            return retry(BrokerUnavailable, self._timeout_s, lambda left_s: ask(max(0.1, left_s)), first_s=0.05)
        except BrokerUnavailable as error:
            if at := speaks_tls(self._brokers, self._options):
                raise BrokerUnavailable(
                    f"{error}. {at} speaks TLS: set security.protocol to ssl or sasl_ssl, or take another port"
                ) from None
            raise

    def _wait(self, futures: Iterable[Future[Any]]) -> None:
        """Wait for all, which their own time limit ends, or for wrong credentials, which no waiting mends."""
        for future in futures:  # one by one: to wait for thousands together takes seconds
            while not future.done():
                wait([future], timeout=0.1)
                self.client.poll(0)
                for report in list(self._reports):
                    if judge(report) is CodeVerdict.REFUSED:
                        raise self._failure(report, "the connection")

    def _failure(self, error: Any, what: str, verdict: CodeVerdict | None = None) -> BrokerError:
        error = _with_cause(error, self._provider)
        reports = [report.str() for report in self._reports if report.name() != NO_REASON]
        reports.sort(key=lambda text: text.rfind("?"))  # the newest that says what may be wrong comes last
        text = "; ".join(dict.fromkeys([error.str(), *reports[-1:]]))
        return broker_error(verdict or error, redact(text, self._options), what, self._brokers)


def _error(future: Future[Any]) -> Any:
    """Return the error of an answer, or None.

    An offset that is not set is one too. librdkafka 2.16 gives it, and no error, where the connection breaks before the
    broker has answered. It must not be taken for the -1 with which a broker says that it has no such record.
    """
    exception = future.exception()
    if exception is not None:
        return exception.args[0]
    unset = getattr(future.result(), "offset", 0) == library().OFFSET_INVALID
    return library().KafkaError(library().KafkaError._TRANSPORT) if unset else None  # noqa: SLF001 - librdkafka's name
