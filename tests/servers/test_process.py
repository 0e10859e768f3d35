"""A server never outlives the process that started it, nor do its own children."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from offsetkeeper.testing.errors import ServerError
from offsetkeeper.testing.process import ServerProcess
from offsetkeeper.testing.server import wait_until

LIMIT_S = 60

# A process that leaves its parent's process group, as PostgreSQL's and PySpark's do, and ignores the polite signals.
STRAY = "trap '' TERM INT HUP; while :; do sleep 1; done"
WITH_STRAY = f'setsid sh -c "{STRAY}" & echo stray $!; wait'

POSTGRESQL = """
from offsetkeeper.testing.postgresql import PostgreSQLServer
import psycopg, signal
server = PostgreSQLServer().start()
with psycopg.connect(server.url()) as connection:
    print(server.folder, server.process.pid, connection.info.backend_pid, flush=True)
    signal.pause()
"""

KAFKA_IN_A_FORK = """
from offsetkeeper.testing.kafka import KafkaServer
import os, signal
server = KafkaServer().start()
if os.fork() == 0:
    print(server.folder, server.process.pid, os.getpid(), flush=True)
signal.pause()
"""

BUSY_THREADS = """
import threading
def spin():
    while True: pass
for _ in range(4):
    threading.Thread(target=spin).start()
print("busy", flush=True)
"""


def thread_states(pid: int) -> set[str]:
    """Return the states of a process's threads, as Linux abbreviates them."""
    return {stat.read_text().rpartition(")")[2].split()[0] for stat in Path(f"/proc/{pid}/task").glob("*/stat")}


def gone(pid: int) -> bool:
    """Whether a process runs no more."""
    return not Path(f"/proc/{pid}").exists()


def kill_parent_of(script: str) -> tuple[Path, int, int]:
    """Run a script that prints a folder and two process ids and waits, kill it, and return what it printed."""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout
        folder, server, other = parent.stdout.readline().split()
        assert not gone(int(server))
        assert not gone(int(other))
        parent.kill()
    return Path(folder), int(server), int(other)


def stray_of(process: ServerProcess) -> int:
    """Return the id of the process that WITH_STRAY leaves behind."""
    wait_until(lambda: "stray" in process.log_tail(), "the stray ran", LIMIT_S)
    return int(process.log_tail().split()[-1])


def test_postgresql_and_its_backends_die_with_a_parent_killed_by_sigkill() -> None:
    folder, server, backend = kill_parent_of(POSTGRESQL)
    wait_until(lambda: gone(server) and gone(backend), "the server was gone", LIMIT_S)
    wait_until(lambda: not folder.exists(), "its data was deleted", LIMIT_S)


def test_kafka_dies_with_its_parent_even_while_a_fork_of_the_parent_lives() -> None:
    """The fork holds the pipe open that tells of the parent's end."""
    folder, server, fork = kill_parent_of(KAFKA_IN_A_FORK)
    try:
        wait_until(lambda: gone(server), "the server was gone", LIMIT_S)
        wait_until(lambda: not folder.exists(), "its data was deleted", LIMIT_S)
        assert not gone(fork)
    finally:
        os.kill(fork, signal.SIGKILL)


def test_all_threads_of_a_server_stand_still_when_it_has_been_paused(tmp_path: Path) -> None:
    process = ServerProcess([sys.executable, "-c", BUSY_THREADS], folder=tmp_path)
    wait_until(lambda: process.log_tail() == "busy", "the threads ran", LIMIT_S)
    for _ in range(20):
        process.send_signal(signal.SIGSTOP)
        assert thread_states(process.pid) == {"T"}
        process.send_signal(signal.SIGCONT)
    process.send_signal(signal.SIGSTOP)
    process.stop()
    assert gone(process.pid)


@pytest.mark.parametrize("end", [ServerProcess.kill, ServerProcess.stop])
def test_the_end_of_a_server_is_the_end_of_all_it_started(end: Callable[[ServerProcess], None], tmp_path: Path) -> None:
    process = ServerProcess(["sh", "-c", WITH_STRAY], folder=tmp_path)
    stray = stray_of(process)
    end(process)
    assert gone(process.pid)
    assert gone(stray)
    assert not process.alive()
    assert process.log.exists()


def test_a_server_that_ends_by_itself_leaves_nothing_behind(tmp_path: Path) -> None:
    process = ServerProcess(["sh", "-c", WITH_STRAY.replace("wait", "sleep 0.2")], folder=tmp_path)
    stray = stray_of(process)
    wait_until(lambda: not process.alive(), "the server ended", LIMIT_S)
    assert gone(stray)
    process.kill()


def test_a_server_deaf_to_the_polite_signal_is_killed_after_the_limit(tmp_path: Path) -> None:
    process = ServerProcess(["sh", "-c", f"{STRAY}; echo never"], folder=tmp_path)
    process.stop(limit=0.2)
    assert gone(process.pid)


def test_a_signal_reaches_the_server_and_its_output_the_log(tmp_path: Path) -> None:
    process = ServerProcess(
        ["sh", "-c", "trap 'echo got it; exit' USR1; echo ready; while :; do sleep 0.1; done"], folder=tmp_path
    )
    wait_until(lambda: process.log_tail() == "ready", "the server was ready", LIMIT_S)
    process.send_signal(signal.SIGUSR1)
    wait_until(lambda: not process.alive(), "the server ended", LIMIT_S)
    assert process.log_tail(1) == "got it"
    with pytest.raises(ServerError, match=r"(?s)runs no more.*got it"):
        process.send_signal(signal.SIGUSR1)
    process.kill()


def test_a_program_that_does_not_exist_is_told(tmp_path: Path) -> None:
    with pytest.raises(ServerError, match=r"(?s)/no/such/program could not be run.*No such file"):
        ServerProcess(["/no/such/program"], folder=tmp_path)
