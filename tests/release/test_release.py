"""What is released, as its users get it: built, checked, installed for each Python here, tried. `make release-check`.

It installs from a package index, so it runs only where OFFSETKEEPER_RELEASE is set; the environments are made anew.
"""

from __future__ import annotations

import email
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

import offsetkeeper
from docs.pages import ROOT, blocks
from offsetkeeper.testing.kafka import KafkaServer

pytestmark = [
    pytest.mark.skipif("OFFSETKEEPER_RELEASE" not in os.environ, reason="make release-check runs it"),
    pytest.mark.timeout(1800),
]
VERSIONS = ("3.11", "3.12", "3.13")
SESSION = """
from pyspark.sql import SparkSession

builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
spark = builder.config("spark.driver.host", "127.0.0.1").getOrCreate()
"""
RANGES = "orders 0 0 3"
READ = """
import sys
from offsetkeeper.readers import Source
from offsetkeeper.readers.consume import read

found = []
for native in ("required", "never"):
    source = Source(sys.argv[1], {"offsetkeeper.native": native}, "test", "read_committed", headers=True)
    found.append([row for batch in read(source, [("orders", 0, 0, 3)]) for row in batch.to_pylist()])
assert found[0] == found[1], found
print(len(found[0]))
"""


def python(version: str) -> str | None:
    """Return a Python of this version: of the path, or of pyenv; None where there is none."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    for found in (shutil.which(f"python{version}"), *map(str, sorted(pyenv.glob(f"{version}.*/bin/python")))):
        if found and subprocess.run([found, "--version"], capture_output=True, check=False).returncode == 0:
            return found
    return None


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the sdist."""
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-d", folder], cwd=ROOT, check=True)
    return folder


@pytest.fixture(scope="module")
def native(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist of the compiled reader, and the wheel that pip makes of it."""
    if not shutil.which(os.environ.get("CC", "cc")):
        pytest.skip("there is no C compiler here")
    folder = tmp_path_factory.mktemp("native")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(folder)]
    subprocess.run(build, cwd=ROOT / "native", check=True)
    [sdist] = folder.glob("*.tar.gz")
    subprocess.run([sys.executable, "-m", "pip", "--quiet", "wheel", "--no-deps", "-w", folder, sdist], check=True)
    return folder


@pytest.fixture(scope="module")
def orders(kafka_server: KafkaServer) -> str:
    """The topic of the page, with three records; returns the broker's address."""
    kafka_server.create_topic("orders", 1)
    producer = Producer({"bootstrap.servers": kafka_server.bootstrap})
    for item in ("tea", "milk", "sugar"):
        producer.produce("orders", item)
    assert producer.flush(30) == 0
    return kafka_server.bootstrap


def environment(folder: Path, interpreter: str, *packages: str) -> Path:
    """Return the folder of programs of a new environment with these packages."""
    subprocess.run([interpreter, "-m", "venv", folder], check=True)
    pip = [str(folder / "bin" / "python"), "-m", "pip", "--quiet", "--disable-pip-version-check", "install"]
    subprocess.run([*pip, *packages], check=True)
    return folder / "bin"


def check_metadata(built: Path, folder: Path) -> None:
    """Assert that an index takes what was built."""
    programs = environment(folder, sys.executable, "twine")
    command = [str(programs / "twine"), "check", "--strict", *map(str, built.iterdir())]
    checked = subprocess.run(command, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout


def files(built: Path) -> Iterator[str]:
    """Return the names of the files in the sdist, without the folder they are all in."""
    [sdist] = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        for member in archive.getmembers():
            yield member.name.partition("/")[2]


def test_metadata_and_long_description_are_what_an_index_takes(built: Path, tmp_path: Path) -> None:
    check_metadata(built, tmp_path / "twine")
    [wheel] = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        [name] = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        told = email.message_from_bytes(archive.read(name))
    assert (told["Name"], told["Version"]) == ("offsetkeeper", offsetkeeper.__version__)
    assert told["Requires-Python"] == ">=3.11"
    assert re.findall(r"\]\((?!https?://)[^)]*\)", str(told.get_payload())) == []  # an index has no files beside it
    section = "Unreleased" if ".dev" in offsetkeeper.__version__ else offsetkeeper.__version__
    assert f"\n## [{section}]" in (ROOT / "CHANGELOG.md").read_text("utf-8")


def test_wheel_and_sdist_have_the_package_and_nothing_else(built: Path) -> None:
    git = ["git", "ls-files", "src"]
    tracked = subprocess.run(git, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    package = {name.removeprefix("src/") for name in tracked.splitlines()}
    [wheel] = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert names == package
    others = {name for name in files(built) if name and not name.startswith("src/")}
    assert others == {".gitignore", "LICENSE", "PKG-INFO", "README.md", "hatch_build.py", "pyproject.toml"}
    assert {name.removeprefix("src/") for name in files(built) if name.startswith("src/")} == package


@pytest.mark.parametrize("version", VERSIONS)
def test_the_wheel_runs_the_first_pipeline(version: str, built: Path, orders: str, tmp_path: Path) -> None:
    interpreter = python(version)
    if interpreter is None:
        pytest.skip(f"there is no Python {version} here")
    [wheel] = built.glob("*.whl")
    programs = environment(tmp_path / "env", interpreter, f"{wheel}[spark]")
    code = "\n".join([SESSION, *blocks(ROOT / "docs" / "getting-started.md")]).replace("localhost:9092", orders)
    (tmp_path / "first.py").write_text(code, "utf-8")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_", "PYTHON"))}
    given = {**kept, "PYSPARK_PYTHON": str(programs / "python"), "SPARK_LOCAL_IP": "127.0.0.1"}

    def run(*command: str | Path) -> str:
        done = subprocess.run(
            command, cwd=tmp_path, env=given, capture_output=True, text=True, timeout=600, check=False
        )
        assert done.returncode == 0, f"{done.stdout[-2000:]} {done.stderr[-4000:]}"
        return done.stdout

    assert run(programs / "offsetkeeper", "--version").strip() == f"offsetkeeper {offsetkeeper.__version__}"
    assert RANGES in run(programs / "python", "first.py")
    assert "0 records behind" in run(
        programs / "offsetkeeper", "lag", "shop", "--store", "sqlite:///offsets.db", "--brokers", orders
    )


def test_the_compiled_reader_is_what_an_index_takes(native: Path, tmp_path: Path) -> None:
    check_metadata(native, tmp_path / "twine")
    others = {name for name in files(native) if name and not name.startswith("src/")}
    assert others == {".gitignore", "LICENSE", "PKG-INFO", "README.md", "hatch_build.py", "pyproject.toml"}
    [wheel] = native.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert names == {f"offsetkeeper_native/{name}" for name in ("__init__.py", "native.so", "producer.py", "py.typed")}


@pytest.mark.parametrize("client", ["confluent-kafka==2.6.0", "confluent-kafka==2.10.1", "confluent-kafka"])
def test_the_compiled_reader_reads_with_old_and_new_client_libraries(
    client: str, built: Path, native: Path, orders: str, tmp_path: Path
) -> None:
    [compiled], [wheel] = native.glob("*.whl"), built.glob("*.whl")
    programs = environment(tmp_path / "env", sys.executable, str(compiled), f"{wheel}[native]", client)
    command = [str(programs / "python"), "-c", READ, orders]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout == "3\n", done.stderr
