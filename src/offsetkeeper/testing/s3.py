"""A real S3 server over a folder: S3Proxy, which does conditional writes by hard links, and keeps them when killed."""

from __future__ import annotations

import contextlib
import secrets
from typing import Any
from urllib.parse import quote

from offsetkeeper.testing.artifacts import Progress, fetch_jars
from offsetkeeper.testing.errors import ToolMissing
from offsetkeeper.testing.java import java
from offsetkeeper.testing.process import ServerProcess
from offsetkeeper.testing.server import Server

KEY, SECRET = "offsetkeeper", "s3cret/+@:"
_REQUEST = 20
_LOGBACK = """<configuration><appender name="out" class="ch.qos.logback.core.ConsoleAppender">
<encoder><pattern>%d %p %c: %m%n</pattern></encoder></appender>
<root level="WARN"><appender-ref ref="out"/></root></configuration>"""


class S3Server(Server):
    """A server with no buckets but `ready`, as a context manager; its data is deleted at the end.

    Its only user has the access key `KEY` and the secret key `SECRET`.

    Args:
        progress: called with a line of text when its jars have to be fetched.
    """

    name = "s3"

    def __init__(self, *, progress: Progress | None = None) -> None:
        super().__init__()
        self._progress = progress

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
        try:
            import boto3  # noqa: PLC0415 - a client library, loaded on use
            from botocore.config import Config  # noqa: PLC0415
        except ImportError as error:
            raise ToolMissing("boto3 is needed: pip install 'offsetkeeper[s3]'") from error
        config = Config(
            retries={"total_max_attempts": 1}, connect_timeout=_REQUEST, read_timeout=_REQUEST, max_pool_connections=20
        )
        keys = {"aws_access_key_id": KEY, "aws_secret_access_key": SECRET}
        endpoint = f"http://127.0.0.1:{self.port}"
        return boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1", config=config, **keys)

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
        }
        lines = "".join(f"{key}={value}\n" for key, value in settings.items())
        (self.folder / "s3proxy.properties").write_text(lines, "utf-8")
        (self.folder / "logback.xml").write_text(_LOGBACK, "utf-8")

    def _run(self) -> ServerProcess:
        jars = fetch_jars("s3proxy", self._progress)
        options = ["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        options += [f"-Dlogback.configurationFile={self.folder / 'logback.xml'}", "-cp", ":".join(map(str, jars))]
        arguments = ["org.gaul.s3proxy.Main", "--properties", str(self.folder / "s3proxy.properties")]
        return ServerProcess([str(java()), *options, *arguments], folder=self.folder)

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
