"""A real HDFS: a NameNode and a DataNode, from one jar and the jars of Spark."""

from __future__ import annotations

import getpass
import zipfile
from collections.abc import Mapping

from offsetkeeper.testing.artifacts import Progress, fetch_jars
from offsetkeeper.testing.errors import ServerError
from offsetkeeper.testing.java import LOG4J2, hadoop_xml, java_command, spark_jars
from offsetkeeper.testing.process import ServerProcess, run_to_end
from offsetkeeper.testing.server import Server, free_port

_LIMIT = 60
_REQUEST = 5
_SPARKS_JARS = [
    *("hadoop-client-api-*", "hadoop-client-runtime-*", "log4j-api-*", "log4j-core-*", "log4j-slf4j2-impl-*"),
    *("slf4j-api-*", "jcl-over-slf4j-*"),
]
# Small, quick to start, and quick to know that the other one is back.
_SETTINGS = {
    "dfs.replication": "1",
    "dfs.permissions.enabled": "true",
    "dfs.namenode.safemode.extension": "0",
    "dfs.namenode.safemode.min.datanodes": "1",
    "dfs.heartbeat.interval": "1",
    "dfs.namenode.heartbeat.recheck-interval": "30000",  # a busy machine must not look like a dead DataNode
    "dfs.blockreport.initialDelay": "0",
    "dfs.datanode.directoryscan.interval": "-1",
    "dfs.datanode.hostname": "127.0.0.1",
    "dfs.client.block.write.locateFollowingBlock.initial.delay.ms": "5",  # else each file waits for a third of a second
}


class HDFSServer(Server):
    """A cluster of two processes with no files but `/ready`, as a context manager; its data is deleted at the end.

    `kill`, `stop`, `restart`, `pause` and `resume` are the NameNode's; the DataNode goes on and finds it again.

    Args:
        settings: of hdfs-site.xml, to add or change.
        progress: called with a line of text when its jar has to be fetched.
    """

    name = "hdfs"

    def __init__(self, *, settings: Mapping[str, str] | None = None, progress: Progress | None = None) -> None:
        super().__init__(settings=settings, progress=progress)
        self._ports = [free_port() for _ in range(4)]
        self._data: ServerProcess | None = None

    @property
    def http(self) -> str:
        """Where the NameNode speaks HTTP, `http://127.0.0.1:PORT`."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def rpc(self) -> str:
        """Where the NameNode speaks Hadoop's own protocol, as Spark does, `hdfs://127.0.0.1:PORT`."""
        return f"hdfs://127.0.0.1:{self._ports[0]}"

    def url(self, folder: str, *, user: str = "hdfs", port: int | None = None) -> str:
        """Return the URL of a store, `webhdfs://USER@127.0.0.1:PORT/FOLDER`.

        Args:
            folder: its path without the first slash.
            user: name of the user; `hdfs` by default, who may not do more than others.
            port: of a proxy in front of the NameNode; by default its own.
        """
        return f"webhdfs://{user}@127.0.0.1:{port or self.port}/{folder}"

    def make_folder(self, path: str, permission: str = "777") -> None:
        """Make a folder, by default one that everybody may do anything in.

        Args:
            path: without the first slash.
            permission: in octal digits.

        Raises:
            ServerError: HDFS refused.
        """
        import httpx  # noqa: PLC0415 - a client library, loaded on use

        # Who runs this runs HDFS too, and so may do anything there.
        where = {"op": "MKDIRS", "permission": permission, "user.name": getpass.getuser()}
        answer = httpx.put(f"{self.http}/webhdfs/v1/{path}", params=where, timeout=_LIMIT)
        if not answer.is_success:
            raise ServerError(f"HDFS did not make the folder {path}: {answer.text}")

    def close(self) -> None:
        """Kill both and delete their data."""
        if self._data:
            self._data.kill()
            self._data = None
        super().close()

    def _prepare(self) -> None:
        for name in ("conf", "tmp", "datanode"):
            (self.folder / name).mkdir()
        rpc, data, http, ipc = (f"127.0.0.1:{port}" for port in self._ports)
        settings = {
            **_SETTINGS,
            "fs.defaultFS": f"hdfs://{rpc}",
            "dfs.namenode.rpc-address": rpc,
            "dfs.namenode.http-address": f"127.0.0.1:{self.port}",
            "dfs.namenode.name.dir": f"file://{self.folder}/name",
            "dfs.datanode.data.dir": f"file://{self.folder}/blocks",
            "dfs.datanode.address": data,
            "dfs.datanode.http.address": http,
            "dfs.datanode.ipc.address": ipc,
            **self._settings,
        }
        for name in ("core-site.xml", "hdfs-site.xml"):
            (self.folder / "conf" / name).write_text(hadoop_xml(settings), "utf-8")
        (self.folder / "conf" / "log4j2.xml").write_text(LOG4J2, "utf-8")
        [jar] = fetch_jars("hdfs", self._progress)
        with zipfile.ZipFile(jar) as archive:  # else Jetty looks through all of the jar for them, which takes seconds
            wanted = ("webapps/hdfs/", "webapps/datanode/", "webapps/static/")
            archive.extractall(self.folder / "conf", [n for n in archive.namelist() if n.startswith(wanted)])
        command = self._java("namenode.NameNode", "-format", "-force", "-nonInteractive")
        run_to_end(command, "HDFS could not be formatted")

    def _run(self) -> ServerProcess:
        names = ServerProcess(self._java("namenode.NameNode"), folder=self.folder)
        if self._data is None or not self._data.alive():
            self._data = ServerProcess(self._java("datanode.DataNode"), folder=self.folder / "datanode")
        return names

    def _java(self, program: str, *arguments: str) -> list[str]:
        jars = [self.folder / "conf", *fetch_jars("hdfs", self._progress), *spark_jars(*_SPARKS_JARS)]
        # Jetty unpacks into the folder for temporary files, and a killed one does not tidy up.
        options = [f"-Djava.io.tmpdir={self.folder / 'tmp'}"]
        return java_command(jars, f"org.apache.hadoop.hdfs.server.{program}", *arguments, options=options)

    def _serves(self) -> bool:
        import httpx  # noqa: PLC0415 - a client library, loaded on use

        place = f"{self.http}/webhdfs/v1/ready"
        where = {"op": "CREATE", "overwrite": "true", "user.name": getpass.getuser(), "noredirect": "true"}
        try:
            with httpx.Client(timeout=_REQUEST) as client:
                first = client.put(place, params=where)
                return first.is_success and client.put(first.json()["Location"], content=b"").is_success
        except httpx.HTTPError:
            return False
