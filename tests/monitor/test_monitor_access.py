"""Hosts, sites and tokens."""

from __future__ import annotations

import pytest

from offsetkeeper.errors import SettingsError
from offsetkeeper.monitor.access import (
    check_proxy,
    check_token,
    counted_as,
    has_token,
    is_loopback,
    is_same_site,
    knows_host,
)

TOKEN = "0123456789abcdef"


@pytest.mark.parametrize(
    ("host", "known"),
    [
        ("localhost", True),
        ("LOCALHOST:8117", True),
        ("localhost.", True),
        ("127.0.0.1:8117", True),
        ("[::1]:8117", True),
        ("192.0.2.7", True),
        ("monitor.example:8117", True),
        ("Monitor.Example", True),
        ("evil.example", False),
        ("localhost.evil.example", False),
        ("127.0.0.1.evil.example", False),
        ("monitor.example.evil.example", False),
        ("", False),
    ],
)
def test_a_name_must_be_ours_and_any_address_is_good(host: str, known: bool) -> None:  # noqa: FBT001 - a row
    assert knows_host(host, {"monitor.example"}) is known


@pytest.mark.parametrize(
    ("headers", "same"),
    [
        ({}, True),
        ({"origin": "http://localhost:8117", "sec-fetch-site": "same-origin"}, True),
        ({"origin": "http://localhost:8117"}, True),
        ({"sec-fetch-site": "none"}, True),
        ({"sec-fetch-site": "same-site"}, False),
        ({"sec-fetch-site": "cross-site", "origin": "http://localhost:8117"}, False),
        ({"origin": "http://localhost:9999"}, False),
        ({"origin": "http://evil.example"}, False),
        ({"origin": "null"}, False),
    ],
)
def test_only_our_own_page_and_no_page_at_all_may_change(headers: dict[str, str], same: bool) -> None:  # noqa: FBT001
    assert is_same_site({"host": "localhost:8117", **headers}) is same


@pytest.mark.parametrize(
    ("given", "good"),
    [
        (f"Bearer {TOKEN}", True),
        (TOKEN, False),
        (f"Bearer {TOKEN}x", False),
        ("Bearer ", False),
        ("Bearer é", False),
        ("", False),
    ],
)
def test_the_token_must_be_the_token(given: str, good: bool) -> None:  # noqa: FBT001 - a row
    assert has_token({"authorization": given}, TOKEN) is good


def test_without_a_token_nobody_has_it() -> None:
    assert not has_token({"authorization": "Bearer "}, "")
    assert not has_token({}, "")


@pytest.mark.parametrize("token", ["", "short", "0123456789 abcdef", "0123456789abcdeé", "0123456789abcde\x07"])
def test_a_token_that_is_none_is_refused(token: str) -> None:
    with pytest.raises(SettingsError, match="16 or more"):
        check_token(token)


def test_white_space_around_a_token_does_not_count() -> None:
    assert check_token(f" {TOKEN}\n") == TOKEN


def test_only_this_machine_reaches_loopback() -> None:
    assert all(map(is_loopback, ("localhost", "127.0.0.1", "127.9.9.9", "::1")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "192.0.2.7", "monitor.example")))  # noqa: S104 - not listened on


@pytest.mark.parametrize("address", ["10.0.0.7", "::1", "10.0.0.0/8", "fd00::/8"])
def test_a_proxy_is_an_address_or_a_network(address: str) -> None:
    assert check_proxy(address) == address


@pytest.mark.parametrize("address", ["*", "", "proxy.example", "10.0.0.7:80", "0.0.0.0/0", "::/0", "10.0.0.7/8", "a,b"])
def test_nobody_else_is_trusted_as_a_proxy(address: str) -> None:
    with pytest.raises(SettingsError, match="--trust-proxy"):
        check_proxy(address)


@pytest.mark.parametrize(
    ("address", "counted"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::7", "2001:db8:1:2::/64"),
        ("2001:db8:1:3::7", "2001:db8:1:3::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("", ""),
        ("a name", "a name"),
    ],
)
def test_a_client_has_all_addresses_of_its_network(address: str, counted: str) -> None:
    """Else it had as many connections as it takes addresses."""
    assert counted_as(address) == counted
