"""A real catalog of Iceberg that speaks REST: the reference server of its own tests, over a catalog in SQLite."""

from __future__ import annotations

import http.client
from collections.abc import Mapping
from contextlib import closing
from xml.sax.saxutils import escape

from offsetkeeper.testing.artifacts import fetch_jars
from offsetkeeper.testing.java import LOG4J2, java_command, spark_jars
from offsetkeeper.testing.process import ServerProcess
from offsetkeeper.testing.server import Server

# Jetty makes what is written here; Iceberg's own main class listens on every address.
_JETTY = """<?xml version="1.0"?>
<!DOCTYPE Configure PUBLIC "-//Jetty//Configure//EN" "https://www.eclipse.org/jetty/configure_10_0.dtd">
<Configure id="server" class="org.eclipse.jetty.server.Server">
  <Arg><New class="java.net.InetSocketAddress">
    <Arg type="String">127.0.0.1</Arg><Arg type="int">{port}</Arg>
  </New></Arg>
  <Call id="catalog" class="org.apache.iceberg.CatalogUtil" name="buildIcebergCatalog">
    <Arg>lake</Arg>
    <Arg><Map>{settings}</Map></Arg>
    <Arg><New class="org.apache.hadoop.conf.Configuration"/></Arg>
  </Call>
  <Set name="handler"><New class="org.eclipse.jetty.servlet.ServletContextHandler"><Call name="addServlet">
    <Arg><New class="org.eclipse.jetty.servlet.ServletHolder">
      <Arg><New class="org.apache.iceberg.rest.RESTCatalogServlet">
        <Arg><New class="org.apache.iceberg.rest.RESTCatalogAdapter"><Arg><Ref refid="catalog"/></Arg></New></Arg>
      </New></Arg>
    </New></Arg>
    <Arg>/*</Arg>
  </Call></New></Set>
</Configure>
"""
_REQUEST_S = 20
_OF_SPARK = ("hadoop-client-api-*", "hadoop-client-runtime-*", "jackson-*", "slf4j-api-*", "log4j-*", "avro-1*")


class IcebergServer(Server):
    """A catalog without namespaces, as a context manager; its data is deleted at the end.

    Its tables are in files of this machine, in the folder `warehouse`.

    Args:
        settings: properties of the catalog to add or change.
        progress: called with a line of text when its jars have to be fetched.
    """

    name = "iceberg"

    def properties(self, *, port: int | None = None) -> Mapping[str, str]:
        """Return the properties of a catalog of pyiceberg that speaks with it.

        Args:
            port: of a proxy in front of the server; by default the server's own.
        """
        return {"type": "rest", "uri": f"http://127.0.0.1:{port or self.port}"}

    def _prepare(self) -> None:
        warehouse = self.folder / "warehouse"
        warehouse.mkdir()
        settings = {
            "catalog-impl": "org.apache.iceberg.jdbc.JdbcCatalog",
            "uri": f"jdbc:sqlite:{self.folder / 'catalog.db'}",
            "jdbc.schema-version": "V1",
            "warehouse": warehouse.as_uri(),
            **self._settings,
        }
        pairs = (f"<Entry><Item>{escape(k)}</Item><Item>{escape(v)}</Item></Entry>" for k, v in settings.items())
        (self.folder / "server.xml").write_text(_JETTY.format(port=self.port, settings="".join(pairs)), "utf-8")
        (self.folder / "log4j2.xml").write_text(LOG4J2, "utf-8")

    def _run(self) -> ServerProcess:
        jars = [*fetch_jars("iceberg", self._progress), *spark_jars(*_OF_SPARK)]
        options = [f"-Dlog4j2.configurationFile={self.folder / 'log4j2.xml'}"]
        arguments = ["org.eclipse.jetty.xml.XmlConfiguration", str(self.folder / "server.xml")]
        return ServerProcess(java_command(jars, *arguments, options=options), folder=self.folder)

    def _serves(self) -> bool:
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=_REQUEST_S)) as connection:
            try:
                connection.request("GET", "/v1/config")
                return connection.getresponse().status == http.HTTPStatus.OK
            except (OSError, http.client.HTTPException):
                return False
