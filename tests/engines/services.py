"""Services that the functions of users write into."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import TYPE_CHECKING, Any

import requests

from offsetkeeper import Batch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SECRET = "T0-B0-x9kQ"
OK, UNUSABLE = 200, 422


class NoAnswer(Exception):
    """What the client of a service raises, of which nobody knows what it means."""


@dataclass
class Service:
    """A service that takes one record in each request.

    Attributes:
        away: numbers of the requests that get no answer.
        taken: the offsets that it has got.
        asked: requests so far.
    """

    away: Sequence[int] = ()
    taken: list[int] = field(default_factory=list)
    asked: int = 0

    def __call__(self, frame: DataFrame, _: Batch) -> None:
        """Write a batch: the function of a pipeline."""
        for offset, value in sorted(frame.selectExpr("offset", "string(value)").collect()):
            self._post(offset, value)

    def _post(self, offset: int, value: str) -> None:
        self.asked += 1
        if self.asked in self.away:
            raise NoAnswer
        if value == "bad":
            raise ValueError("this record cannot be used")
        self.taken.append(offset)


class Web(HTTPServer):
    """A web service on loopback that takes the offset of a record in each request.

    Attributes:
        answers: the statuses of its first answers; of a status of 0 it hangs up. After these, all is well.
        refused: an offset that it cannot use.
        taken: the offsets that it has got.
    """

    refused = -1

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.answers: list[int] = []
        self.taken: list[int] = []

    @property
    def url(self) -> str:
        """Its address, with secrets."""
        return f"http://127.0.0.1:{self.server_port}/services/{SECRET}?api_key={SECRET}"


class Answer(BaseHTTPRequestHandler):
    """An answer of `Web`."""

    server: Web

    def do_POST(self) -> None:
        """Take an offset, or do not."""
        offset = int(self.rfile.read(int(self.headers["Content-Length"])))
        status = self.server.answers.pop(0) if self.server.answers else OK
        status = UNUSABLE if offset == self.server.refused else status
        if status == OK:
            self.server.taken.append(offset)
        if status:
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


def poster(url: str) -> Callable[[Any], None]:
    """Return a function that posts the offset of a row as users do; Spark ships it by its code."""

    def post(row: Any) -> None:
        requests.post(url, data=str(row["offset"]), timeout=20).raise_for_status()

    return post


def from_driver(url: str) -> Callable[[DataFrame, Batch], None]:
    """Return a function that posts each record from the driver."""

    def write(frame: DataFrame, _: Batch) -> None:
        for row in frame.select("offset").collect():
            poster(url)(row)

    return write


def from_tasks(url: str) -> Callable[[DataFrame, Batch], None]:
    """Return a function that posts each record from a task."""
    return lambda frame, _: frame.select("offset").foreach(poster(url))
