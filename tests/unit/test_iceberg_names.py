"""What is used of pyiceberg that it does not promise: another release may not have it."""

from __future__ import annotations

import re
from pathlib import Path

import pyiceberg
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.catalog.rest.auth import OAuth2TokenProvider
from pyiceberg.io import pyarrow
from pyiceberg.table.update.snapshot import _SnapshotProducer

from offsetkeeper.sinks.iceberg.catalog import RELEASE

ROOT = Path(__file__).parents[2]
PRODUCER = ("_commit", "_clean_all_uncommitted")
REST = ("_config_headers", "_create_legacy_oauth2_auth_manager", "_create_session", "_refresh_token")


def test_one_release_is_named_everywhere() -> None:
    """In the extra, in the code, and in what a worker without it is told to install."""
    extra = re.search(r'"pyiceberg\[[^]]*\]==([\d.]+)"', (ROOT / "pyproject.toml").read_text("utf-8"))
    told = re.search(r"pyiceberg-core\]==([\d.]+)", (ROOT / "src/offsetkeeper/engines/workers.py").read_text("utf-8"))
    assert extra is not None
    assert told is not None
    assert RELEASE == extra[1] == told[1] == pyiceberg.__version__


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (pyarrow, "_dataframe_to_data_files"),
        (pyarrow, "_get_field_from_arrow_table"),
        (Catalog, "_delete_old_metadata"),
        *((_SnapshotProducer, it) for it in PRODUCER),
        *((RestCatalog, it) for it in REST),
        (OAuth2TokenProvider, "_refresh_token"),
    ],
)
def test_a_private_name_is_there(owner: object, name: str) -> None:
    assert callable(getattr(owner, name))


@pytest.mark.parametrize("name", ["_token", "_expires_at", "_lock"])
def test_a_provider_of_tokens_has_these(name: str) -> None:
    assert name in OAuth2TokenProvider.__annotations__


@pytest.mark.parametrize("name", ["_written_manifests", "_written_manifest_lists"])
def test_a_producer_notes_what_it_writes(name: str) -> None:
    assert name in _SnapshotProducer.__annotations__


def test_no_other_private_name_is_used() -> None:
    folder = ROOT / "src/offsetkeeper/sinks/iceberg"
    text = "\n".join(each.read_text("utf-8") for each in folder.glob("*.py"))
    used = {*re.findall(r"(?:_producer|catalog)\.(_\w+)", text), *re.findall(r"import .*?\b(_[a-z]\w+)", text)}
    known = {
        *PRODUCER,
        "_dataframe_to_data_files",
        "_delete_old_metadata",
        "_get_field_from_arrow_table",
        "_written_manifests",
        "_written_manifest_lists",
    }
    assert used == known
