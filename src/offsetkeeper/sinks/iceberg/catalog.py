"""Opens the catalog of an Iceberg table, and tells its errors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyiceberg
import requests
from pydantic import ValidationError
from pyiceberg.catalog import _ENV_CONFIG, Catalog, CatalogType, infer_catalog_type, load_catalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.catalog.rest.auth import AuthManager, OAuth2AuthManager, OAuth2TokenProvider
from pyiceberg.catalog.sql import IcebergTables, SqlCatalog
from pyiceberg.exceptions import (
    AuthorizationExpiredError,
    BadRequestError,
    ForbiddenError,
    NoSuchNamespaceError,
    NoSuchTableError,
    NotInstalledError,
    OAuthError,
    UnauthorizedError,
)
from pyiceberg.utils.config import merge_config
from requests.auth import HTTPBasicAuth
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from offsetkeeper.core import environment
from offsetkeeper.core.urls import scheme_of
from offsetkeeper.errors import MissingExtra, OffsetkeeperError, Refused
from offsetkeeper.sinks.blame import judged
from offsetkeeper.sinks.iceberg.task import without_secrets

if TYPE_CHECKING:
    from collections.abc import Callable

RELEASE = "0.12.0"
"""The release of pyiceberg whose private names this sink uses: another one may have changed them."""

_KINDS = ("http", "thrift", "sqlite", "postgresql")  # as pyiceberg tells the kind of a catalog by its URI
_DATABASES = ("sqlite", "postgresql")
_EXPIRED = (AuthorizationExpiredError, UnauthorizedError)
_REFUSED = (BadRequestError, ForbiddenError, OAuthError, *_EXPIRED)
_REQUEST_S = 60.0
_OF_FILES = ("s3.", "adls.", "gcs.", "hdfs.", "oss.", "hf.", "client.", "py-io-impl")
_DEFAULTS = {"init_catalog_tables": "false"}  # a wrong URI makes no catalog


class _Rest(RestCatalog):
    """A catalog of REST that waits for no answer for ever, and gets a new token when one is refused.

    pyiceberg has no time limit. It shows the token that was refused to the server of tokens, which may refuse that too.
    With `auth.type=oauth2` it keeps a token until the time that it was told, though the server may have forgotten it.
    """

    def _config_headers(self, session: requests.Session) -> None:
        super()._config_headers(session)
        _limit(session)  # before its first request, which may be for a token

    def _create_legacy_oauth2_auth_manager(self, session: requests.Session) -> AuthManager:
        apart = deepcopy(session)
        apart.headers["Connection"] = "close"
        _limit(apart)
        return super()._create_legacy_oauth2_auth_manager(apart)

    def _create_session(self) -> requests.Session:
        session = super()._create_session()
        if isinstance(self._auth_manager, OAuth2AuthManager):
            tokens = self._auth_manager.token_provider
            if type(tokens) is OAuth2TokenProvider:  # a user's own may ask for more
                self._auth_manager.token_provider = _Tokens.of(tokens)
        return session

    def _refresh_token(self) -> None:
        super()._refresh_token()
        tokens = getattr(self._auth_manager, "token_provider", None)
        if isinstance(tokens, _Tokens):
            tokens.forget()


class _Tokens(OAuth2TokenProvider):
    """Tokens of OAuth2, which pyiceberg would wait for without a limit."""

    @classmethod
    def of(cls, of: OAuth2TokenProvider) -> _Tokens:
        return cls(of.client_id, of.client_secret, of.token_url, of.scope, of.refresh_margin, of.expires_in)

    def forget(self) -> None:
        """Ask for a new one before the next request."""
        with self._lock:
            self._token = None

    def _refresh_token(self) -> None:
        asked = {"grant_type": "client_credentials"} | ({"scope": self.scope} if self.scope else {})
        client = HTTPBasicAuth(self.client_id.encode(), self.client_secret.encode())
        answer = requests.post(self.token_url, asked, auth=client, timeout=_REQUEST_S)
        answer.raise_for_status()
        found = answer.json()
        lasts_s = found.get("expires_in", self.expires_in)
        if lasts_s is None:
            raise ValueError("the server of tokens does not say when one expires: set expires_in of auth.oauth2")
        self._token = found["access_token"]
        self._expires_at = int(environment.monotonic() + lasts_s - self.refresh_margin)


def _limit(session: requests.Session) -> None:
    """Give each request of a session a time limit."""
    request = session.request
    session.request = lambda *args, **words: request(*args, **{"timeout": _REQUEST_S, **words})  # type: ignore[method-assign]


def open_catalog(name: str, properties: Mapping[str, str]) -> Catalog:
    """Return a catalog that changes a table by compare-and-set.

    Raises:
        MissingExtra: pyiceberg is of another release.
        Refused: there is no such catalog, or it is of a kind that is not known to do so.
        SinkError: it could not be reached.
    """
    if pyiceberg.__version__ != RELEASE:
        raise MissingExtra(f"IcebergTable needs pyiceberg {RELEASE}, but {pyiceberg.__version__} is installed")
    where = f"catalog {name!r}"
    settings = settings_of(name, properties)
    _check_uri(where, settings)
    with telling(where, settings):
        try:
            catalog = _load(name, properties, settings)
        except NotInstalledError as error:  # told also where the driver of the uri is missing
            raise MissingExtra(
                f"{where}: {error}; or its driver is missing: for PostgreSQL pip install 'offsetkeeper[postgresql]'"
            ) from None
        except (ValueError, KeyError, ArgumentError) as error:  # of settings
            if isinstance(error, ValidationError):  # of an answer
                raise
            raise Refused(f"{where}: {why(error, settings)}: see pyiceberg's settings of a catalog") from None
    database = catalog.engine.dialect.name if isinstance(catalog, SqlCatalog) else ""
    if database not in _DATABASES and not isinstance(catalog, RestCatalog):
        kind = f"of {database}" if database else f"a {type(catalog).__name__}"
        raise Refused(f"{where} is {kind}: this sink knows catalogs of REST, and of SQL in {' and '.join(_DATABASES)}")
    return catalog


def _load(name: str, properties: Mapping[str, str], settings: dict[str, Any]) -> Catalog:
    kind = settings.get("type")
    if (CatalogType(kind.lower()) if isinstance(kind, str) else infer_catalog_type(name, settings)) is CatalogType.REST:
        return _Rest(name, **settings)
    return load_catalog(name, **(_DEFAULTS | dict(properties)))


def of_files(properties: Mapping[str, Any]) -> dict[str, str]:
    """Return those of a catalog's properties that executors need: they get no password of the catalog."""
    return {name: str(value) for name, value in properties.items() if name.startswith(_OF_FILES)}


