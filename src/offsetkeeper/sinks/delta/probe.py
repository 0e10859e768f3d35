"""Tries whether an S3 server refuses a commit whose name is taken: of two commits of one version, one would be lost.

deltalake lists the log before each commit, so it sees a taken name by itself, unless both come at the same moment. What
the server does then can only be tried by a client of our own. S3 itself needs no trial.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from urllib.parse import quote, urlencode

from offsetkeeper.clients.url import read_url
from offsetkeeper.core.urls import scheme_of
from offsetkeeper.errors import Refused, SettingsError, StoreError

log = logging.getLogger("offsetkeeper")
PROBE = "_offsetkeeper/create-if-absent"
"""An object below the table. Readers and VACUUM pass over names with an underscore."""

_SCHEMES = ("s3://", "s3a://")
_OWN = {
    "endpoint_url": ("endpoint_url", "endpoint", "endpoint_url_s3"),
    "region": ("region", "default_region"),
    "session_token": ("session_token", "token"),
    "access_key": ("access_key_id",),
    "secret_key": ("secret_access_key",),
    "locks": ("s3_locking_provider",),
}
_VARIABLES = ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT", "AWS_REGION", "AWS_S3_LOCKING_PROVIDER")


def check_refuses(address: str, options: Mapping[str, str]) -> None:
    """Check that the server of a table on S3 refuses to overwrite an object, if it is not S3 itself.

    Args:
        address: URI of the table.
        options: deltalake's options.

    Raises:
        Refused: it overwrites objects.
    """
    given = _given(options)
    if scheme_of(address) not in _SCHEMES or "endpoint_url" not in given or "locks" in given:
        return
    try:
        overwrites = _overwrites(address.partition("://")[2].strip("/"), given)
    except ModuleNotFoundError as error:
        why = f"{error.name} is missing: pip install 'offsetkeeper[s3]'"
    except (StoreError, Refused, SettingsError) as error:
        why = str(error)
    else:
        if overwrites:
            raise Refused(
                f"{address}: the server ignores If-None-Match, so of two commits at the same time one would be lost, "
                "with its rows. Nothing was written into the table. Use S3 itself, or a server with conditional writes"
            )
        return
    log.warning("%s: it could not be tried whether the server refuses a commit whose name is taken: %s", address, why)


def _overwrites(place: str, given: Mapping[str, str]) -> bool:
    from offsetkeeper.clients.s3 import OWN, Connection  # noqa: PLC0415 - loads the client library

    keys = [quote(given.get(name, ""), safe="") for name in ("access_key", "secret_key")]
    settings = urlencode({name: given[name] for name in OWN if name in given}, quote_via=quote)
    user = f"{':'.join(keys)}@" if any(keys) else ""
    bucket, _, prefix = place.partition("/")
    connection = Connection(read_url(f"s3://{user}{bucket}/{quote(prefix)}?{settings}", ("timeout",), OWN))
    try:
        return connection.overwrites(f"{connection.root}{PROBE}")
    finally:
        connection.close()


def _given(options: Mapping[str, str]) -> dict[str, str]:
    """Return what our client needs of deltalake's options, and of the variables that boto3 does not read by itself."""
    named = [*((name, os.environ[name]) for name in _VARIABLES if name in os.environ), *options.items()]
    told = {name.lower().removeprefix("aws_"): value for name, value in named if value}
    return {ours: told[name] for ours, names in _OWN.items() for name in reversed(names) if name in told}
