"""How long health and metrics of `offsetkeeper serve` take while 500 hostile clients do what they can.

    python benchmarks/crowd.py [--clients 500] [--partitions 1000] [--seconds 8] [--kinds "pipelines whole"]

The clients come from addresses of their own, a hundred from each, in a process of their own, and connect again whenever
they are let go. Each kind does one thing; see `KINDS`. The server has one group with a topic of so many partitions, of
a real broker. Each of our requests has a new connection. The server's own share of the processors, and its memory, are
read from the kernel. The crowd shares the processors with it.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import httpx

from lag import CALM, LargeServer
from monitor import Served, Site

_LIMIT_S = 60.0
_PAGE = "/groups/group-000?all"
_OF_ONE = 100  # clients of an address
_CALM_S = 0.2  # between two of our requests
Client = Callable[[asyncio.StreamReader, asyncio.StreamWriter, int], Awaitable[None]]


def request(path: str, more: bytes = b"") -> bytes:
    """Return a request."""
    return f"GET {path} HTTP/1.1\r\nhost: 127.0.0.1\r\n".encode() + more + b"\r\n"


async def pipelines(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> None:
    """Ask fifty times for a long page, and read nothing."""
    del reader, number
    writer.write(request(_PAGE) * 50)
    await writer.drain()
    await asyncio.sleep(_LIMIT_S)


async def halves(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> None:
    """Send half a request."""
    del number
    writer.write(request("/")[:-2])
    await reader.read()


async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> None:
    """Read a long page at 4 KB a second."""
    del number
    writer.write(request(_PAGE))
    while await reader.read(4096):  # noqa: ASYNC110 - the sleep is the client's pace
        await asyncio.sleep(1)


async def whole(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> None:
    """Read long pages as fast as possible."""
    del number
    writer.write(request(_PAGE, b"connection: close\r\n"))
    while await reader.read(1 << 20):
        pass


async def odd(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> None:
    """Ask for another page each time."""
    for each in itertools.count():
        writer.write(request(f"/groups/none-{number}-{each}"))
        if not await reader.read(1 << 20):
            return


async def connects(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> None:
    """Connect, and go."""
    del reader, writer, number


async def heads(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> None:
    """Send heads of 60 KB."""
    del number
    writer.write(request("/healthz", b"a: b\r\n" * 150 + b"cookie: " + b"x" * 55_000 + b"\r\nconnection: close\r\n"))
    await reader.read()


async def events(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> None:
    """Listen to events, or be told that too many do."""
    del number
    writer.write(request("/events"))
    while await reader.read(1 << 20):
        pass


async def metrics(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> None:
    """Scrape as fast as possible, on one connection."""
    del number
    while True:
        writer.write(request("/metrics"))
        if not await reader.read(1 << 22):
            return


KINDS: dict[str, Client] = {
    each.__name__: each for each in (pipelines, halves, slow, whole, odd, connects, heads, events, metrics)
}


async def come(kind: str, port: int, clients: int) -> None:
    """Be a crowd for ever."""

    async def again(number: int) -> None:
        here = f"127.0.1.{number // _OF_ONE + 1}"
        while True:
            with suppress(OSError, asyncio.TimeoutError):
                async with asyncio.timeout(_LIMIT_S):
                    reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(here, 0), limit=4096)
                    try:
                        await KINDS[kind](reader, writer, number)
                    finally:
                        writer.transport.abort()
            await asyncio.sleep(0)

    await asyncio.gather(*map(again, range(clients)))


def times(url: str, path: str, seconds: float) -> dict[str, Any]:
    """Return how long answers took, in milliseconds, each on a connection of its own."""
    found, failed, until = [], 0, time.monotonic() + seconds
    while time.monotonic() < until:
        began = time.perf_counter()
        try:
            httpx.get(url + path, timeout=_LIMIT_S, trust_env=False).raise_for_status()
            found.append((time.perf_counter() - began) * 1000)
        except httpx.HTTPError:
            failed += 1
        time.sleep(_CALM_S)
    middle, most = round(statistics.median(found)), round(max(found))
    return {"median_ms": middle, "most_ms": most, "failed": failed, "n": len(found)}


def measure(served: Served, kind: str, clients: int, seconds: float) -> dict[str, Any]:
    """Return what was measured with one kind of crowd; without a kind with none."""
    command = [sys.executable, __file__, "--crowd", kind, "--port", served.url.rpartition(":")[2]]
    crowd = subprocess.Popen([*command, "--clients", str(clients)]) if kind else None
    try:
        time.sleep(2 if kind else 0)  # so that they are all there
        began, cpu_s = time.monotonic(), served.cpu_s
        found = {path: times(served.url, path, seconds / 2) for path in ("/healthz", "/metrics")}
        share = (served.cpu_s - cpu_s) / (time.monotonic() - began)
        return {**found, "cpu_share": round(share, 2), "memory_mb": round(served.memory_mb)}
    finally:
        if crowd is not None:
            crowd.kill()
            crowd.wait()


def main() -> None:
    """Measure and print one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=500)
    parser.add_argument("--partitions", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--kinds", default=" ".join(KINDS))
    parser.add_argument("--crowd", default="", help="be a crowd of this kind")
    parser.add_argument("--port", type=int)
    chosen = parser.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    if chosen.crowd:
        asyncio.run(come(chosen.crowd, chosen.port, chosen.clients))
    with tempfile.TemporaryDirectory() as folder, LargeServer(settings=CALM) as server:
        site = Site(server, f"sqlite:///{folder}/offsets.db", 1, chosen.partitions)
        site.fill()
        served = Served(site, 5.0, "")
        try:
            found = {"nobody": measure(served, "", 0, chosen.seconds)}
            for kind in chosen.kinds.split():
                found[kind] = measure(served, kind, chosen.clients, chosen.seconds)
                print(json.dumps({kind: found[kind]}), file=sys.stderr)
        finally:
            served.close()
    print(json.dumps({"benchmark": "crowd", "clients": chosen.clients, "load": os.getloadavg()[1], **found}))


if __name__ == "__main__":
    main()
