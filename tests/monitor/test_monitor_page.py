"""The page in a real browser, over what no small scene has: many groups and partitions, long names, alarms."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from monitor.gallery import Gallery, group
from monitor.scene import LIMIT_S
from offsetkeeper.core.bounds import Bounds

LIMIT_MS = LIMIT_S * 1000
expect.set_options(timeout=LIMIT_MS)
LONG, RIGHT_TO_LEFT, EMOJI = "x" * 200, "مجموعة-الطلبات", "🛒 shop 👩‍👩‍👧‍👦"
OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
CUT = """() => [...document.querySelectorAll("td.n, th.n, .figures dd:not(.sub)")]
  .filter((node) => node.getClientRects().length)
  .filter((node) => {
    const { left, right } = node.getBoundingClientRect();
    const scrolls = node.closest(".scroll");
    return node.scrollWidth > node.clientWidth + 1 || (!scrolls && (left < 0 || right > innerWidth));
  })
  .map((node) => node.textContent)"""
FIFTY = [
    *(group(f"orders-{number:02}", [0] * 3, owner="driver-1:99") for number in range(30)),
    *(group(f"payments-{number:02}", [10 * number + 1], 900) for number in range(15)),
    group("beyond", [0], bounds={0: Bounds(0, 5, "id")}),
    group("spoilt", [3], error="no control record"),
    group(LONG, [1_234_567_890_123], 86_400 * 400, owner=f"{LONG}:1"),
    group(RIGHT_TO_LEFT, [5, 4], owner="مضيف:1"),
    group(EMOJI, [5], commits=0),
]
ALARMS = [*(("down", f"payments-{number:02}") for number in range(8)), ("far behind", LONG), ("far behind", EMOJI)]

Open = Callable[..., Page]


@pytest.fixture(scope="module")
def gallery() -> Iterator[Gallery]:
    """One server for all tests of this file."""
    with Gallery() as found:
        yield found


@pytest.fixture
def show(gallery: Gallery, browser: Browser) -> Iterator[Open]:
    """Open a page of the gallery; nothing may go wrong in it, such as a breach of the policy for scripts and styles."""
    troubles: list[str] = []

    def opened(path: str = "/", wide: int = 1280, scheme: str = "light") -> Page:
        context = browser.new_context(
            viewport={"width": wide, "height": 844},
            color_scheme="dark" if scheme == "dark" else "light",
            base_url=gallery.url,
        )
        page = context.new_page()
        page.set_default_timeout(LIMIT_MS)
        page.on("console", lambda told: troubles.append(told.text) if told.type in {"error", "warning"} else None)
        page.on("pageerror", lambda error: troubles.append(str(error)))
        page.goto(path)
        expect(page.locator(".live")).to_have_text("live")
        return page

    yield opened
    for context in browser.contexts:
        context.close()
    assert troubles == []


def names(page: Page) -> Locator:
    """The names in the list."""
    return page.locator("table.groups tbody th a")


def height(found: Locator) -> float:
    """How high it is, in pixels."""
    return float(found.evaluate("node => node.getBoundingClientRect().height"))


def test_search_filter_and_sort_choose_without_loading_and_survive_a_poll(gallery: Gallery, show: Open) -> None:
    gallery.show(*FIFTY)
    page = show()
    expect(names(page)).to_have_count(50)
    page.evaluate("window.same = true")
    page.get_by_role("radio", name="stopped").check()
    expect(names(page)).to_have_count(16)
    expect(page.locator(".filters label").first).to_have_text("all 50")
    page.get_by_role("link", name="Waiting").click()
    expect(names(page).first).to_have_text("payments-14")
    expect(page.get_by_role("columnheader", name="Waiting")).to_have_attribute("aria-sort", "descending")
    page.get_by_role("searchbox").press_sequentially("MENTS-0")
    expect(names(page)).to_have_count(10)
    expect(names(page).first).to_have_text("payments-09")
    assert page.url.endswith("/?status=stopped&sort=waiting&search=MENTS-0")
    gallery.show(*FIFTY[:35])
    expect(names(page)).to_have_count(5)
    expect(page.get_by_role("searchbox")).to_have_value("MENTS-0")
    expect(page.get_by_role("searchbox")).to_be_focused()
    expect(page.get_by_role("radio", name="stopped")).to_be_checked()
    page.go_back()
    expect(page.get_by_role("searchbox")).to_have_value("")
    expect(names(page)).to_have_count(5)
    expect(names(page).first).to_have_text("payments-00")  # the worst first, by name
    page.get_by_role("searchbox").fill("none of them")
    page.get_by_role("link", name="Show all 35").click()
    expect(names(page)).to_have_count(35)
    expect(page.get_by_role("searchbox")).to_have_value("")
    assert page.evaluate("window.same")


def test_all_alarms_are_one_line_that_unfolds_and_stays_open(gallery: Gallery, show: Open) -> None:
    gallery.show(*FIFTY, alarms=ALARMS)
    page = show()
    summary = page.locator("#alarms summary")
    expect(summary).to_have_text("8 groups down, 2 far behind")
    assert height(summary) < 40
    expect(page.locator("#alarms li").first).to_be_hidden()
    summary.press("Enter")
    expect(page.locator("#alarms li")).to_have_count(10)
    expect(page.locator("#alarms li").first).to_have_text("down payments-00 since 2027-01-15 07:50:00 UTC")
    gallery.show(*FIFTY, alarms=ALARMS[5:])
    expect(summary).to_have_text("3 groups down, 2 far behind")
    expect(page.locator("#alarms li").first).to_be_visible()
    page.locator("#alarms").get_by_role("link", name=EMOJI).click()
    expect(summary).to_have_text("Alarm: far behind")
    gallery.show(*FIFTY)
    expect(page.locator("#alarms")).to_have_count(0)


def test_on_a_phone_groups_are_on_the_first_screen(gallery: Gallery, show: Open) -> None:
    gallery.show(*FIFTY, alarms=[(rule, each.snapshot.group) for rule in ("down", "far behind") for each in FIFTY])
    page = show(wide=390)
    expect(names(page).nth(2)).to_be_in_viewport()
    assert page.locator("table.groups tbody tr").nth(1).evaluate("row => row.getBoundingClientRect().bottom") < 844


@pytest.mark.parametrize("path", ["/", f"/groups/{LONG}", "/groups/wide"])
def test_nothing_is_cut_or_overflows_at_any_width(gallery: Gallery, show: Open, path: str) -> None:
    odd = {7: Bounds(0, 10, "id"), 8: Bounds(0, 5, "other"), 9: Bounds(1_000_500, 1_000_600, "id")}
    wide = group("wide", [number % 4 for number in range(1000)], 9000, topics=["t" * 249], owner="x:1", bounds=odd)
    gallery.show(*FIFTY, wide, alarms=[*ALARMS, ("down", "wide")])
    page = show(path)
    found = []
    for width in (320, 390, 720, 768, 1000, 1001, 1024, 1181, 1321, 1440):
        page.set_viewport_size({"width": width, "height": 844})
        if page.evaluate(OVERFLOW) > 0 or page.evaluate(CUT):
            found.append((width, page.evaluate(OVERFLOW), page.evaluate(CUT)[:3]))
    assert found == []
    assert page.locator("td.n").first.evaluate("node => getComputedStyle(node).textAlign") == "right"


def test_a_thousand_topics_with_the_longest_names_leave_room_for_their_figures(gallery: Gallery, show: Open) -> None:
    topics = [f"{number:04}{'t' * 245}" for number in range(1000)]
    gallery.show(group("many", [1] * 1000, 9000, topics=topics, bounds={7: Bounds(0, 10, "id")}))
    page = show("/groups/many", wide=390)
    assert page.evaluate(OVERFLOW) == 0
    expect(page.locator(".strip")).to_have_count(10)
    expect(page.locator(".strip").first).to_contain_text(topics[7])
    figure = page.locator("#partitions tbody tr").first.locator("td.n").first.bounding_box()
    assert figure is not None
    assert figure["x"] + figure["width"] < 390
    page.get_by_role("link", name="Show all 1,000").first.click()
    expect(page.locator("#partitions tbody tr")).to_have_count(1000)
    expect(page.locator(".strip")).to_have_count(100)
    expect(page.get_by_text("The 100 topics that are most behind. All, as JSON")).to_be_visible()
    assert page.evaluate(OVERFLOW) == 0


@pytest.mark.parametrize("wide", [390, 1024, 1440])
def test_the_holder_is_on_one_line_of_a_table_and_can_be_read_on_a_phone(
    gallery: Gallery, show: Open, wide: int
) -> None:
    gallery.show(*FIFTY)
    page = show(wide=wide)
    row = page.locator("table.groups tr", has_text=LONG)
    held = row.locator("[data-label='Held by']")
    assert height(held) > 0
    assert height(held.locator(".ellipsis")) < (80 if wide == 390 else 25)
    if wide == 390:
        usual = page.locator("table.groups tr", has_text="orders-00").locator(".ellipsis")
        assert usual.evaluate("node => node.scrollWidth <= node.clientWidth")
    expect(held.locator(".ellipsis")).to_have_attribute("title", f"{LONG}:1")


def test_never_and_unknown_are_two_words(gallery: Gallery, show: Open) -> None:
    gallery.show(group("fresh", [5], commits=0), group("slow", [900_000], 10))
    page = show()
    cells = page.locator("tr", has_text="fresh").locator("td")
    expect(cells.and_(page.locator("[data-label='Last commit']"))).to_have_text("never")
    expect(cells.and_(page.locator("[data-label='Caught up in']"))).to_have_text("unknown")
    expect(page.locator("tr", has_text="slow").locator("[data-label='Caught up in']")).to_have_text("never")


@pytest.mark.parametrize("by", ["mouse", "keyboard"])
def test_a_chart_tells_its_values_by_mouse_and_by_keyboard(gallery: Gallery, show: Open, by: str) -> None:
    gallery.show(group("shop", [60, 40], 100, owner="x:1"))
    page = show("/groups/shop")
    plot, readout = page.locator("#lag .plot"), page.locator("#lag .readout")
    newest = "08:00:00: 100 waiting, oldest 1 min 40 s"
    expect(readout).to_have_text(newest)
    expect(page.locator("#lag path.age")).to_have_count(1)
    if by == "mouse":
        plot.hover(position={"x": 2, "y": 20})
    else:
        plot.focus()
        page.keyboard.press("Home")
        page.keyboard.press("ArrowRight")
        page.keyboard.press("ArrowLeft")
    oldest = "07:56:40: 75 waiting, oldest 50 s"
    expect(readout).to_have_text(oldest)
    expect(plot).to_have_attribute("aria-valuetext", oldest)
    assert page.locator("#lag .spot").get_attribute("d")
    gallery.show(group("shop", [60, 40], 101, owner="x:1"))
    expect(page.locator("#pulse")).to_be_visible()
    expect(plot).to_have_attribute("data-values", re.compile("1 min 41 s"))
    expect(readout).to_have_text("07:56:40: 75 waiting, oldest 50 s")
    if by == "mouse":
        page.mouse.move(1, 1)
    else:
        page.keyboard.press("Escape")
    expect(readout).to_have_text("08:00:00: 100 waiting, oldest 1 min 41 s")


def test_the_axis_of_the_batches_ends_now(gallery: Gallery, show: Open) -> None:
    gallery.show(group("shop", [60, 40], commits=8))
    page = show("/groups/shop")
    expect(page.locator("#batches figcaption time").last).to_have_text("now")
    last = page.locator("#batches .mark").last.get_attribute("x1")
    assert float(last or "nan") == pytest.approx(4 + 992 * 8 / 9, abs=0.1)  # a minute ago, of nine


def test_the_history_is_one_tab_stop(gallery: Gallery, show: Open) -> None:
    gallery.show(group("shop", [60, 40], commits=8))
    page = show("/groups/shop")
    at = "document.activeElement.closest('tr')?.dataset.key ?? document.activeElement.name"
    page.locator("#history summary").first.focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    assert page.evaluate(at) == "7"
    page.keyboard.press("Enter")
    expect(page.locator("#history tr[data-key='7'] pre")).to_be_visible()
    gallery.show(group("shop", [60, 40], commits=9))
    expect(page.locator("#history tbody tr")).to_have_count(10)
    assert page.evaluate(at) == "7"
    expect(page.locator("#history tr[data-key='7'] pre")).to_be_visible()
    page.keyboard.press("Tab")
    assert page.evaluate(at) == "token"
    page.keyboard.press("Shift+Tab")
    assert page.evaluate(at) == "7"


def test_partitions_are_shaded_by_age_or_retention_and_what_is_wrong_is_marked(gallery: Gallery, show: Open) -> None:
    odd = {2: Bounds(0, 10, "id"), 3: Bounds(0, 5, "other")}
    gallery.show(group("shop", [0, 5, 0, 0, 5], 86_400, bounds=odd, retention_ms=100_000_000))
    page = show("/groups/shop")
    shades = "() => [...document.querySelectorAll('.cells li')].map((cell) => cell.className)"
    assert page.evaluate(shades) == ["s-0", "s-4", "s-beyond", "s-recreated", "s-5"]
    marks = page.locator(".cells li").evaluate_all("all => all.map(e => getComputedStyle(e, '::before').content)")
    assert marks[2:4] == ['"»"', '"↻"']
    expect(page.locator("#partitions .legend")).to_contain_text("beyond the end")
    page.get_by_role("link", name="share of retention used").click()
    expect(page.locator("#partitions .shades b").first).to_have_text("share of retention used")
    assert page.evaluate(shades) == ["s-0", "s-3", "s-beyond", "s-recreated", "s-5"]


def test_a_partition_whose_leader_has_changed_says_so(gallery: Gallery, show: Open) -> None:
    sample = group("shop", [5])
    gallery.show(replace(sample, lags=[replace(each, unchecked=True) for each in sample.lags or ()]))
    expect(show("/groups/shop").locator("#partitions")).to_contain_text("leader changed, not checked")


def test_a_store_without_groups_says_what_to_type_first(gallery: Gallery, show: Open) -> None:
    gallery.show()
    page = show(wide=390)
    first = page.locator("#groups pre").first
    expect(first).to_contain_text("offsetkeeper plan orders --topic orders")
    expect(first).to_contain_text("--store postgresql://db/shop")
    assert page.evaluate(OVERFLOW) == 0
    gallery.show(group("shop", [1]))
    expect(names(page)).to_have_text("shop")
    expect(page.locator("#groups pre")).to_have_count(0)


@pytest.mark.parametrize("name", [RIGHT_TO_LEFT, EMOJI])
def test_names_in_any_script_stand_apart_from_the_words_around_them(gallery: Gallery, show: Open, name: str) -> None:
    gallery.show(*FIFTY)
    page = show()
    page.get_by_role("link", name=name).click()
    expect(page.get_by_role("heading", level=1)).to_have_text(name)
    expect(page.locator("h1 bdi")).to_have_count(1)


def test_nothing_moves_for_who_wants_no_motion(gallery: Gallery, show: Open) -> None:
    gallery.show(group("shop", [1]))
    page = show("/groups/shop")
    page.emulate_media(reduced_motion="reduce")
    moving = "all => all.filter((node) => parseFloat(getComputedStyle(node).transitionDuration) > 0).length"
    assert page.locator("main *").evaluate_all(moving) == 0