@contextmanager
def telling(where: str, properties: Mapping[str, Any], say: Callable[[str], str] = str) -> Iterator[None]:
    """Raise the errors of a catalog as ours; `say` puts a message into its sentence. Properties as of `settings_of`."""
    try:
        yield
    except OffsetkeeperError:
        raise
    except (NoSuchTableError, NoSuchNamespaceError):
        raise Refused(
            f"{where} does not exist: create it first, with catalog.create_table(…), or correct the name"
        ) from None
    except Exception as error:  # noqa: BLE001 - pyiceberg's errors have no class of their own
        if isinstance(error, SQLAlchemyError) and IcebergTables.__tablename__ in str(getattr(error, "orig", "")):
            raise Refused(f"{where}: there is no catalog in that database: {why(error, properties)}") from None
        told = say(f"{where}: {why(error, properties)}")
        if isinstance(error, _EXPIRED) and "token" in properties and "credential" not in properties:
            told += "; if the token has expired, set `credential` in place of `token`: then a new one is fetched"
        if isinstance(error, _REFUSED):
            raise Refused(told) from None
        raise judged(error, told, of_rows=False) from None


def why(error: BaseException, properties: Mapping[str, Any]) -> str:
    """Return an error as one line without secrets; of SQLAlchemy the words of the database alone."""
    if isinstance(error, ValidationError):  # its text has what the server answered, which may be a token
        fields = (".".join(map(str, each["loc"])) + ": " + each["msg"] for each in error.errors(include_input=False))
        return f"an answer that is not of a catalog: {', '.join(fields)}"
    sent = getattr(getattr(error.__cause__, "response", None), "request", None)  # a server may quote it
    used = sent.headers.get("Authorization", "").removesuffix(" None") if sent is not None else ""
    return without_secrets(getattr(error, "orig", None) or error, {**properties, "authorization in use": used})


def settings_of(name: str, properties: Mapping[str, Any]) -> dict[str, Any]:
    """Return the properties of a catalog, with those that pyiceberg has from its own file and from the environment.

    Raises:
        Refused: those are wrong.
    """
    try:
        return merge_config(_ENV_CONFIG.get_catalog_config(name) or {}, dict(properties))
    except ValueError as error:
        raise Refused(f"catalog {name!r}: {error}: see pyiceberg's settings of a catalog") from None


def _check_uri(where: str, settings: Mapping[str, Any]) -> None:
    """Check a URI before pyiceberg, which would quote it, with its password."""
    uri = settings.get("uri") or ""
    if not isinstance(uri, str):
        raise Refused(f"{where}: its uri must be a text")
    of_kind = uri.startswith(_KINDS) or "type" in settings or "py-catalog-impl" in settings
    if uri and not of_kind:
        begins = f"begins with {scheme_of(uri)}, but " if scheme_of(uri) else ""
        raise Refused(f"{where}: its uri {begins}must begin with http://, https://, sqlite:// or postgresql+psycopg://")
    password = uri.partition("?")[0].partition("://")[2].partition(":")[2]
    if password.count("@") > 1 and not uri.startswith(("http", "sqlite")):
        raise Refused(
            f"{where}: its uri has several @, so it is not clear where its password ends: write each @ in a "
            "password as %40, : as %3A and / as %2F"
        )
    _check_file(where, uri)


def _check_file(where: str, uri: str) -> None:
    """Check that the file of a catalog in SQLite is there: SQLite would make it."""
    kind, _, path = uri.partition("://")
    path = path.partition("?")[0].removeprefix("/")
    if kind.partition("+")[0] == "sqlite" and path and not path.startswith(":") and not Path(path).exists():
        raise Refused(f"{where}: its file {path} does not exist: create the catalog first, or correct the uri")
