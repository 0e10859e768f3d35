"""Sends alarms to a webhook: one POST of JSON for each, in order, tried again while the other side is away."""

from __future__ import annotations

import logging
import os
import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from urllib.parse import urlsplit

import httpx

from offsetkeeper.clients.web import open_client, way_of
from offsetkeeper.core.retry import retry
from offsetkeeper.core.tls import Tls, may_be_objection
from offsetkeeper.errors import OffsetkeeperError, SettingsError
from offsetkeeper.monitor.alerts import Notice
from offsetkeeper.monitor.outages import Outage

log = logging.getLogger(__name__)
MOST = 1_000
"""Notices that wait: of more, the oldest are dropped, with an error in the log."""
_CA, _HTTPS = "SSL_CERT_FILE", 443
_TOLD_AGAIN = {408, 425, 429, *range(500, 600)}


class _NotTaken(OffsetkeeperError):
    """The webhook did not take a notice, and may later. Its URL, often a secret, is not in the message."""


class Webhook:
    """Sends notices from a thread of its own.

    Args:
        url: of the webhook; secret, as whoever knows it may post there. Only its host is ever logged.
        dropped: called with each notice that is given up, from any thread; must not block.
        retry_timeout_s: how long a notice is tried before it is given up, with an error in the log.
        timeout_s: for each try.

    Raises:
        SettingsError: the URL is none.
    """

    def __init__(
        self,
        url: str,
        dropped: Callable[[Notice], None] = lambda _: None,
        *,
        retry_timeout_s: float = 600.0,
        timeout_s: float = 10.0,
    ) -> None:
        self.host = _host(url)
        self._url = url
        self._dropped = dropped
        self._retry_timeout_s = retry_timeout_s
        self._timeout_s = timeout_s
        self._notices: queue.Queue[Notice | Outage] = queue.Queue(MOST)
        logging.getLogger("httpx").setLevel(logging.WARNING)  # its lines for each request show the URL

    def __repr__(self) -> str:
        return f"Webhook({self.host!r})"

    def start(self) -> None:
        """Begin to send."""
        threading.Thread(target=self._run, name="offsetkeeper-webhook", daemon=True).start()

    def put(self, notice: Notice | Outage) -> None:
        """Have a notice sent after those before it. If too many wait, the oldest of them is dropped.

        One thread at a time may call it.
        """
        if self._notices.full():
            with suppress(queue.Empty):  # it was sent just now
                self._drop(self._notices.get_nowait(), f"more than {MOST:,} wait")
        self._notices.put(notice)

    def _run(self) -> None:
        while True:
            notice = self._notices.get()
            try:
                self._send(notice)
            except Exception as error:  # noqa: BLE001 - the next notice must still be sent
                self._drop(notice, _told(error))

    def _drop(self, notice: Notice | Outage, why: str) -> None:
        log.error("%s was not told to %s: %s", notice.as_dict()["text"], self.host, why)
        if isinstance(notice, Notice):  # an outage was told in the log, and its end is told anyway
            self._dropped(notice)

    def _send(self, notice: Notice | Outage) -> None:
        retry(_NotTaken, self._retry_timeout_s, lambda _: self._post(notice), first_s=0.2, longest_s=30.0)

    def _post(self, notice: Notice | Outage) -> None:
        with open_client(self._timeout_s) as client:
            request = client.build_request("POST", self._url, json=notice.as_dict())
            way = way_of(client, request)
            try:
                answer = client.send(request, stream=True)
                answer.close()  # its content is not read: it may have no end
            except httpx.TransportError as error:
                why = self._objection() if may_be_objection(str(error)) else ""
                raise _NotTaken(f"no answer ({why or type(error).__name__}{way})") from None
        if answer.status_code in _TOLD_AGAIN:
            raise _NotTaken(f"it answered {answer.status_code}{way}")
        if not answer.is_success:
            raise SettingsError(f"it answered {answer.status_code}: check the webhook's URL{way}")

    def _objection(self) -> str:
        """Return why the certificate is not accepted, or the empty text. The variables are those that httpx reads."""
        ca, folder = (os.environ.get(name, "") for name in (_CA, "SSL_CERT_DIR"))
        tls = Tls(_CA, ca=ca, folder="" if ca else folder)
        return tls.objection(self.host, urlsplit(self._url).port or _HTTPS)


def teller(url: str, dropped: Callable[[Notice], None]) -> Callable[[Notice | Outage], None]:
    """Return what sends notices; without a URL it sends none.

    Args:
        url: of the webhook.
        dropped: see `Webhook`.

    Raises:
        SettingsError: the URL is none.
    """
    if not url:
        return lambda _: None
    webhook = Webhook(url, dropped)
    webhook.start()
    return webhook.put


def _told(error: Exception) -> str:
    return str(error) if isinstance(error, OffsetkeeperError) else type(error).__name__


def _host(url: str) -> str:
    try:
        parts = urlsplit(url)
        host = parts.hostname
    except ValueError:
        host = None
    if not host or parts.scheme not in {"http", "https"}:
        raise SettingsError("the webhook of the alerts must be a URL that begins with http:// or https://")
    return host
