"""Behind a proxy, below a path: each link and each request has the path, whether the proxy takes it away or not."""

from __future__ import annotations

import re
from collections.abc import Iterator

import httpx
import pytest
from playwright.sync_api import Browser, expect

from monitor.gallery import Gallery, group
from monitor.scene import LIMIT_S
from offsetkeeper.errors import SettingsError
from offsetkeeper.monitor.access import check_base

BASE = "/team/offsets"
expect.set_options(timeout=LIMIT_S * 1000)


@pytest.fixture(scope="module")
def behind() -> Iterator[Gallery]:
    """A server that browsers reach below a path."""
    with Gallery(BASE) as found:
        found.show(group("a/b", [3, 4], 100), group("idle", [0]), alarms=[("down", "a/b")])
        yield found


@pytest.mark.parametrize("path", ["/", "/groups/a%2Fb", "/words", "/groups/nobody"])
def test_every_link_has_the_path_also_where_the_proxy_takes_it_away(behind: Gallery, path: str) -> None:
    left, taken = (httpx.get(f"{behind.url}{base}{path}", trust_env=False) for base in (BASE, ""))
    assert left.text == taken.text
    assert left.status_code == taken.status_code
    links = re.findall(r'(?:href|src|action)="([^"#][^"]*)"', left.text)
    assert len(links) > 5
    assert [link for link in links if not link.startswith(f"{BASE}/")] == []


@pytest.mark.parametrize("path", ["/metrics", "/healthz", "/api/groups", "/api/lag/a%2Fb", "/static/page.js"])
def test_what_is_no_page_is_answered_below_the_path_and_without_it(behind: Gallery, path: str) -> None:
    answers = [httpx.get(f"{behind.url}{base}{path}", trust_env=False) for base in (BASE, "")]
    assert [answer.status_code for answer in answers] == [200, 200]


def test_the_path_alone_leads_to_the_page(behind: Gallery) -> None:
    answer = httpx.get(f"{behind.url}{BASE}", trust_env=False)
    assert (answer.status_code, answer.headers["location"]) == (308, f"{BASE}/")
    assert httpx.get(f"{behind.url}{BASE}x/", trust_env=False).status_code == 404


@pytest.mark.parametrize("path", ["/words/", "/groups", "/static"])
def test_no_redirect_leads_out_of_the_path(behind: Gallery, path: str) -> None:
    """A proxy that takes the path away would get an address without it."""
    assert httpx.get(f"{behind.url}{path}", trust_env=False).status_code == 404


def test_a_browser_never_leaves_the_path(behind: Gallery, browser: Browser) -> None:
    """It follows, searches, sorts and opens a group, by requests that a proxy would pass on."""
    context = browser.new_context(base_url=behind.url)
    page = context.new_page()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(f"{BASE}/")
    expect(page.locator(".live")).to_have_text("live")
    page.get_by_role("searchbox").fill("a/")
    expect(page.locator("table.groups tbody tr")).to_have_count(1)
    page.get_by_role("link", name="Waiting").click()
    page.locator("table.groups").get_by_role("link", name="a/b").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("a/b")
    expect(page.locator(".live")).to_have_text("live")
    page.get_by_label("Token").fill("x")
    page.get_by_role("button", name="Preview").click()
    expect(page.locator(".preview .notice")).to_be_visible()
    page.get_by_role("link", name="meaning of each word").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Words")
    context.close()
    assert any("/api/reset/" in url for url in asked)
    assert [url for url in asked if not url.startswith(f"{behind.url}{BASE}/")] == []


@pytest.mark.parametrize("path", ["offsets", "https://x/", "/a b", "/a//b", "/../x", '/"', "//x"])
def test_a_wrong_path_is_refused(path: str) -> None:
    with pytest.raises(SettingsError, match="--base-path"):
        check_base(path)


@pytest.mark.parametrize(("path", "base"), [("", ""), ("/", ""), ("/a/", "/a"), ("/a/b", "/a/b")])
def test_a_path_has_no_slash_at_its_end(path: str, base: str) -> None:
    assert check_base(path) == base
