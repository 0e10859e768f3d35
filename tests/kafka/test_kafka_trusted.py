"""Settings that load code or run programs: a program and a command line may give them, a URL and a file may not."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import confluent_kafka
import pytest

from offsetkeeper.cli import options
from offsetkeeper.errors import OffsetkeeperError, SettingsError
from offsetkeeper.kafka import KafkaCluster
from offsetkeeper.kafka.clients import check_options
from offsetkeeper.kafka.java import java_options
from offsetkeeper.kafka.trusted import refuse_code
from offsetkeeper.sinks import Table
from offsetkeeper.stores import open_store

BEARER = {"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"}
PROVIDER = BEARER | {"offsetkeeper.token.provider": "my_company.tokens:token"}
JAVA = "offsetkeeper.java."
LOADING = [
    {"plugin.library.paths": "/tmp/x.so"},  # noqa: S108 - never opened
    {"ssl.engine.location": "/tmp/x.so"},  # noqa: S108 - as above
    {"ssl.engine.id": "x"},
    {"ssl.providers": "/tmp/x.so"},  # noqa: S108 - as above
    {"sasl.kerberos.kinit.cmd": "touch x"},
    {"sasl.kerberos.principal": "x; touch x"},
    {"sasl.kerberos.principal": "-XX509_user_identity=PKCS11:/tmp/x.so"},
    {"sasl.kerberos.keytab": '"$(touch x)'},
    {"sasl.kerberos.service.name": "kafka|x"},
    {"offset.store.path": "/x"},
    {"offset.store.method": "a-file"},
    {"sasl.oauthbearer.assertion.file": "/etc/hostname"},
    {"sasl.oauthbearer.assertion.private.key.file": "/etc/hostname"},
    {"sasl.oauthbearer.assertion.jwt.template.file": "/etc/hostname"},
    {"offsetkeeper.rack.env": "A_VARIABLE"},
    {"sasl.oauthbearer.metadata.authentication.type": "azure_imds"},
    {f"{JAVA}sasl.oauthbearer.assertion.file": "/etc/hostname"},
    {f"{JAVA}sasl.kerberos.principal": "x; touch x"},
    {f"{JAVA}client.id": "${env:A_VARIABLE}"},
    {f"{JAVA}client.id": "a ${file:/etc/passwd:root}"},
    {"sasl.oauthbearer.token.endpoint.url": "file:///etc/hostname"},
    {f"{JAVA}sasl.oauthbearer.token.endpoint.url": "file:/etc/hostname"},
    {f"{JAVA}sasl.oauthbearer.token.endpoint.url": " url:file:/etc/hostname"},
    PROVIDER,
    {f"{JAVA}sasl.login.callback.handler.class": "X"},
    {f"{JAVA}sasl.login.class": "X"},
    {f"{JAVA}sasl.client.callback.handler.class": "X"},
    {f"{JAVA}sasl.jaas.config": "com.sun.security.auth.module.JndiLoginModule required;"},
    {f"{JAVA}ssl.engine.factory.class": "X"},
    {f"{JAVA}interceptor.classes": "X"},
    {f"{JAVA}metric.reporters": "X"},
    {f"{JAVA}security.providers": "X"},
    {f"{JAVA}partition.assignment.strategy": "X"},
    {f"{JAVA}key.deserializer": "X"},
    {f"{JAVA}config.providers": "a-file"},
    {f"{JAVA}config.providers.file.class": "X"},
    {f"{JAVA}config.providers.file.param.allowed.paths": "/a-folder"},
    {f"{JAVA}sasl.kerberos.kinit.cmd": "/tmp/x"},  # noqa: S108 - as above
]
HARMLESS = {
    "sasl.kerberos.principal": "kafka/host.example@EXAMPLE.COM",
    "sasl.kerberos.keytab": "/etc/security/kafka.keytab",
    f"{JAVA}max.poll.records": "5",
    "sasl.oauthbearer.token.endpoint.url": "HTTPS://login.example/token",
}

TELLING = re.compile("path|location|file|librar|cmd|engine|provider|plugin|url|keytab|stores|authentication|principal")
READ_ONLY = {
    *("ssl.ca.location", "https.ca.location", "ssl.crl.location", "ssl.ca.certificate.stores"),
    *(
        "ssl.key.location",
        "ssl.certificate.location",
        "ssl.keystore.location",
    ),  # of it a server gets certificates alone
    "ssl_engine_callback_data",  # no text sets it
}


def by_url(given: dict[str, str]) -> None:
    settings = "&".join(f"{name}={quote(value)}" for name, value in given.items())
    open_store(f"kafka://127.0.0.1:1?{settings}").close()


def by_file(given: dict[str, str]) -> None:
    lines = [f"'{name}' = '''{value}'''" for name, value in given.items()]
    Path("offsetkeeper.toml").write_text("\n".join(["[kafka]", *lines]), "utf-8")
    options.settings()


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OFFSETKEEPER_CONFIG", raising=False)
    monkeypatch.delenv("OFFSETKEEPER_TOKEN_PROVIDERS", raising=False)


@pytest.mark.parametrize("given", LOADING, ids=lambda given: list(given)[-1])
@pytest.mark.parametrize("way", [by_url, by_file])
def test_what_loads_code_is_taken_from_no_url_and_no_file(
    way: Callable[[dict[str, str]], None], given: dict[str, str]
) -> None:
    with pytest.raises(SettingsError) as raised:
        way(given)
    assert list(given)[-1] in str(raised.value)
    assert list(given.values())[-1] not in str(raised.value)


def test_of_all_settings_of_librdkafka_those_that_are_left_load_and_send_nothing(tmp_path: Path) -> None:
    """A new release may have new ones. Those whose name tells of a file, of code or of a server are looked at here."""
    folder = Path(confluent_kafka.__file__).parents[1] / "confluent_kafka.libs"
    [path] = folder.glob("librdkafka*")
    library, c = ctypes.CDLL(str(path)), ctypes.CDLL(None)
    c.fopen.restype = ctypes.c_void_p
    file = ctypes.c_void_p(c.fopen(bytes(tmp_path / "settings"), b"w"))
    library.rd_kafka_conf_properties_show(file)
    c.fclose(file)
    names = re.findall(r"^([a-z][\w.]+) +\|", (tmp_path / "settings").read_text("utf-8"), re.MULTILINE)
    assert len(names) > 150
    assert {name for name in names if TELLING.search(name) and not is_refused(name)} == READ_ONLY


def is_refused(name: str) -> bool:
    try:
        refuse_code({name: "file:/x; y"}, "a text")
    except SettingsError:
        return True
    return False


@pytest.mark.parametrize("given", LOADING, ids=lambda given: list(given)[-1])
def test_a_program_and_a_command_line_may_give_each(given: dict[str, str]) -> None:
    """What is wrong with them is found when a client is made of them."""
    assert check_options(given) == given
    assert options.settings(kafka=[f"{name}={value}" for name, value in given.items()]).kafka == given
    if next(iter(given)).startswith(JAVA):
        assert java_options(given).items() >= {(name.removeprefix(JAVA), value) for name, value in given.items()}


def test_the_library_is_asked_for_where_a_program_names_it() -> None:
    with pytest.raises(SettingsError, match="librdkafka refuses the Kafka options: dlopen"):
        KafkaCluster("127.0.0.1:1", {"plugin.library.paths": "/none.so"}).describe(["t"])


@pytest.mark.parametrize("way", [by_url, by_file])
def test_harmless_settings_are_taken(way: Callable[[dict[str, str]], None]) -> None:
    way(HARMLESS)


def test_a_url_runs_no_program_by_the_name_of_a_token_provider(tmp_path: Path) -> None:
    """`subprocess.run` takes the names of its settings for a command."""
    given = BEARER | {"offsetkeeper.token.provider": "subprocess:run", "offsetkeeper.token.touch": "1"}
    with pytest.raises(OffsetkeeperError, match=r"token\.provider names a function that would be run"):
        by_url(given | {f"offsetkeeper.token.{tmp_path}/done": "1", "timeout": "1"})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("way", [by_url, by_file])
def test_a_token_provider_that_the_environment_has_too_is_taken(
    way: Callable[[dict[str, str]], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OFFSETKEEPER_TOKEN_PROVIDERS", "a:b, my_company.tokens:token")
    way(PROVIDER)
    monkeypatch.setenv("OFFSETKEEPER_TOKEN_PROVIDERS", "my_company.tokens:token2,my_company.tokens")
    with pytest.raises(SettingsError, match="OFFSETKEEPER_TOKEN_PROVIDERS to the same module:function"):
        way(PROVIDER)


@pytest.mark.parametrize("setting", ["sslkey=/tmp/x.so:key", "sslkey=dynamic%3Akey", "sslkeylogfile=/tmp/x"])
def test_a_url_of_postgresql_has_libpq_load_and_write_nothing(setting: str) -> None:
    """`sslkey=engine:key` loads the library of an engine, which may be a path."""
    for opened in (open_store, lambda url: Table(url, "t")):
        with pytest.raises(SettingsError, match=setting.partition("=")[0]):
            opened(f"postgresql://h/d?sslcert=/x&{setting}")
    open_store("postgresql://h/d?sslkey=/x.key").close()


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("//h/d?gssdelegation=1", "//h/d?gssdelegation=0"),
        ("//h/d?service=shop", "///d?service=shop"),
        ("///d?service=shop&hostaddr=10.0.0.1", "//u:p@h/d?service=shop"),
        ("//h/d?hostaddr=10.0.0.1", "//u:p@h/d?hostaddr=10.0.0.1"),
        ("//h/d?hostaddr=10.0.0.1&sslmode=require", "//h/d?hostaddr=10.0.0.1&sslmode=verify-full"),
    ],
)
def test_a_url_of_postgresql_sends_no_credential_of_this_machine_to_another_server(wrong: str, right: str) -> None:
    """A password is looked up by the service or the host, and sent to whatever server the URL names."""
    for opened in (open_store, lambda url: Table(url, "t")):
        with pytest.raises(SettingsError, match=r"gssdelegation|beside a host"):
            opened(f"postgresql:{wrong}")
        opened(f"postgresql:{right}")


@pytest.mark.parametrize(
    "url",
    [
        *(f"mysql://h/d?{name}=x" for name in ("init_command", "local_infile", "read_default_file", "plugin_dir")),
        *(f"sqlite:///x.db?{name}=x" for name in ("vfs", "mode", "immutable", "load_extension")),
        *(f"redis://h/0?{name}=x" for name in ("connection_class", "retry_class", "credential_provider", "protocol")),
        *(f"s3://b/p?{name}=x" for name in ("credential_process", "config_file", "shared_credentials_file")),
        *(f"zookeeper://h?{name}=x" for name in ("handler", "sasl_options", "keyfile")),
        *(f"hbase://h?{name}=x" for name in ("host", "compat")),
        *(f"webhdfs://u@h/x?{name}=x" for name in ("doas", "trust_env")),
        *(f"postgresql://h/d?{name}=x" for name in ("servicefile", "cursor_factory", "row_factory")),
        "file:///x?follow=true",
    ],
)
def test_no_other_url_takes_a_setting_that_loads_or_writes(url: str) -> None:
    with pytest.raises(SettingsError, match=r"unknown setting|is not taken from a URL"):
        open_store(url)
