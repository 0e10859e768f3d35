"""What is on stderr when a broker or a server is away: one message, and the rest in the log."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from offsetkeeper import Ledger, OffsetRange, Position, TopicPartition, open_store
from offsetkeeper.testing.kafka import KafkaServer
from offsetkeeper.testing.server import free_port

FULL = Path("/dev/full")
PIPELINE = """
import sys
from offsetkeeper import Pipeline
{setting}
pipeline = Pipeline(group="shop", topics=["a"], store="sqlite:///offsets.db", brokers=sys.argv[1], retry_timeout_s=3)
try:
    pipeline.plan()
except Exception as error:
    print(type(error).__name__)
"""


@pytest.fixture
def brokers(tmp_path: Path) -> str:
    """Return the address of a broker that is away; a group is stored beside."""
    ledger = Ledger(open_store(f"sqlite:///{tmp_path}/offsets.db"), "shop")
    ledger.acquire("start")
    ledger.place({TopicPartition("a", 0): Position(0)})
    ledger.commit(ledger.batch([OffsetRange("a", 0, 0, 10)]))
    ledger.store.close()
    return f"127.0.0.1:{free_port()}"


def run(folder: Path, *arguments: str) -> tuple[list[str], list[str]]:
    """Run Python as a user does, and return the lines of stdout and stderr."""
    done = subprocess.run(
        [sys.executable, *arguments], cwd=folder, capture_output=True, text=True, timeout=100, check=False
    )
    return done.stdout.splitlines(), done.stderr.splitlines()


def command(folder: Path, *arguments: str) -> tuple[list[str], list[str]]:
    return run(folder, "-m", "offsetkeeper", *arguments)


def test_a_command_without_its_broker_says_one_line(brokers: str, tmp_path: Path) -> None:
    _, told = command(tmp_path, "lag", "shop", "--store", "sqlite:///offsets.db", "--brokers", brokers)
    assert len(told) == 1, told
    assert brokers in told[0]


@pytest.mark.parametrize("store", ["kafka", "redis"])
def test_a_command_without_its_store_says_one_line(store: str, brokers: str, tmp_path: Path) -> None:
    _, told = command(tmp_path, "groups", "--store", f"{store}://{brokers}?timeout=2")
    assert len(told) == 1, told
    assert told[0].startswith(f"offsetkeeper: {store}://{brokers}")


def test_the_rest_is_in_the_log_that_verbose_writes(brokers: str, tmp_path: Path) -> None:
    _, told = command(tmp_path, "--verbose", "lag", "shop", "--store", "sqlite:///offsets.db", "--brokers", brokers)
    lines = [line for line in told if "offsetkeeper.kafka.clients" in line]
    assert len(lines) > 2
    assert told[-1].startswith("offsetkeeper: topic a: no answer")


@pytest.mark.parametrize(
    ("setting", "logged"),
    [("", False), ("import logging; logging.basicConfig(format='LOG %(name)s %(message)s')", True)],
    ids=["no-log", "log"],
)
def test_a_program_gets_the_lines_of_the_client_by_logging_alone(
    brokers: str, tmp_path: Path, setting: str, *, logged: bool
) -> None:
    (tmp_path / "program.py").write_text(PIPELINE.format(setting=setting), "utf-8")
    out, told = run(tmp_path, "program.py", brokers)
    assert out == ["BrokerUnavailable"]
    assert any(line.startswith("LOG offsetkeeper.kafka.clients ") for line in told) == logged
    assert [line for line in told if not line.startswith("LOG ")] == []


def test_a_command_says_nothing_of_what_another_library_logs(tmp_path: Path) -> None:
    code = (
        "import logging, sys; from offsetkeeper.cli import main; sys.argv[1:] = ['groups', '--store', 'nosuch://x']\n"
        "try: main.main()\n"
        "finally: logging.getLogger('another').error('noise')"
    )
    _, told = run(tmp_path, "-c", code)
    assert len(told) == 1, told
    assert told[0].startswith("offsetkeeper: unknown store URL (nosuch://)")


@pytest.mark.skipif(not FULL.exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize("form", [[], ["--json"]])
def test_a_full_disk_under_the_output_is_one_line_and_no_verdict(form: list[str], brokers: str, tmp_path: Path) -> None:
    """Exit code 1 would be one of `verify` and `lag`."""
    del brokers  # a group is stored beside
    asked = [sys.executable, "-m", "offsetkeeper", "show", "shop", "--store", "sqlite:///offsets.db", *form]
    with FULL.open("w") as full:
        done = subprocess.run(
            asked, cwd=tmp_path, stdout=full, stderr=subprocess.PIPE, text=True, timeout=100, check=False
        )
    assert done.returncode == 2
    assert done.stderr == "offsetkeeper: cannot write the output: No space left on device\n"


@pytest.mark.parametrize("asked", [["show", "shop"], ["history", "shop", "--json"], ["--help"], ["show", "nosuch"]])
def test_a_reader_that_goes_away_is_no_verdict_and_nothing_is_said(
    asked: list[str], brokers: str, tmp_path: Path
) -> None:
    """As in `offsetkeeper show shop 2>&1 | head -1`; the shell shows 141 for what SIGPIPE has ended, too."""
    del brokers  # a group is stored beside
    store = ["--store", "sqlite:///offsets.db"] if asked[0] != "--help" else []
    read, write = os.pipe()
    os.close(read)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "offsetkeeper", *asked, *store],
            cwd=tmp_path,
            stdout=write,
            stderr=write if asked[-1] == "nosuch" else subprocess.PIPE,
            text=True,
            timeout=100,
            check=False,
        )
    finally:
        os.close(write)
    assert (done.returncode, done.stderr or "") == (141, "")


FAKE = """
from contextlib import nullcontext
from cli.test_looking import A, Bounds
from fixtures.fake_cluster import Fake
from offsetkeeper.cli import main, options
cluster = Fake()
cluster.held_ = {A: Bounds(0, 20)}
options.open_cluster = lambda _: nullcontext(cluster)
main.main()
"""


def faked(folder: Path, *asked: str, reads: bool = True, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command on a cluster in its own process; `reads`: whether somebody reads the output."""
    path = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    read, write = os.pipe()
    os.close(read)
    try:
        return subprocess.run(
            [sys.executable, "-c", FAKE, *asked, "--store", "sqlite:///offsets.db", "--brokers", "fake:9092"],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": path, **environment},
            stdout=subprocess.PIPE if reads else write,
            stderr=subprocess.PIPE,
            text=True,
            timeout=100,
            check=False,
        )
    finally:
        os.close(write)


