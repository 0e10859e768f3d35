"""Runs one server, and sees to it that neither it nor a process it started outlives the parent. A script of its own.

Arguments: the user id to run as (-1: the own one), then the command. The server's process id is written to stdout.
Each byte read from stdin is a signal to pass on to the server; an empty line on stdout says that it was. When stdin
ends without a SIGKILL, then the parent has died, perhaps killed itself: the server is killed, and the working folder
deleted; no other process would delete it now.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import select
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h


def main(user: int, command: list[str]) -> int:
    """Run `command` until it ends or stdin does; return its exit code."""
    parent = os.getppid()
    if sys.platform == "linux":
        # A process the server leaves behind becomes a child of this one, even from another process group.
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    start = functools.partial(
        subprocess.Popen[bytes], command, stdin=subprocess.DEVNULL, stdout=sys.stderr, start_new_session=True
    )
    child = start() if user < 0 else start(user=user, group=user, extra_groups=[])
    _say(str(child.pid))
    orphaned = threading.Event()
    threading.Thread(target=_obey, args=(child, parent, orphaned), daemon=True).start()
    code = child.wait()
    _kill_descendants(child.pid)
    if orphaned.is_set():
        shutil.rmtree(Path.cwd(), ignore_errors=True)
    return int(code)


def _obey(child: subprocess.Popen[bytes], parent: int, orphaned: threading.Event) -> None:
    """Pass signals on until SIGKILL is one, or the parent is gone."""
    # A fork of the parent may hold the pipe open after the parent's death, hence the look at the parent's id.
    while os.getppid() == parent:
        if select.select([0], [], [], 0.5)[0]:
            order = os.read(0, 1)
            if not order:
                break
            child.send_signal(order[0])
            if order[0] == signal.SIGKILL:
                return
            if order[0] == signal.SIGSTOP:
                _wait_for_stop(child.pid)
            _say("")
    orphaned.set()
    child.kill()


def _wait_for_stop(pid: int) -> None:
    """Wait until all threads of the process stand still, or it has ended: the first of them takes the signal alone."""
    if sys.platform == "linux":
        with contextlib.suppress(ChildProcessError):
            os.waitid(os.P_PID, pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)


def _say(line: str) -> None:
    os.write(1, f"{line}\n".encode())


def _kill_descendants(group: int) -> None:
    """Kill what the server left behind, and wait until all of it is gone."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        while True:
            for pid in _children():
                os.kill(pid, signal.SIGKILL)
            os.wait()


def _children() -> list[int]:
    lists = Path("/proc/self/task").glob("*/children")
    return [int(pid) for file in lists for pid in file.read_text().split()]


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
