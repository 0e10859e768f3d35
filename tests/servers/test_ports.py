"""Ports are not given twice, whoever asks for them."""

import subprocess
import sys

from offsetkeeper.testing.server import free_port, reserve_port

RESERVE = "import sys; from offsetkeeper.testing.server import reserve_port; print(reserve_port(int(sys.argv[1])))"


def elsewhere(port: int) -> str:
    """Reserve a port in a process that ends then; return what it was told."""
    command = [sys.executable, "-c", RESERVE, str(port)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_a_port_is_kept_from_other_processes_though_nobody_listens_on_it_yet() -> None:
    port = free_port()
    assert elsewhere(port) == "False"
    assert not reserve_port(port)


def test_a_port_of_a_process_that_has_ended_is_free_again() -> None:
    port = next(port for port in range(9_999, 1_024, -1) if elsewhere(port) == "True")
    assert reserve_port(port)
