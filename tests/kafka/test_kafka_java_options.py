"""Settings of librdkafka in the words of Kafka's Java client."""

from pathlib import Path

import pytest

from offsetkeeper.errors import SettingsError
from offsetkeeper.kafka import java_options
from offsetkeeper.kafka.own_settings import librdkafka_options

OIDC = {
    "sasl.mechanism": "OAUTHBEARER",
    "sasl.oauthbearer.method": "oidc",
    "sasl.oauthbearer.client.id": "shop",
}


def test_no_options_stay_none() -> None:
    assert java_options({}) == {}


def test_a_user_and_a_password_become_a_login_module() -> None:
    options = {
        "security.protocol": "sasl_ssl",
        "sasl.mechanisms": "SCRAM-SHA-512",
        "sasl.username": "shop",
        "sasl.password": 'a "quoted" \\ one',
    }
    assert java_options(options) == {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required "
        'username="shop" password="a \\"quoted\\" \\\\ one";',
    }


def test_certificates_are_taken_as_pem() -> None:
    options = {"ssl.ca.location": "/etc/ca.pem", "ssl.certificate.pem": "CERT", "ssl.key.pem": "KEY"}
    assert java_options(options) == {
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": "/etc/ca.pem",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.certificate.chain": "CERT",
        "ssl.keystore.key": "KEY",
    }


@pytest.mark.parametrize(
    ("options", "java"),
    [
        ({"ssl.ca.location": "probe"}, {}),
        ({"ssl.endpoint.identification.algorithm": "none"}, {"ssl.endpoint.identification.algorithm": ""}),
        ({"ssl.endpoint.identification.algorithm": "https"}, {"ssl.endpoint.identification.algorithm": "https"}),
        ({"ssl.keystore.location": "k.p12"}, {"ssl.keystore.type": "PKCS12", "ssl.keystore.location": "k.p12"}),
        ({"fetch.wait.max.ms": "7"}, {"fetch.max.wait.ms": "7"}),
        ({"client.rack": "b"}, {"client.rack": "b"}),
        ({"queued.min.messages": "1", "log_level": "7"}, {}),
    ],
)
def test_each_name_and_value_has_its_counterpart(options: dict[str, str], java: dict[str, str]) -> None:
    assert java_options(options) == java


@pytest.mark.parametrize("name", ["ssl.key.location", "enable.ssl.certificate.verification", "sasl.oauthbearer.config"])
def test_an_option_without_a_counterpart_names_the_reader_that_takes_it(name: str) -> None:
    with pytest.raises(SettingsError, match=f"{name} .*reader='packed'"):
        java_options({name: "x"})


@pytest.mark.parametrize("name", ["ssl.certificate", "ssl.key"])
def test_a_file_of_a_certificate_of_its_own_is_wanted_as_text(name: str) -> None:
    with pytest.raises(SettingsError, match=f"{name}.location .*: give its text as {name}.pem, or use reader='packed'"):
        java_options({f"{name}.location": "/etc/file.pem"})


def test_a_password_for_a_mechanism_without_a_login_module_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"GSSAPI.*PLAIN, SCRAM-SHA-256, SCRAM-SHA-512"):
        java_options({"sasl.username": "shop", "sasl.password": "x"})


@pytest.mark.parametrize("name", ["ssl.ca.location", "https.ca.location"])
def test_a_folder_of_authorities_is_refused_as_java_takes_a_file(name: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=f"{tmp_path} is a folder, .*reader='packed'"):
        java_options(OIDC | {name: str(tmp_path)})


@pytest.mark.parametrize(
    ("given", "login"),
    [
        ({"https.ca.location": "/etc/ca.pem"}, 'ssl.truststore.location="/etc/ca.pem" ssl.truststore.type="PEM"'),
        ({"https.ca.pem": "A\nB\n"}, 'ssl.truststore.certificates="A\\nB\\n" ssl.truststore.type="PEM"'),
        ({"https.ca.location": "probe"}, ""),
    ],
)
def test_the_authorities_of_the_token_endpoint_are_those_of_java_s_login(given: dict[str, str], login: str) -> None:
    """And not those of the brokers."""
    both = java_options(OIDC | {"ssl.ca.location": "/etc/brokers.pem"} | given)
    assert both["ssl.truststore.location"] == "/etc/brokers.pem"
    alone = java_options(OIDC)["sasl.jaas.config"].removesuffix(";")
    assert both["sasl.jaas.config"] == f"{alone} {login}".strip() + ";"


def test_oidc_becomes_java_s_own_login() -> None:
    options = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.method": "OIDC",
        "sasl.oauthbearer.token.endpoint.url": "https://login.example.org/token",
        "sasl.oauthbearer.client.id": "shop",
        "sasl.oauthbearer.client.secret": 'a "quoted" one',
        "sasl.oauthbearer.extensions": "logicalCluster=lkc-1,identityPoolId=pool-2",
    }
    assert java_options(options) == {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.login.callback.handler.class": "org.apache.kafka.common.security.oauthbearer."
        "OAuthBearerLoginCallbackHandler",
        "sasl.oauthbearer.token.endpoint.url": "https://login.example.org/token",
        "sasl.jaas.config": "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required "
        'clientId="shop" clientSecret="a \\"quoted\\" one" extension_logicalCluster="lkc-1" '
        'extension_identityPoolId="pool-2";',
    }


def test_what_is_meant_for_java_wins_and_is_left_out_elsewhere() -> None:
    options = {"client.id": "shop", "offsetkeeper.java.client.id": "spark", "offsetkeeper.java.max.poll.records": "9"}
    assert java_options(options) == {"client.id": "spark", "max.poll.records": "9"}
    assert librdkafka_options(options) == {"client.id": "shop"}


def test_java_looks_its_rack_up_where_it_runs() -> None:
    assert java_options({"offsetkeeper.rack.env": "RACK"}) == {
        "client.rack": "${env:RACK}",
        "config.providers": "env",
        "config.providers.env.class": "org.apache.kafka.common.config.provider.EnvVarConfigProvider",
    }
