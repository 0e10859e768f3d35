"""The newest view to an OpenTelemetry collector, by OTLP.

The exporter is the SDK's. The points are made here, of one view: an instrument of the SDK keeps every label that it has
ever seen, and merges all beyond 2,000 into one.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from typing import Any

import requests
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics.export import (
    MetricExportResult,
    MetricsData,
    ResourceMetrics,
    ScopeMetrics,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from offsetkeeper import __version__
from offsetkeeper.core.urls import shown_location
from offsetkeeper.errors import SettingsError
from offsetkeeper.monitor.metric_names import Detail
from offsetkeeper.monitor.otlp_points import metrics_of
from offsetkeeper.monitor.view import View

log = logging.getLogger(__name__)
_PROTOCOL, _OURS = "http/protobuf", "offsetkeeper"
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_METRICS_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_DEFAULT_ENDPOINT = "http://localhost:4318"
_INTERVAL = "OTEL_METRIC_EXPORT_INTERVAL"
_INTERVAL_MS = 60_000
_MOST_POINTS = 10_000  # in a request


class Otlp:
    """Sends the newest view at an interval, from a thread of its own, as the variables OTEL_… say.

    Args:
        newest: returns the newest view.
        detail: whether there are points of each partition, or of groups and their topics only.

    Raises:
        SettingsError: a variable is wrong.
    """

    def __init__(self, newest: Callable[[], View], detail: Detail) -> None:
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)  # its lines may have a header, and come each time
        name = next(filter(os.environ.get, _PROTOCOLS), "")
        if name and os.environ[name] != _PROTOCOL:
            raise SettingsError(f"{name} must be {_PROTOCOL}, or not be set: collectors listen for it on port 4318")
        name = next(filter(os.environ.get, _ENDPOINTS), "")
        self.endpoint = shown_location(os.environ.get(name) or _DEFAULT_ENDPOINT)
        if not os.environ.get(name, _DEFAULT_ENDPOINT).startswith(("http://", "https://")):
            raise SettingsError(f"{name} is {self.endpoint}: write http://host:4318 or https://host:4318")
        self._newest = newest
        self._detail = detail
        self._interval_s = _interval_ms() / 1000
        self._session = _Session(self._note)
        self._exporter = OTLPMetricExporter(session=self._session, max_export_batch_size=_MOST_POINTS)
        self._resource = _resource()
        self._stop = threading.Event()
        self._sent = (0, 0)
        self._told = self._answer = ""

    def start(self) -> None:
        """Begin to send."""
        threading.Thread(target=self._run, name="offsetkeeper-otlp", daemon=True).start()

    def stop(self) -> None:
        """Send no more; a try that waits for its turn ends."""
        self._stop.set()
        self._exporter.shutdown()

    def send(self) -> None:
        """Send the newest view, if there is a newer one than the last that was sent; log whether it was taken, once."""
        view = self._newest()
        now = view.number, view.at_ms  # an old view is told anew, as one whose poll hangs
        if view.number == 0 or now == self._sent:
            return
        self._answer, wrong = "there is no answer", ""
        try:
            taken = self._exporter.export(self._data(view)) is MetricExportResult.SUCCESS
        except Exception as error:  # noqa: BLE001 - the next one must still be sent
            taken, self._answer = False, type(error).__name__
        if taken:
            self._sent = now
        else:
            wrong = f"metrics are not taken at {self.endpoint}: {self._answer}"
        if wrong != self._told:
            log.warning("%s", wrong or f"metrics are taken at {self.endpoint} again")
            self._told = wrong

    def _run(self) -> None:
        while not self._stop.wait(self._interval_s):
            self.send()

    def _note(self, told: str) -> None:
        self._answer = told

    def _data(self, view: View) -> MetricsData:
        metrics = [*metrics_of(view, self._detail)]
        scope = ScopeMetrics(InstrumentationScope(_OURS, __version__), metrics, "")
        return MetricsData([ResourceMetrics(self._resource, [scope], "")])


class _Session(requests.Session):
    """Tells how each request ended: the SDK swallows it. It follows no redirect: a page of a login is no answer."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        super().__init__()
        self.max_redirects = 0
        self._tell = tell

    def send(self, request: requests.PreparedRequest, **words: Any) -> requests.Response:
        """See `requests.Session`."""
        try:
            found = super().send(request, **words)
        except Exception as error:
            self._tell(f"there is no answer ({type(error).__name__})")
            raise
        self._tell(f"it answered {found.status_code}")
        return found


def _resource() -> Resource:
    """Return who sends, as the variables say, without the command: it may have the store's URL."""
    found = Resource.create({"service.version": __version__})
    kept = {name: value for name, value in found.attributes.items() if not name.startswith("process.command")}
    if str(kept.get("service.name", "")).startswith("unknown_service"):
        kept["service.name"] = _OURS
    return Resource(kept, found.schema_url)


def _interval_ms() -> float:
    text = os.environ.get(_INTERVAL) or str(_INTERVAL_MS)
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not 100 <= found < 86_400_000:  # noqa: PLR2004 - a tenth of a second, a day
        raise SettingsError(f"{_INTERVAL} is {text!r}: give milliseconds between two exports, at least 100")
    return found
