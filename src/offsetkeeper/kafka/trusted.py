"""Settings of Kafka's clients that load code or run programs: only whoever may run code anyway gives them.

A program's own `kafka=` and the command line may give each. The URL of a store and a settings file may not: a URL comes
from elsewhere, and a file that someone edits is not a program. So they name a token provider only if the environment
variable `OFFSETKEEPER_TOKEN_PROVIDERS` has it too.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from offsetkeeper.errors import SettingsError
from offsetkeeper.kafka.own_settings import JAVA, TOKEN_PROVIDER

if TYPE_CHECKING:
    from collections.abc import Mapping

TOKEN_PROVIDERS = "OFFSETKEEPER_TOKEN_PROVIDERS"  # noqa: S105 - the name of a variable
"""Name of the environment variable with the token providers that URLs and files may name, separated by commas."""
# Of librdkafka 2.16. The engine's id is looked for among the engines of the machine only together with a location, but
# the name of a provider may be a path.
_LOADS = re.compile(r"plugin\.library\.paths|ssl\.engine\..*|ssl\.providers|sasl\.kerberos\.kinit\.cmd")
_WRITES = re.compile(r"offset\.store\.(path|method)")
# Of Kafka's Java client 4.2: names of classes, what is made of them, and the command that a shell runs.
_JAVA_LOADS = re.compile(
    r".*\.(class|classes|reporters|providers?|cmd|strategy|(de)?serializer)|config\.providers\..*|.*\.jaas\.config"
)
# What these send goes to a server that the same text names: a file, a variable, a credential of the machine.
_SENDS = re.compile(r"sasl\.oauthbearer\.(.*\.file|metadata\.authentication\.type)|offsetkeeper\.rack\.env")
_ELSEWHERE = re.compile(r"\$\{[^}:]*:")  # to Kafka's Java client: a variable, or what a file has
_SHELL = re.compile(r"sasl\.kerberos\.(principal|keytab|service\.name)")
_PLAIN = re.compile(r"(?!-)[\w@./:+=-]*")  # with a hyphen in front it is an option, and one of kinit's loads a library
_ENDPOINT = re.compile(r"sasl\.oauthbearer\..*\.url")
_HTTP = re.compile("https?://.*", re.IGNORECASE)  # of a file: URL, Kafka's Java client sends the file as its token
_REFUSED = (_LOADS, _WRITES, _SENDS)


def refuse_code(options: Mapping[str, str], where: str) -> None:
    """Check that settings from a URL or a file load no code.

    Args:
        options: settings of librdkafka and ours, from there alone.
        where: where they are from, for the error.

    Raises:
        SettingsError: one loads code, or may run a program.
    """
    for name, value in options.items():
        java, plain = name.startswith(JAVA), name.removeprefix(JAVA)
        loads = any(each.fullmatch(plain) for each in _REFUSED)
        if loads or (java and (_JAVA_LOADS.fullmatch(plain) or _ELSEWHERE.search(value))):
            raise SettingsError(
                f"{where}: {name} can load code, run a program, write or send a file, or send a variable or a "
                "credential of this machine, so it is not taken from there. Give it in your program's kafka=, or with "
                "--kafka on the command line"
            )
        if _SHELL.fullmatch(plain) and not _PLAIN.fullmatch(value):
            raise SettingsError(
                f"{where}: {name} has a character that a shell may take as a command, or kinit for an option: "
                "take it out"
            )
        if _ENDPOINT.fullmatch(plain) and not _HTTP.fullmatch(value):
            raise SettingsError(f"{where}: {name} is not the URL of a server: write one that begins with https://")
    allowed = [each.strip() for each in os.environ.get(TOKEN_PROVIDERS, "").split(",")]
    if TOKEN_PROVIDER in options and options[TOKEN_PROVIDER] not in allowed:
        raise SettingsError(
            f"{where}: {TOKEN_PROVIDER} names a function that would be run, so it is not taken from there alone. Set "
            f"the environment variable {TOKEN_PROVIDERS} to the same module:function, or give it in your program's "
            "kafka=, or with --kafka on the command line"
        )
