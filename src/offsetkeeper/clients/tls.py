"""The settings of TLS in the URLs of MySQL and Cassandra. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from offsetkeeper.clients.url import read_choice
from offsetkeeper.core.tls import Tls
from offsetkeeper.errors import SettingsError

NAMES = ("ssl_ca", "ssl_cert", "ssl_key", "ssl_key_password", "ssl_verify_cert", "ssl_verify_identity")
SWITCHES = {"true": True, "1": True, "false": False, "0": False}
"""How the URL of a database says yes and no."""


def read_tls(given: Mapping[str, str], *, asked: bool | None = None) -> Tls | None:
    """Return what a URL's settings say of TLS; None without TLS. All is checked that they do not switch off.

    Args:
        given: settings of a URL, by name.
        asked: whether another setting of the URL says that there is TLS, or that there is none; None if there is none.

    Raises:
        SettingsError: the settings contradict each other.
    """
    ours = {name: given[name] for name in NAMES if name in given}
    if asked is False and ours:
        raise SettingsError(f"the store's URL switches TLS off and has {', '.join(ours)}: take out one or the other")
    if not (asked or ours):
        return None
    verify = read_choice("ssl_verify_cert", given.get("ssl_verify_cert", "true"), SWITCHES)
    identity = read_choice(
        "ssl_verify_identity", given.get("ssl_verify_identity", "true" if verify else "false"), SWITCHES
    )
    if identity and not verify:
        raise SettingsError(
            "the store's URL has ssl_verify_identity=true and ssl_verify_cert=false: a name in a certificate that is "
            "not checked proves nothing. Take out one or the other"
        )
    if ("ssl_key" in given or "ssl_key_password" in given) and not given.get("ssl_cert"):
        raise SettingsError("the store's URL has a key for TLS and no certificate: give it as ssl_cert")
    return Tls(
        setting="ssl_ca",
        ca=given.get("ssl_ca", ""),
        own=NAMES[1:4],
        cert=given.get("ssl_cert", ""),
        key=given.get("ssl_key", ""),
        password=given.get("ssl_key_password", ""),
        verify=verify,
        identity=identity,
    )
