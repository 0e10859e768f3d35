"""Other releases of Spark, each in an environment of its own beside the jars that tests fetch."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

from checkpoints.queries import Batches, produce
from offsetkeeper.testing.artifacts import cache_folder, fetch_jars
from offsetkeeper.testing.kafka import KafkaServer

VERSIONS = ("4.0.1", "4.1.3")
KINDS = ("plain", "counting", "rocks")
WRITTEN = Path(__file__).with_name("written_by")
TOPIC = "orders"
_LIMIT_S = 200


def environment(version: str) -> Path:
    """Return the Python that has this release of pyspark; it is installed by pip at the first call."""
    folder = cache_folder() / f"pyspark-{version}"
    python, ready = folder / "bin" / "python", folder / "ready"
    if not ready.exists():
        venv.create(folder, with_pip=True, clear=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", f"pyspark=={version}"], check=True)
        ready.touch()
    return python


def run(version: str, kind: str, checkpoint: Path, brokers: str) -> Batches:
    """Run a query until all is read, by a Spark of this release; return what `Queries.run` does."""
    jars = ",".join(map(str, fetch_jars(f"connector-{version}")))
    python = environment(version)
    command = [str(python), str(WRITTEN / "query.py"), kind, str(checkpoint), brokers, TOPIC, jars]
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_", "PYTHON"))}
    found = {**kept, "PYSPARK_PYTHON": str(python), "SPARK_LOCAL_IP": "127.0.0.1"}
    done = subprocess.run(command, env=found, capture_output=True, text=True, timeout=_LIMIT_S, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    batches = json.loads(done.stdout.splitlines()[-1])
    return {int(number): [tuple(row) for row in rows] for number, rows in batches.items()}


def main() -> None:
    """Write the checkpoints of `written_by` anew."""
    with KafkaServer() as server:
        server.create_topic(TOPIC, 2)
        produce(server, TOPIC, 6)
        for version in VERSIONS:
            for kind in KINDS:
                path = WRITTEN / version / kind
                shutil.rmtree(path, ignore_errors=True)
                sys.stdout.write(f"{version} {kind} {run(version, kind, path, server.bootstrap)}\n")


if __name__ == "__main__":
    main()
