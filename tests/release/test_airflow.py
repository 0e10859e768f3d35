"""The DAG of the page on scheduled jobs in a real Airflow, which is installed apart. `make release-check`.

It asserts on the states of the tasks, as an operator of Airflow sees them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Producer

from docs.pages import ROOT, blocks
from docs.test_scheduled import DAG
from offsetkeeper import Ledger, open_store
from offsetkeeper.testing.kafka import KafkaServer

pytestmark = [
    pytest.mark.skipif("OFFSETKEEPER_RELEASE" not in os.environ, reason="make release-check runs it"),
    pytest.mark.timeout(1800),
]
AIRFLOW = "apache-airflow==3.3.*"
PROGRAM = """
import sys
from pyspark.sql import SparkSession

{job}
builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
sys.exit(job(builder.config("spark.driver.host", "127.0.0.1").getOrCreate()))
"""


@pytest.fixture(scope="module")
def airflow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the programs of an Airflow of its own."""
    folder = tmp_path_factory.mktemp("airflow") / "env"
    venv.create(folder, with_pip=True)
    command = [str(folder / "bin" / "pip"), "install", "--quiet", AIRFLOW, "apache-airflow-providers-standard"]
    subprocess.run(command, check=True, timeout=1200)
    return folder / "bin"


@pytest.fixture
def states(airflow: Path, tmp_path: Path, kafka_server: KafkaServer) -> Callable[[str], dict[str, str]]:
    """Runs the DAG of a program, and returns the state of each task."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "AIRFLOW"))}
    environment = kept | {
        "AIRFLOW_HOME": str(tmp_path / "home"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__DAGS_FOLDER": str(tmp_path / "dags"),
        "OFFSETKEEPER_STORE": f"sqlite:///{tmp_path}/offsets.db",
        "OFFSETKEEPER_BROKERS": kafka_server.bootstrap,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYSPARK_PYTHON": sys.executable,
    }
    (tmp_path / "dags").mkdir()
    dag = DAG.replace(" app.py", f" {tmp_path}/app.py").replace(" report.py", f" {tmp_path}/report.py")
    (tmp_path / "dags" / "orders.py").write_text(
        dag.replace("timeout=3600", "timeout=5").replace("=60", "=1").replace("retries=3", "retries=0"), "utf-8"
    )
    (tmp_path / "report.py").write_text("print('reported')\n", "utf-8")

    def asked(*command: str) -> list[dict[str, str]]:
        """What a command lists; lines of its log come before."""
        command = (str(airflow / "airflow"), *command, "-o", "json")
        said = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
        found: list[dict[str, str]] = json.loads(said[said.index("[{") :])
        return found

    def run(program: str) -> dict[str, str]:
        (tmp_path / "app.py").write_text(program, "utf-8")
        for command in (["db", "migrate"], ["dags", "reserialize"], ["dags", "test", "orders"]):
            subprocess.run([airflow / "airflow", *command], env=environment, cwd=tmp_path, check=False, timeout=300)
        runs = asked("dags", "list-runs", "orders")
        newest = max(runs, key=lambda each: str(each["start_date"]))["run_id"]
        found = asked("tasks", "states-for-dag-run", "orders", newest)
        return {each["task_id"]: each["state"] for each in found}

    return run


def test_the_dag_reads_waits_and_reports(
    kafka_server: KafkaServer, states: Callable[[str], dict[str, str]], tmp_path: Path
) -> None:
    """Then the program is fenced: it is skipped, and the wait goes on, to the end of what the group has."""
    kafka_server.create_topic("orders", 1)
    producer = Producer({"bootstrap.servers": kafka_server.bootstrap})
    for _ in range(3):
        producer.produce("orders", b"x")
    assert producer.flush(30) == 0
    store = f"sqlite:///{tmp_path}/offsets.db"
    [block] = [block for block in blocks(ROOT / "docs" / "scheduled.md") if "def job" in block]
    job = (
        block.partition("\nassert ")[0]
        .replace("localhost:9092", kafka_server.bootstrap)
        .replace("sqlite:///offsets.db", store)
        .replace('"hourly"', '"orders"')
    )
    good = PROGRAM.format(job=job)
    assert states(good) == {"read": "success", "wait": "success", "report": "success"}
    ledger = Ledger(open_store(store), "orders")
    assert [at.offset for at in ledger.load().positions.values()] == [3]
    producer.produce("orders", b"x")
    assert producer.flush(30) == 0
    rival = f'from offsetkeeper import Ledger, open_store; Ledger(open_store("{store}"), "orders").acquire()'
    fenced = good.replace("    orders.count()", f"    {rival}")
    assert fenced != good
    assert states(fenced) == {"read": "skipped", "wait": "failed", "report": "upstream_failed"}
    assert [at.offset for at in ledger.load().positions.values()] == [3]
