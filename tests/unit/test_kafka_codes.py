"""Each code of Kafka and of librdkafka is judged once, in one table."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from unittest.mock import Mock

import pytest
from confluent_kafka import KafkaError, KafkaException

from offsetkeeper import errors
from offsetkeeper.clients.url import read_url
from offsetkeeper.errors import BrokerError, BrokerUnavailable, NotAuthorized, OutcomeUnknown, UnknownTopic
from offsetkeeper.kafka.codes import JUDGED, RETRIABLE, CodeVerdict, broker_error, judge
from offsetkeeper.stores.kafka.clients import Clients
from offsetkeeper.testing.artifacts import fetch_jars
from offsetkeeper.testing.java import java

CODES = {name: code for name, code in vars(KafkaError).items() if isinstance(code, int)}
LOCAL = {name for name in CODES if name.startswith("_")}
WAITED_FOR = sorted(name for name in CODES if judge(name).passes)
PACKAGE = Path(errors.__file__).parent


def kafkas_own_table() -> dict[int, bool]:
    """Return whether each error of the protocol is retriable, by its number, as Kafka's own documentation is made."""
    classes = ":".join(map(str, fetch_jars("kafka")))
    command = [str(java()), "-cp", classes, "org.apache.kafka.common.protocol.Errors"]
    text = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout
    rows = re.findall(r"<td>(-?\d+)</td><td>(True|False)</td>", text)
    return {int(code): retriable == "True" for code, retriable in rows}


def test_every_local_code_of_the_installed_library_is_judged_with_a_reason() -> None:
    """A new librdkafka that has a new one fails here, and not in somebody's run."""
    assert len(LOCAL) > 60
    assert {name for name in LOCAL if name not in JUDGED} == set()
    assert [name for name, (_, reason) in JUDGED.items() if len(reason) < 10] == []


def test_the_table_has_no_code_that_the_library_does_not_know() -> None:
    assert {name for name in {*JUDGED, *RETRIABLE} if name not in CODES} == set()


def test_what_is_retriable_is_told_by_kafkas_own_table() -> None:
    """By number, as librdkafka has older names. That of the Kafka that the tests run."""
    retriable = kafkas_own_table()
    assert sum(retriable.values()) > 25
    ours = {CODES[name] for name in RETRIABLE}
    theirs = {code for code in CODES.values() if retriable.get(code)}
    assert ours == theirs


def test_only_codes_with_a_reason_are_judged_otherwise_than_kafkas_table() -> None:
    protocol = CODES.keys() - LOCAL
    otherwise = {name for name in protocol if judge(name).passes is not (name in RETRIABLE)}
    assert otherwise == {"UNKNOWN_TOPIC_OR_PART", "UNKNOWN_TOPIC_ID", "BROKER_NOT_AVAILABLE"}


def test_a_code_that_nobody_has_judged_yet_is_waited_for_if_it_is_local_or_says_so_itself() -> None:
    assert judge("_A_NEW_ONE") is CodeVerdict.PASSES
    assert judge("A_NEW_ONE") is CodeVerdict.FATAL
    assert judge(Mock(**{"name.return_value": "A_NEW_ONE", "retriable.return_value": True})) is CodeVerdict.PASSES
    assert judge(Mock(**{"name.return_value": "_FATAL", "retriable.return_value": True})) is CodeVerdict.FATAL


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("_DESTROY_BROKER", BrokerUnavailable),
        ("_TRANSPORT", BrokerUnavailable),
        ("NOT_LEADER_FOR_PARTITION", BrokerUnavailable),
        ("UNKNOWN_TOPIC_OR_PART", UnknownTopic),
        ("_AUTHENTICATION", NotAuthorized),
        ("_BAD_MSG", BrokerError),
        ("MSG_SIZE_TOO_LARGE", BrokerError),
    ],
)
def test_a_code_is_raised_as_what_it_means(code: str, kind: type[BrokerError]) -> None:
    error = broker_error(KafkaError(CODES[code]), "why", "topic orders", "host:9092")
    assert type(error) is kind
    assert "topic orders" in str(error)


@pytest.mark.parametrize("code", sorted(CODES))
def test_only_what_a_cluster_refuses_is_surely_unwritten(code: str) -> None:
    """All else may be an earlier try's record that landed, whatever the last try was told."""
    clients = Clients(read_url("kafka://host:9092?timeout=1", ("timeout",)))
    error = clients.failure(KafkaException(KafkaError(CODES[code])), "the change", OutcomeUnknown)
    unwritten = judge(code) in {CodeVerdict.REFUSED, CodeVerdict.INVALID}
    assert isinstance(error, OutcomeUnknown) is not unwritten
    assert not (unwritten and judge(code).passes)


def test_no_other_file_judges_codes() -> None:
    """One that names codes decides by them, and then they are in two places."""
    named = {
        (path.name, name)
        for path in sorted(PACKAGE.rglob("*.py"))
        if path.name != "codes.py" and "testing" not in path.parts
        for name in re.findall(r"\"(\w+)\"", path.read_text("utf-8"))
        if name in CODES
    }
    assert named == set()
