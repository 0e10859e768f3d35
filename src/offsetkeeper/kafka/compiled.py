"""Where the compiled parts of offsetkeeper-native can be used, and why not. Executors use it too.

That is a distribution of its own, in the folder `native`: executors may have it, and need not.
"""

from __future__ import annotations

import logging
import platform
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from offsetkeeper.errors import MissingExtra
from offsetkeeper.kafka.own_settings import NATIVE, TOKEN_PROVIDER

if TYPE_CHECKING:
    from collections.abc import Mapping

_PACKAGE = "offsetkeeper_native"
# What needs confluent-kafka's own client: Python makes the tokens, and plugins may change whatever a client does.
_PYTHON_ONLY = (TOKEN_PROVIDER, "plugin.library.paths")


def compiled(what: str, does: str, module: str, interface: int, options: Mapping[str, str], log: logging.Logger) -> Any:
    """Return a module of offsetkeeper-native, or None where Python does its work.

    The log says which one works, and why: as a warning where offsetkeeper-native is installed, and cannot be used.

    Args:
        what: "reader" or "producer", for messages.
        does: "reads" or "writes", as well.
        module: its name.
        interface: the `INTERFACE` that it must have.
        options: the user's settings of librdkafka.
        log: gets the message.

    Raises:
        MissingExtra: the compiled one is required, and cannot be used here.
    """
    found, why, level = _find(module, interface, options)
    if found is not None:
        log.info("the compiled %s %s: offsetkeeper-native %s", what, does, found.__version__)
    elif options.get(NATIVE) == "required":
        raise MissingExtra(
            f"the compiled {what} cannot be used by {sys.executable} on {platform.node()}: {why}. Install "
            f"offsetkeeper-native for the Python of every executor, or leave {NATIVE} out"
        )
    else:
        log.log(level, "the %s in Python %s: %s", what, does, why)
    return found


def _find(module: str, interface: int, options: Mapping[str, str]) -> tuple[Any, str, int]:
    """Return the module or None; why it is not used; and how much that is to be logged."""
    if options.get(NATIVE) == "never":
        return None, f"{NATIVE} is never", logging.INFO
    for name in _PYTHON_ONLY:
        if name in options:
            return None, f"the setting {name} needs it", logging.INFO
    try:
        package: Any = import_module(_PACKAGE)
    except ImportError as error:
        missing = isinstance(error, ModuleNotFoundError) and error.name == _PACKAGE
        return None, "offsetkeeper-native is not installed" if missing else str(error), logging.INFO
    found = _module(module)
    if getattr(found, "INTERFACE", None) != interface:
        version = package.__version__
        return None, f"offsetkeeper-native {version} is not of this release of offsetkeeper", logging.WARNING
    try:
        found.library()
    except found.Unusable as error:
        return None, f"offsetkeeper-native cannot be used: {error}", logging.WARNING
    return found, "", logging.INFO


def _module(name: str) -> Any:
    """Return a module, or None where an older release does not have it."""
    try:
        return import_module(name)
    except ModuleNotFoundError:
        return None
