"""The table of partitions: the worst first, and by any column, as the address asks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from playwright.sync_api import Browser, Page, expect

from monitor.gallery import Gallery, group
from monitor.scene import LIMIT_S
from offsetkeeper.core.bounds import Bounds, Standing
from offsetkeeper.monitor.cells import behind
from offsetkeeper.monitor.choice import Choice
from offsetkeeper.monitor.order import Order
from offsetkeeper.monitor.partitions import COLUMNS, USUAL, ordered
from offsetkeeper.monitor.view import GroupSample

expect.set_options(timeout=LIMIT_S * 1000)
ODD = {1: Bounds(0, 10, "id"), 3: Bounds(1_000_500, 1_000_600, "id")}  # beyond the end; 500 lost
SHOP = group("shop", [5, 0, 900, 0, 7], 1000, bounds=ODD)


def numbers(sample: GroupSample, order: Order = USUAL, most: int | None = None) -> list[int]:
    """The partitions, in order."""
    return [row.lag.topic_partition.partition for row in ordered(sample.lags or (), sample.speeds, order, most)]


@pytest.fixture(scope="module")
def page(browser: Browser) -> Iterator[Page]:
    """A page of a group with two topics."""
    with Gallery() as gallery:
        gallery.show(SHOP, group("many", [number % 3 for number in range(300)], 100))
        context = browser.new_context(base_url=gallery.url)
        yield context.new_page()
        context.close()


def test_the_worst_partition_is_the_first() -> None:
    assert numbers(SHOP) == [3, 1, 4, 2, 0]
    assert numbers(SHOP, USUAL, most=2) == [3, 1]


def test_what_is_about_to_go_and_what_may_be_old_comes_before_what_is_known_to_be_young() -> None:
    [young] = group("shop", [1]).lags or ()
    unknown = replace(young, records=10_000_000, seconds=None)
    held_back = replace(young, records=0, seconds=None, held_back=5, held_back_s=3 * 86_400.0)
    going = replace(young, records=3, seconds=60.0, retention_used=0.95)
    old = replace(young, records=3, seconds=7_200.0, retention_used=0.01)
    nothing = replace(young, standing=Standing.UNKNOWN, records=None, seconds=None)
    lost = replace(young, standing=Standing.BELOW_BEGINNING, lost=1)
    worst = [lost, going, unknown, held_back, old, young, nothing]
    assert sorted([nothing, young, old, going, unknown, held_back, lost], key=behind) == worst


@pytest.mark.parametrize("column", COLUMNS, ids=lambda column: column.key)
def test_partitions_can_be_sorted_by_each_column(column: object) -> None:
    key = next(each.key for each in COLUMNS if each is column)
    assert sorted(numbers(SHOP, Order(key))) == sorted(numbers(SHOP, Order(key, reversed=True))) == [0, 1, 2, 3, 4]


def test_a_column_of_numbers_has_the_largest_first_and_what_is_not_known_last() -> None:
    assert numbers(SHOP, Order("waiting"))[:3] == [2, 3, 4]
    assert numbers(SHOP, Order("waiting"))[-1] == numbers(SHOP, Order("waiting", reversed=True))[-1] == 1  # not known


def test_what_is_chosen_is_in_the_address_and_what_is_usual_is_not() -> None:
    assert Choice().query == ""
    for query in ("?all&shade=retention&sort=-waiting&lag=day", "?sort=topic", "?lag=day", ""):
        asked = dict(pair.partition("=")[::2] for pair in query[1:].split("&"))
        assert Choice.of(asked).query == query
    assert Choice.of({"sort": "no column", "shade": "x", "lag": "year"}) == Choice()


def test_a_click_on_a_head_sorts_the_partitions_and_keeps_the_rest_of_the_address(page: Page) -> None:
    page.goto("/groups/shop?shade=retention")
    rows = page.locator("#partitions tbody th")
    expect(rows).to_have_text(["3", "1", "4", "2", "0"])
    expect(page.locator(".sorts b")).to_have_text("worst first")
    page.evaluate("window.same = true")
    page.locator("#partitions thead").get_by_role("link", name="Waiting").click()
    expect(rows.first).to_have_text("2")
    expect(page.get_by_role("columnheader", name="Waiting")).to_have_attribute("aria-sort", "descending")
    assert page.url.endswith("/groups/shop?shade=retention&sort=waiting")
    page.locator("#partitions thead").get_by_role("link", name="Waiting").click()
    expect(rows).to_have_text(["0", "4", "3", "2", "1"])
    page.locator(".sorts").get_by_role("link", name="worst first").click()
    expect(rows.first).to_have_text("3")
    assert page.url.endswith("/groups/shop?shade=retention")
    assert page.evaluate("window.same")


def test_the_first_ones_in_the_order_are_shown_of_many(page: Page) -> None:
    page.goto("/groups/many?sort=-partition")
    expect(page.locator("#partitions tbody th").first).to_have_text("299")
    expect(page.get_by_text("The 200 partitions that come first in this order.")).to_be_visible()
    page.get_by_role("link", name="Show all 300").click()
    expect(page.locator("#partitions tbody th")).to_have_count(300)
    assert page.url.endswith("?all&sort=-partition")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_on_a_phone_no_table_goes_beyond_the_screen(browser: Browser, scheme: str) -> None:
    """Each row is a block in which each value has its name; nothing is scrolled to the side."""
    with Gallery() as gallery:
        gallery.show(SHOP)
        context = browser.new_context(
            base_url=gallery.url,
            viewport={"width": 390, "height": 844},
            color_scheme="dark" if scheme == "dark" else "light",
        )
        page = context.new_page()
        page.goto("/groups/shop")
        wide = "all => all.filter((node) => node.scrollWidth > node.clientWidth + 1).length"
        assert page.locator(".scroll").count() >= 2
        assert page.locator(".scroll").evaluate_all(wide) == 0
        right = "all => Math.max(...all.map((node) => node.getBoundingClientRect().right))"
        assert page.locator(".scroll td, .scroll th").evaluate_all(right) < 390
        narrow = "all => Math.min(...all.map((node) => node.getBoundingClientRect().width).filter((each) => each))"
        assert page.locator(".scroll td, .scroll tbody th").evaluate_all(narrow) > 30
        named = page.locator("#partitions tbody tr").first.locator("[data-label=Waiting]")
        assert named.evaluate("node => getComputedStyle(node, '::before').content") == '"Waiting"'
        expect(page.locator(".sorts").get_by_role("link", name="oldest unread")).to_be_visible()
        cut = "all => all.filter((node) => node.scrollWidth > node.clientWidth + 1).map((node) => node.textContent)"
        assert page.locator(".sources dd, .filters .chip, .readout, .step").evaluate_all(cut) == []
        context.close()
