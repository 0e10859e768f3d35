"""Tokens for OAUTHBEARER, from a user's function that is named in the settings. Executors use it too.

A client calls back for its first token, and then each time when four fifths of a token's life have passed, even if the
client is idle: librdkafka does this from a separate thread.
"""

from __future__ import annotations

import logging
import math
import platform
import re
import traceback
from importlib import import_module
from typing import TYPE_CHECKING, Any

from offsetkeeper.core.environment import now_ms
from offsetkeeper.errors import SettingsError, TokenUnavailable
from offsetkeeper.kafka.own_settings import TOKEN, TOKEN_PROVIDER

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

Token = tuple[str, float, str, dict[str, str]]  # the form of librdkafka's client
_FEWEST, _MOST = 2, 4  # values that a provider returns
_LONGEST_S = 10 * 365 * 86_400.0
_WORTH_S = 1.0  # a token that ends sooner is not used again
_TOKEN = re.compile(r"[!-~]+")
_KEY = re.compile(r"[A-Za-z]+")
_VALUE = re.compile(r"[\t\n\r -~]+")
_SHAPE = (
    "(token, its end in seconds since 1970), optionally with the principal (a text) and the extensions (texts by name)"
)


class TokenProvider:
    """Calls the function that `offsetkeeper.token.provider` names; a client's `oauth_cb`.

    The function gets one argument: a dict with the other settings `offsetkeeper.token.…`, without that prefix.

    Args:
        options: the user's Kafka settings, already checked.

    Attributes:
        failure: the error of the last call, or None.

    Raises:
        SettingsError: the function does not exist here.
        TokenUnavailable: the function returned no usable token.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        self.failure: TokenUnavailable | None = None
        self._name = options[TOKEN_PROVIDER]
        self._settings = {
            name.removeprefix(TOKEN): value
            for name, value in options.items()
            if name.startswith(TOKEN) and name != TOKEN_PROVIDER
        }
        self._function = _function(self._name)
        self._token = self._ask()
        self._fresh = True

    def __call__(self, _: str) -> Token:
        """Return a new token, or the last one while it is valid if there is no new one.

        Raises:
            TokenUnavailable: there is no token. The client gets the error, and calls again after ten seconds.
        """
        if self._fresh:  # the token from before the client existed
            self._fresh = False
            return self._token
        try:
            self._token, self.failure = self._ask(), None
        except TokenUnavailable as error:
            self.failure = error
            logging.getLogger(__name__).error("%s", error)  # noqa: TRY400 - a traceback could show a secret
            if self._token[1] - now_ms() / 1000 < _WORTH_S:
                raise
        return self._token

    def _ask(self) -> Token:
        try:
            found = self._function({**self._settings})
        except Exception as error:  # noqa: BLE001 - whatever it raises
            where = traceback.extract_tb(error.__traceback__)[-1]
            raise TokenUnavailable(
                f"the token provider {self._name} raised {type(error).__name__} in {where.name}, line {where.lineno} "
                f"of {where.filename}, on {platform.node()}. Its text may contain a secret, so it is not shown: call "
                "the function there by hand to see it"
            ) from None
        try:
            return _read(found)
        except ValueError as wrong:
            raise TokenUnavailable(f"the token provider {self._name} returned {wrong} (on {platform.node()})") from None


def _function(name: str) -> Callable[[dict[str, str]], Any]:
    module, _, path = name.partition(":")
    try:
        found: Any = import_module(module)
        for part in path.split("."):
            found = getattr(found, part)
    except Exception as error:  # noqa: BLE001 - the import of a module may raise anything
        here = isinstance(error, AttributeError | ImportError)  # these only name the missing module or attribute
        raise SettingsError(
            f"{TOKEN_PROVIDER}={name} cannot be imported on {platform.node()}: "
            f"{type(error).__name__}{f': {error}' if here else ''}. Install the module there, or add it to PYTHONPATH "
            "or to spark.submit.pyFiles"
        ) from None
    if not callable(found):
        raise SettingsError(f"{TOKEN_PROVIDER}={name} is not a function")
    return found  # type: ignore[no-any-return]  # the user's


def _read(found: Any) -> Token:
    """Return the complete token from a provider's result.

    Raises:
        ValueError: the result cannot be used; the text shows nothing of it.
    """
    given: list[Any] = [*found] if isinstance(found, tuple | list) else []
    if not _FEWEST <= len(given) <= _MOST:
        raise ValueError(f"{type(found).__name__} instead of {_SHAPE}")
    token, end_s, principal, extensions = given + ["", {}][len(given) - _FEWEST :]
    if not isinstance(token, str) or not _TOKEN.fullmatch(token):
        raise ValueError(f"no text of printable ASCII as its token: {_SHAPE}")
    if isinstance(end_s, bool) or not isinstance(end_s, int | float) or not math.isfinite(end_s):
        raise ValueError(f"no number as the token's end: {_SHAPE}")
    if not isinstance(principal, str) or not _are_extensions(extensions):
        raise ValueError(f"a wrong principal or wrong extensions: {_SHAPE}; keys are letters only, not 'auth'")
    left_s = end_s - now_ms() / 1000
    if left_s > _LONGEST_S:
        raise ValueError(f"a token that ends after ten years: {_SHAPE}. Milliseconds must be divided by 1000")
    if left_s <= 0:
        raise ValueError(f"a token that ended {-left_s:.0f} s ago: make a new one at each call, and check the clock")
    return token, float(end_s), principal, {**extensions}


def _are_extensions(found: Any) -> bool:
    return isinstance(found, dict) and all(
        isinstance(key, str)
        and isinstance(value, str)
        and key != "auth"
        and _KEY.fullmatch(key)
        and _VALUE.fullmatch(value)
        for key, value in found.items()
    )
