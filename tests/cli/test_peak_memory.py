"""What takes little room on a disk and much in memory, shown by processes of the commands: each has a stated bound."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from monitor import scene
from monitor.scene import Served
from offsetkeeper import Ledger, OffsetRange, Position, TopicPartition, open_store
from offsetkeeper.stores.folder import FolderStore
from offsetkeeper.testing.server import wait_until

LIMIT_S = 900  # of a process on a busy machine; it is there so that each has an end
MEGABYTES = 1_000
"""Of the largest ledger and the longest history; a process that has read none of them takes some 60."""
RUN = """
import re, sys
from pathlib import Path
from offsetkeeper.cli.main import main
try:
    main()
finally:
    sys.stderr.write("\\npeak " + re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1])
"""
NOWHERE = "127.0.0.1:9"


def peak_of(*arguments: str) -> tuple[int, str]:
    """Run a command, and return its peak of memory in megabytes, and what it said."""
    made = subprocess.run(
        [sys.executable, "-c", RUN, *arguments], capture_output=True, check=False, text=True, timeout=LIMIT_S
    )
    said, _, peak = made.stderr.rpartition("\npeak ")
    assert "Traceback" not in said
    return int(peak) // 1024, made.stdout + said


def edited(folder: Path, edit: Callable[[str], str]) -> str:
    """Return the URL of a store with a group `big` and another one; the newest file of the first is edited, or each."""
    url = f"file://{folder}"
    with closing(open_store(url)) as store:
        assert isinstance(store, FolderStore)
        store.init()
        for group in ("big", "small"):
            ledger = Ledger(store, group)
            ledger.acquire("start")
            ledger.place({TopicPartition("orders", 0): Position(0)})
            for offset in range(6):
                ledger.commit(ledger.batch([OffsetRange("orders", 0, offset, offset + 1)]))
    for path in sorted((folder / "big").iterdir())[0 if edit is with_reasons else -1 :]:
        path.write_text(edit(path.read_text("utf-8")), "utf-8")
    return url


def with_positions(text: str) -> str:
    """Return a ledger of three million positions."""
    many = ",".join(f'"{number}":0' for number in range(3_000_000))
    return re.sub('"offsets":{"orders":{[^}]*}}', f'"offsets":{{"orders":{{{many}}}}}', text)


def with_objects(text: str) -> str:
    """Return a ledger of millions of small objects, which take most for their length."""
    nested = '{"a":' * 90 + "1" + "}" * 90 + ","
    return text.replace('"landed":{', f'"landed":{{"":[{nested * 43_000}0]')


def with_reasons(text: str) -> str:
    """Return a ledger with a reason of fifty megabytes."""
    return re.sub('"reason":"[^"]*"', f'"reason":"{"why " * 12_500_000}"', text)


LEDGERS = {"positions": with_positions, "objects": with_objects, "reasons": with_reasons}


@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("what", LEDGERS)
def test_a_ledger_of_forty_megabytes_does_not_take_all_memory(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It took 3 GB and 48 s to show one, and 0.9 GB to serve one."""
    monkeypatch.setattr(scene, "LIMIT_S", LIMIT_S)
    url, right = edited(tmp_path, LEDGERS[what]), what == "reasons"
    assert sum(path.stat().st_size for path in (tmp_path / "big").iterdir()) > (400_000_000 if right else 20_000_000)
    for command in ("show", "history"):
        peak, said = peak_of(command, "big", "--store", url)
        assert ("Nothing was changed: correct or delete that record" in said) is not right, said[:500]
        assert peak < MEGABYTES, command
    if what == "objects":
        return  # each poll takes twelve seconds of CPU, and a poll does not read them in another way
    with Served(url, NOWHERE) as server:
        server.client.headers["Connection"] = "close"  # else one is closed as idle, while a poll parses
        wait_until(lambda: server.json("/api/health")["look"] > 2, "there were looks", LIMIT_S)
        named = {each["group"]: each["error"] for each in server.json("/api/groups")}
        assert [bool(named[group]) for group in ("big", "small")] == [not right, False]
        pages = "".join(server.text(f"/groups/{group}") for group in ("big", "small"))
        status = Path(f"/proc/{server.pid}/status").read_text("utf-8")
    assert len(pages) < 1_000_000
    assert int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) // 1024 < MEGABYTES  # type: ignore[index]


@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("folder", ["offsets", "state/0/0"])
def test_two_hundred_thousand_files_of_a_checkpoint_do_not_take_all_memory(folder: str, tmp_path: Path) -> None:
    """Of the state they are names; as logs they would all be read."""
    logs = {"metadata": '{"id":"8a1b3c4d-1111-2222-3333-444455556666"}'}
    logs |= {f"offsets/{n}": f'v1\n{{}}\n{{"orders":{{"0":{n}}}}}' for n in range(3)}
    for name, content in (logs | {f"commits/{n}": "v1\n{}" for n in range(3)} | {f"{folder}/x": ""}).items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content, "utf-8")
    opened = os.open(tmp_path / folder, os.O_RDONLY)
    for number in range(3, 200_000):
        os.close(os.open(f"{number}{'' if folder == 'offsets' else '.delta'}", os.O_CREAT | os.O_WRONLY, dir_fd=opened))
    os.close(opened)
    peak, said = peak_of("checkpoint", "inspect", str(tmp_path))
    assert ("logs, more than 100,000," if folder == "offsets" else "next: batch 3") in said
    assert peak < MEGABYTES // 3
