"""A certificate that only tasks do not accept: nothing lands, and no record goes into the dead letters.

Of a Topic see kafka/test_kafka_tls.py, of MySQL servers/test_tls.py.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from engines.changed_files import Changed
from engines.lab import Lab
from engines.misfits import KINDS
from fixtures.certificates import Certificates
from fixtures.tls_gate import TlsGate, after_postgresql_asks
from offsetkeeper.sinks import Cassandra, Table

NewTopic = Callable[..., str]


@pytest.mark.usefixtures("all_staged")  # else no task asks the server
def test_tasks_that_write_a_table_of_postgresql(
    lab: Lab, topic: NewTopic, request: pytest.FixtureRequest, certificates: Certificates, tmp_path: Path
) -> None:
    made, database = KINDS["PostgreSQL"](lab, request, tmp_path), request.getfixturevalue("database")
    file = tmp_path / "ca.pem"
    file.write_bytes(certificates.ca.read_bytes())
    port = request.getfixturevalue("postgresql_server").port
    with TlsGate(certificates.right, port, after_postgresql_asks) as gate:
        sink = Table(f"{database.replace(f':{port}/', f':{gate.port}/')}?sslrootcert={file}", "orders")
        Changed(sink, "sslrootcert", file, tuple(made.fits), made.rows).check(lab, topic(), certificates.foreign)


@pytest.mark.xdist_group("test_cassandra")
def test_tasks_that_write_a_table_of_cassandra(
    lab: Lab, topic: NewTopic, request: pytest.FixtureRequest, certificates: Certificates, tmp_path: Path
) -> None:
    made = KINDS["Cassandra"](lab, request, tmp_path)
    file = tmp_path / "ca.pem"
    file.write_bytes(request.getfixturevalue("cassandra_certificate").read_bytes())
    keyspace = made.sink.place.split()[0].rpartition("/")[2]
    url = request.getfixturevalue("cassandra_server").url(keyspace)
    sink = Cassandra(f"{url}?ssl_ca={file}", "orders", key=["topic", "place"])
    Changed(sink, "ssl_ca", file, tuple(made.fits), made.rows).check(lab, topic(), certificates.foreign)
