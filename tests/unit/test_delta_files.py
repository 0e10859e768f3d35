"""Which files an upsert into a table of Delta Lake looks into, and what its errors show."""

from __future__ import annotations

import json

import pytest

from offsetkeeper.sinks.delta import task
from offsetkeeper.sinks.delta.columns import finds_files


@pytest.mark.parametrize(
    ("kind", "finds"),
    [
        *((kind, True) for kind in ("byte", "short", "integer", "long", "string", "date", "boolean")),
        *((kind, False) for kind in ("decimal(10,2)", "float", "double", "timestamp", "timestamp_ntz", "binary")),
    ],
)
def test_an_upsert_looks_only_into_files_that_may_have_the_keys_where_the_log_has_them_exactly(
    kind: str,
    finds: bool,  # noqa: FBT001 - generated
) -> None:
    fields = [("key", kind), ("item", "double")]
    schema = {
        "type": "struct",
        "fields": [{"name": name, "type": of, "nullable": True, "metadata": {}} for name, of in fields],
    }
    assert finds_files(json.dumps(schema), ["key"]) is finds
    assert not finds_files(json.dumps(schema), ["key", "item"])


@pytest.mark.parametrize("name", ["proxy_url", "aws_secret_access_key"])
def test_a_password_in_any_option_is_in_no_error(name: str) -> None:
    secret = "http://user:s3cret@proxy:3128" if name == "proxy_url" else "s3cret"
    told = task.Folder("s3://lake/orders", {name: secret}).why(OSError("http://user:s3cret@proxy:3128 refused"))
    assert "s3cret" not in told
    assert told.startswith("s3://lake/orders: ")