@pytest.fixture
def groups(tmp_path: Path) -> Callable[[], list[int]]:
    """Return a function that tells where three groups are; at first all are at 10, and nobody holds one."""
    names, store = ("one", "three", "two"), f"sqlite:///{tmp_path}/offsets.db"
    for name in names:
        ledger = Ledger(open_store(store), name, name="日:1")
        ledger.acquire()
        ledger.place({TopicPartition("a", 0): Position(0)})
        ledger.commit(ledger.batch([OffsetRange("a", 0, 0, 10)]))
        ledger.release()
        ledger.store.close()
    return lambda: [open_store(store).load(name).positions[TopicPartition("a", 0)].offset for name in names]


def test_a_reader_that_goes_away_stops_no_change(groups: Callable[[], list[int]], tmp_path: Path) -> None:
    """Of several groups some were changed and some not, and nothing told which."""
    done = faked(tmp_path, "reset", "--all-groups", "--all-topics", "--to-offset", "4", "--execute", reads=False)
    assert (done.returncode, done.stderr, groups()) == (141, "", [4, 4, 4])
    done = faked(tmp_path, "undo", "two", "--execute", reads=False)
    assert (done.returncode, done.stderr, groups()) == (141, "", [4, 4, 10])
    command = ("reset", "two", "--all-topics", "--to-offset", "5", "--export", "--execute")
    assert (faked(tmp_path, *command, reads=False).returncode, groups()) == (141, [4, 4, 5])


def test_what_an_encoding_lacks_is_written_otherwise_and_is_no_error(
    groups: Callable[[], list[int]], tmp_path: Path
) -> None:
    """The change was made, and exit code 1 would be a verdict."""
    why = ("--reason", "日", "--execute")
    done = faked(tmp_path, "reset", "two", "--all-topics", "--to-offset", "4", *why, PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr, groups()) == (0, "", [10, 10, 4])
    read = [sys.executable, "-m", "offsetkeeper", "history", "two", "--store", "sqlite:///offsets.db"]
    environment = {**os.environ, "PYTHONIOENCODING": "latin-1"}
    told = subprocess.run(read, cwd=tmp_path, env=environment, capture_output=True, timeout=100, check=False)
    assert (told.returncode, told.stderr) == (0, b"")
    assert rb"a 0 10 \u2192 4; \u65e5 (by " in told.stdout


@pytest.mark.parametrize("asked", ["BrokenPipeError(32, 'Broken pipe')", "SystemExit(3)"])
def test_a_pipe_that_broke_elsewhere_is_an_error(asked: str, tmp_path: Path) -> None:
    """As in a function of the user's, which writes to another program."""
    program = f"""
from offsetkeeper.cli import main

@main.app.command()
def breaks() -> None:
    try:
        raise BrokenPipeError(32, "Broken pipe")
    except BrokenPipeError:
        raise {asked}

main.main()
"""
    done = subprocess.run(
        [sys.executable, "-c", program, "breaks"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    if asked.startswith("SystemExit"):
        assert (done.returncode, done.stderr) == (3, "")
    else:
        assert (done.returncode, done.stderr) == (2, "offsetkeeper: failed: [Errno 32] Broken pipe\n")


def test_a_line_that_is_read_is_there_and_the_rest_ends_quietly(
    kafka_server: KafkaServer, topic: Callable[[], str], tmp_path: Path
) -> None:
    """With a real `head`, and a watch that would go on for ever."""
    ledger = Ledger(open_store(f"sqlite:///{tmp_path}/offsets.db"), "shop")
    ledger.acquire()
    ledger.place({TopicPartition(topic(), 0): Position(0)})
    ledger.store.close()
    watch = f"-m offsetkeeper lag shop --store sqlite:///offsets.db --watch 0.1 --brokers {kafka_server.bootstrap}"
    shell = f"set -o pipefail; {sys.executable} {watch} | head -1"
    done = subprocess.run(
        ["/bin/bash", "-c", shell], cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False
    )
    assert (done.returncode, done.stderr) == (141, "")
    assert done.stdout.startswith("# shop: ok")
