"""The page on scheduled jobs: each command that waits for a group, in a shell, while the group is behind and is not."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import NewPartitions  # type: ignore[attr-defined]  # public, its library says so elsewhere

from docs.pages import ROOT
from offsetkeeper import Ledger, Position, TopicPartition, open_store
from offsetkeeper.testing.kafka import KafkaServer

PAGE = (ROOT / "docs" / "scheduled.md").read_text("utf-8")
COMMANDS = [
    line for block in re.findall(r"^```sh\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE) for line in block.splitlines()
]
[ALL, BEFORE_MIDNIGHT, ALERT] = COMMANDS
[DAG] = re.findall(r"^```text\n(import pendulum.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
OFFSETS = (3, 5)
DAY_S = 86_400


def dag_commands(end_s: int) -> dict[str, str]:
    """Return what the tasks of the DAG run, by their names, for an interval that ends at this time."""
    found = {}
    names = {"BEFORE": f"$(( $(date +%s) - {end_s} ))s"}
    for call in (node for node in ast.walk(ast.parse(DAG)) if isinstance(node, ast.Call)):
        given = {each.arg: each.value for each in call.keywords}
        if "bash_command" in given:
            command = eval(compile(ast.Expression(given["bash_command"]), "DAG", "eval"), names)  # noqa: S307 - the page's
            found[ast.literal_eval(given["task_id"])] = command
    return found


@pytest.fixture
def shell(kafka_server: KafkaServer, tmp_path: Path) -> Callable[[str], int]:
    """Runs a line in a shell, with store and brokers in the environment; returns the exit code."""
    environment = os.environ | {
        "OFFSETKEEPER_STORE": f"sqlite:///{tmp_path}/offsets.db",
        "OFFSETKEEPER_BROKERS": kafka_server.bootstrap,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }

    def run(line: str) -> int:
        done = subprocess.run(
            ["/bin/sh", "-c", line], env=environment, cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert "Traceback" not in done.stderr
        return done.returncode

    return run


def test_a_command_waits_until_the_group_is_far_enough(
    kafka_server: KafkaServer, shell: Callable[[str], int], tmp_path: Path
) -> None:
    """A record of yesterday, one of now, and one of now in a partition that was added since.

    The time of the second is a little ahead, which counts as now: it stays of today if midnight comes meanwhile.
    """
    now_s = int(time.time()) + 30
    midnight_s = int(subprocess.run(["/bin/sh", "-c", "date -d 00:00 +%s"], capture_output=True, check=True).stdout)
    kafka_server.create_topic("scheduled", 1)
    producer = Producer({"bootstrap.servers": kafka_server.bootstrap})
    for at_s in (midnight_s - 5, now_s):
        producer.produce("scheduled", b"x", partition=0, timestamp=1000 * at_s)
    assert producer.flush(30) == 0
    wait = dag_commands(midnight_s)["wait"]
    assert [shell(line) for line in (ALL, wait)] == [2, 3], "no such group"
    ledger = Ledger(open_store(f"sqlite:///{tmp_path}/offsets.db"), "orders", name="host:1")
    ledger.acquire("start")
    for offset, codes in enumerate([[1, 1, 1], [1, 0, 0], [0, 0, 0]]):
        ledger.place({TopicPartition("scheduled", 0): Position(offset)})
        assert [shell(line) for line in (ALL, BEFORE_MIDNIGHT, wait)] == codes, offset
    admin = kafka_server.admin()
    admin.create_partitions([NewPartitions("scheduled", 2)])["scheduled"].result(30)
    producer = Producer({"bootstrap.servers": kafka_server.bootstrap})  # the other one does not know the partition yet
    producer.produce("scheduled", b"x", partition=1, timestamp=1000 * now_s)
    assert producer.flush(30) == 0
    assert [shell(line) for line in (ALL, BEFORE_MIDNIGHT, wait)] == [1, 0, 0]


def test_a_group_that_waiting_does_not_help_fails_the_task(
    kafka_server: KafkaServer, shell: Callable[[str], int], tmp_path: Path
) -> None:
    """It stands after the end of the topic: it is refused."""
    kafka_server.create_topic("scheduled-short", 1)
    ledger = Ledger(open_store(f"sqlite:///{tmp_path}/offsets.db"), "orders", name="host:1")
    ledger.acquire("start")
    ledger.place({TopicPartition("scheduled-short", 0): Position(7)})
    assert [shell(line) for line in (ALL, ALERT, dag_commands(0)["wait"])] == [1, 1, 3]


def test_the_codes_of_the_dag_are_those_of_the_page() -> None:
    assert "skip_on_exit_code=3" in DAG
    assert "return 3  # another copy has the group" in PAGE
    assert "retry_exit_code=1" in DAG
    assert "| 1 | not yet" in PAGE
    assert sorted(dag_commands(0)) == ["read", "report", "wait"]
