"""A real S3 server over a folder: S3Proxy, which does conditional writes by hard links, and keeps them when killed."""

from __future__ import annotations

import contextlib
import secrets
from typing import Any
from urllib.parse import quote

from offsetkeeper.testing.artifacts import fetch_jars
from offsetkeeper.testing.java import java_command, properties
from offsetkeeper.testing.process import ServerProcess
from offsetkeeper.testing.server import Server, client_library

KEY, SECRET = "offsetkeeper", "s3cret/+@:"
_REQUEST = 20
_LOGBACK = """<configuration><appender name="out" class="ch.qos.logback.core.ConsoleAppender">
<encoder><pattern>%d %p %c: %m%n</pattern></encoder></appender>
<root level="WARN"><appender-ref ref="out"/></root></configuration>"""


class S3Server(Server):
    """A server with no buckets but `ready`, as a context manager; its data is deleted at the end.

    Its only user has the access key `KEY` and the secret key `SECRET`.

    Args:
        settings: of S3Proxy to add or change.
        progress: called with a line of text when its jars have to be fetched.
    """

    name = "s3"

    def url(self, bucket: str, prefix: str = "", *, port: int | None = None) -> str:
        """Return the URL of a store, `s3://KEY:SECRET@BUCKET/PREFIX?endpoint_url=http://127.0.0.1:PORT`.

        Args:
            bucket: its name.
            prefix: of all keys.
            port: of a proxy in front of the server; by default the server's own.
        """
        endpoint = f"http://127.0.0.1:{port or self.port}"
        return f"s3://{KEY}:{quote(SECRET, safe='')}@{bucket}/{prefix}?endpoint_url={endpoint}&region=us-east-1"

    def client(self) -> Any:
        """Return a new boto3 client of the server, which tries each request once."""
        boto3, config = client_library("boto3", "s3"), client_library("botocore.config", "s3")
        once = config.Config(
            retries={"total_max_attempts": 1}, connect_timeout=_REQUEST, read_timeout=_REQUEST, max_pool_connections=20
        )
        keys = {"aws_access_key_id": KEY, "aws_secret_access_key": SECRET}
        endpoint = f"http://127.0.0.1:{self.port}"
        return boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1", config=once, **keys)

    def create_bucket(self) -> str:
        """Create an empty bucket under a random name; return the name."""
        name = f"test-{secrets.token_hex(6)}"
        self.client().create_bucket(Bucket=name)
        return name

    def _prepare(self) -> None:
        data = self.folder / "data"
        data.mkdir()
        settings = {
            "s3proxy.endpoint": f"http://127.0.0.1:{self.port}",
            "s3proxy.authorization": "aws-v2-or-v4",
            "s3proxy.identity": KEY,
            "s3proxy.credential": SECRET,
            "jclouds.provider": "filesystem",
            "jclouds.filesystem.basedir": str(data),
            **self._settings,
        }
        (self.folder / "s3proxy.properties").write_text(properties(settings), "utf-8")
        (self.folder / "logback.xml").write_text(_LOGBACK, "utf-8")

    def _run(self) -> ServerProcess:
        jars = fetch_jars("s3proxy", self._progress)
        options = [f"-Dlogback.configurationFile={self.folder / 'logback.xml'}"]
        arguments = ["org.gaul.s3proxy.Main", "--properties", str(self.folder / "s3proxy.properties")]
        return ServerProcess(java_command(jars, *arguments, options=options), folder=self.folder)

    def _serves(self) -> bool:
        from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415 - a client library, loaded on use

        client = self.client()
        try:
            with contextlib.suppress(client.exceptions.BucketAlreadyOwnedByYou):
                client.create_bucket(Bucket="ready")
            client.put_object(Bucket="ready", Key="ready", Body=b"")
        except (BotoCoreError, ClientError):
            return False
        return True
