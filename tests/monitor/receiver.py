"""A small collector of OpenTelemetry's protocol over HTTP: it parses what comes by the protocol's own classes."""

from __future__ import annotations

import gzip
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple, Self

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)


class Point(NamedTuple):
    """A point: labels as they are, a number of its own type."""

    labels: dict[str, Any]
    value: int | float
    at_ms: int


class Got(NamedTuple):
    """One request: what sends it, its metrics by name with their unit and points, its path, headers and bytes."""

    resource: dict[str, Any]
    units: dict[str, str]
    points: dict[str, list[Point]]
    path: str
    headers: dict[str, str]
    body: bytes

    def value(self, name: str, **labels: Any) -> int | float | None:
        """The value of the point with these labels, if there is one."""
        found = [point.value for point in self.points.get(name, ()) if point.labels == labels]
        assert len(found) <= 1
        return found[0] if found else None


class Receiver:
    """Receives on a port of this machine; a context manager.

    Args:
        code: what it answers.
        port: 0 for a free one.
    """

    def __init__(self, code: int = 200, port: int = 0) -> None:
        self.code = code
        self.got: list[Got] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                if self.headers.get("content-encoding") == "gzip":
                    body = gzip.decompress(body)
                receiver.got.append(_parsed(self.path, {k.lower(): v for k, v in self.headers.items()}, body))
                answer = ExportMetricsServiceResponse().SerializeToString()
                self.send_response(receiver.code)
                self.send_header("content-type", "application/x-protobuf")
                self.send_header("content-length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.port = self._server.server_port
        self.endpoint = f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


def _parsed(path: str, headers: dict[str, str], body: bytes) -> Got:
    [sender] = ExportMetricsServiceRequest.FromString(body).resource_metrics
    units, points = {}, {}
    for scope in sender.scope_metrics:
        for metric in scope.metrics:
            assert metric.WhichOneof("data") == "gauge"
            units[metric.name] = metric.unit
            points[metric.name] = [
                Point(_labels(each.attributes), getattr(each, each.WhichOneof("value")), each.time_unix_nano // 10**6)
                for each in metric.gauge.data_points
            ]
    return Got(_labels(sender.resource.attributes), units, points, path, headers, body)


def _labels(pairs: Any) -> dict[str, Any]:
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in pairs}
