"""The page in a real browser: it shows what the store holds, follows it, and can be used by keyboard and on a phone."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from monitor.scene import HOSTILE, LIMIT_S, TOKEN, Scene, Served
from offsetkeeper import OffsetRange, TopicPartition
from offsetkeeper.core.environment import using
from offsetkeeper.testing.clock import SetClock
from offsetkeeper.testing.kafka import KafkaServer

LIMIT_MS = LIMIT_S * 1000
expect.set_options(timeout=LIMIT_MS)
OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
CONTRASTS = """() => {
  const channel = (v) => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
  const light = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
  const parse = (color) => color.match(/[\\d.]+/g).map(Number);
  const ground = (node) => {
    for (; node; node = node.parentElement) {
      const color = parse(getComputedStyle(node).backgroundColor);
      if (color.length === 3 || color[3] === 1) return color;
    }
  };
  return [...document.querySelectorAll("main *")]
    .filter((node) => [...node.childNodes].some((child) => child.nodeType === 3 && child.data.trim()))
    .filter((node) => node.getClientRects().length && !node.closest("svg, .hidden"))
    .map((node) => {
      const pair = [light(parse(getComputedStyle(node).color)), light(ground(node))].sort((a, b) => b - a);
      return [node.textContent.trim().slice(0, 30), (pair[0] + 0.05) / (pair[1] + 0.05)];
    });
}"""


class Shown:
    """Three groups of different status, the server that shows them, and a browser."""

    def __init__(self, scene: Scene, server: Served, topic: str, browser: Browser) -> None:
        self.scene = scene
        self.server = server
        self.topic = topic
        self.browser = browser
        self.troubles: list[str] = []

    def open(self, path: str = "/", *, wide: int = 1280, scheme: str = "light") -> Page:
        """Open a page, and keep whatever goes wrong in it."""
        context = self.browser.new_context(
            viewport={"width": wide, "height": 844},
            color_scheme="dark" if scheme == "dark" else "light",
            base_url=self.server.url,
        )
        page = context.new_page()
        page.set_default_timeout(LIMIT_MS)
        page.on("console", lambda told: self.troubles.append(told.text) if told.type in {"error", "warning"} else None)
        page.on("pageerror", lambda error: self.troubles.append(str(error)))
        page.on("dialog", lambda dialog: self.troubles.append(dialog.message))
        page.on("request", lambda asked: self._check_host(asked.url))
        page.goto(path)
        return page

    def _check_host(self, url: str) -> None:
        if not url.startswith(self.server.url):
            self.troubles.append(f"asked {url}")


@pytest.fixture(scope="module")
def stage(kafka_server: KafkaServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Scene, Served, str]]:
    """One server for all tests of this file."""
    with Scene(kafka_server, f"sqlite:///{tmp_path_factory.mktemp('browser')}/offsets.db") as scene:
        topic = scene.topic(100, 4)
        scene.group("done", topic, [4] * 100, held=True, who="driver-7:4711")
        scene.group("halted", topic, [index % 5 for index in range(100)])
        scene.group(HOSTILE, topic, [1] * 100)
        with Served(scene.store, kafka_server.bootstrap, token=TOKEN) as server:
            yield scene, server, topic


@pytest.fixture
def shown(stage: tuple[Scene, Served, str], browser: Browser) -> Iterator[Shown]:
    """The stage and a browser; nothing may have gone wrong in its pages."""
    found = Shown(*stage, browser)
    yield found
    for context in browser.contexts:
        context.close()
    assert found.troubles == []


def test_all_groups_are_shown_with_status_in_colour_and_word(shown: Shown) -> None:
    page = shown.open()
    rows = page.locator("table.groups tbody tr")
    expect(rows).to_have_count(3)
    by_name = {row.locator("th a").inner_text(): row for row in rows.all()}
    assert set(by_name) == {"done", "halted", HOSTILE}
    expect(by_name["done"].locator(".status")).to_have_text("ok")
    expect(by_name["halted"].locator(".status")).to_have_text("stopped")
    expect(by_name["halted"].locator("[data-label=Waiting]")).to_have_text("200")
    expect(by_name["done"].locator("[data-label='Held by']")).to_have_text("driver-7:4711")
    colours = [
        by_name[name].locator(".status").evaluate("node => getComputedStyle(node).color") for name in ("done", "halted")
    ]
    assert colours[0] != colours[1]


def test_one_group_is_shown_with_all_there_is_to_know(shown: Shown) -> None:
    page = shown.open()
    page.get_by_role("link", name="halted").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("halted")
    for name in ("Lag over time", "Batches", "Partitions", "Plan", "Discrepancies", "History"):
        expect(page.get_by_role("heading", level=2, name=name)).to_be_visible()
    expect(page.locator("#partitions tbody tr")).to_have_count(100)
    expect(page.locator("#partitions .cells li")).to_have_count(100)
    expect(page.locator("#history tbody tr")).to_have_count(4)
    expect(page.locator("#lag svg path.line")).to_have_count(1)
    page.locator("#history summary").first.click()
    expect(page.locator("#history pre").first).to_contain_text(f"{shown.topic} 1 0 1")


def test_a_hostile_name_is_text(shown: Shown) -> None:
    page = shown.open()
    page.get_by_role("link", name=HOSTILE).click()
    expect(page.get_by_role("heading", level=1)).to_have_text(HOSTILE)
    assert page.title() == f"{HOSTILE} · offsetkeeper"
    assert page.locator("main script").count() == 0


def test_an_open_page_follows_a_running_pipeline_and_sees_it_end(scene: Scene, browser: Browser) -> None:
    """Without being loaded again; what the reader has opened and focused stays."""
    topic = scene.topic(1, 30)
    scene.group("live", topic, [5], held=True)
    with Served(scene.store, scene.server.bootstrap) as server:
        follower = Shown(scene, server, topic, browser)
        page = follower.open("/groups/live")
        waiting = page.locator(".figures div").first.locator("dd").first
        expect(waiting).to_have_text("25")
        expect(page.locator(".live")).to_have_text("live")
        page.evaluate("window.same = true")
        page.locator("#history summary").first.click()
        page.locator("#partitions .scroll").focus()
        for end in (9, 18, 29):
            scene.commit("live", topic, [end])
            expect(waiting).to_have_text(str(30 - end))
        expect(page.locator("#history tbody tr th").first).to_have_text("6")
        opened = page.locator("#history tr[data-key='3'] details")
        expect(opened).to_have_attribute("open", "")
        assert page.locator("#history details[open]").count() == 1
        expect(page.locator("#partitions .scroll")).to_be_focused()
        scene.ledgers["live"].release("deployed")
        expect(page.locator(".head .status")).to_have_text("stopped")
        assert page.evaluate("window.same")
        server.stop()
        expect(page.locator(".live")).to_have_text("no connection to offsetkeeper")
        page.context.close()
    assert [each for each in follower.troubles if "ERR_" not in each] == []


def test_a_pipeline_that_died_is_shown_as_stalled(scene: Scene, browser: Browser) -> None:
    """It still holds the group, committed once a second, and has been silent for a minute."""
    topic, began_ms, ticks = scene.topic(1, 30), time.time_ns() // 1_000_000 - 70_000, iter(range(1000))
    with using(SetClock(lambda: began_ms + next(ticks) * 1000)):
        scene.group("dead", topic, [1], held=True, who="driver-1:99")
        for end in range(2, 9):
            scene.commit("dead", topic, [end])
    with Served(scene.store, scene.server.bootstrap) as server:
        page = Shown(scene, server, topic, browser).open()
        expect(page.locator("tbody .status")).to_have_text("stalled")
        expect(page.locator("[data-label='Held by']")).to_have_text("driver-1:99")
        page.context.close()


def test_it_can_be_used_by_keyboard(shown: Shown) -> None:
    page = shown.open()
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    expect(page.get_by_role("link", name="Skip to the content")).to_be_in_viewport()
    page.keyboard.press("Enter")
    names = []
    for _ in range(14):
        page.keyboard.press("Tab")
        focused = page.locator(":focus")
        names.append(focused.evaluate("node => node.name || node.innerText"))
        ring = focused if names[-1] != "status" else page.locator(".chip", has=focused)
        assert ring.evaluate("node => getComputedStyle(node).outlineStyle") == "solid"
    assert [name.rstrip("↑") for name in names[:4]] == ["status", "search", "Group", "Status"]
    assert set(names[-3:]) == {"done", "halted", HOSTILE}
    page.locator("a", has_text="halted").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("halted")


@pytest.mark.parametrize("path", ["/", "/groups/halted"])
def test_nothing_overflows_at_any_width(shown: Shown, path: str) -> None:
    page = shown.open(path)
    expect(page.locator("h1")).to_be_visible()
    wider = []
    for wide in (320, 390, 600, 721, 768, 901, 1000, 1101, 1280, 2000):
        page.set_viewport_size({"width": wide, "height": 844})
        if page.evaluate(OVERFLOW) > 0:
            wider.append(wide)
    assert wider == []


def test_on_a_phone_each_number_has_its_name(shown: Shown) -> None:
    page = shown.open(wide=390)
    cell = page.locator("tr", has_text="halted").locator("[data-label=Waiting]")
    assert cell.evaluate("node => getComputedStyle(node, '::before').content") == '"Waiting"'
    expect(page.locator("thead th").first).not_to_be_in_viewport(ratio=0.5)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("path", ["/", "/groups/halted"])
def test_all_text_can_be_read_in_the_light_and_in_the_dark(shown: Shown, scheme: str, path: str) -> None:
    """By WCAG's contrast of 4.5 to 1."""
    page = shown.open(path, scheme=scheme)
    ground = page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
    assert (sum(map(int, ground[4:-1].split(","))) > 384) is (scheme == "light")
    found = page.evaluate(CONTRASTS)
    assert len(found) > 20
    assert [each for each in found if each[1] < 4.5] == []


def test_a_reset_is_previewed_and_done_in_the_page(shown: Shown) -> None:
    page = shown.open("/groups/halted")
    page.get_by_label("Token").fill("not-the-token-at-all")
    page.get_by_label("What").select_option("offset")
    page.get_by_role("textbox", name="Offset").fill("2")
    page.get_by_label("Reason").fill("<i>why</i>")
    page.get_by_role("button", name="Preview").click()
    expect(page.locator(".preview")).to_contain_text("send the token")
    shown.troubles.clear()  # the browser's own line for the 401
    page.get_by_label("Token").fill(TOKEN)
    page.get_by_role("textbox", name="Offset").fill("")
    page.get_by_role("button", name="Preview").click()
    expect(page.locator(".preview")).to_contain_text("give exactly one of to")
    shown.troubles.clear()
    page.get_by_role("textbox", name="Offset").fill("9007199254740993")  # a browser rounds it to …992
    page.get_by_role("button", name="Preview").click()
    expect(page.locator(".preview")).to_contain_text("no exact number for 9007199254740993")
    page.get_by_role("textbox", name="Offset").fill("2")
    page.get_by_role("button", name="Preview").click()
    expect(page.locator(".preview tbody tr")).to_have_count(80)
    expect(page.locator(".preview tbody")).not_to_contain_text("~")
    page.get_by_role("button", name="Execute this").click()
    expect(page.locator(".preview")).to_contain_text("Done")
    expect(page.locator(".head .status")).to_have_text("rewound")
    expect(page.locator("#history tbody tr").first).to_contain_text("<i>why</i>; through serve")
    assert {at.offset for at in shown.scene.open().load("halted").positions.values()} == {2}
    page.get_by_label("What").select_option("undo")
    page.get_by_role("button", name="Preview").click()
    page.get_by_role("button", name="Execute this").click()
    expect(page.locator(".preview")).to_contain_text("Done")
    assert len({at.offset for at in shown.scene.open().load("halted").positions.values()}) == 5


def test_a_preview_in_the_page_tells_what_is_dropped_and_how_near_retention_is(shown: Shown) -> None:
    ledger = shown.scene.ledgers["halted"]
    positions = ledger.acquire().positions
    tp = next(tp for tp, at in sorted(positions.items()) if 0 < at.offset < 10)
    ledger.begin(ledger.batch([OffsetRange(*tp, positions[tp].offset, positions[tp].offset + 1)]))
    ledger.release()
    page = shown.open("/groups/halted")
    page.get_by_label("Token").fill(TOKEN)
    page.get_by_label("What").select_option("earliest")
    page.get_by_label("Topics").select_option(tp.topic)
    page.get_by_role("button", name="Preview").click()
    expect(page.locator(".preview .notice").first).to_contain_text("was begun and not committed: it is dropped")
    expect(page.locator(".preview tbody td:last-child").first).to_contain_text("%")
    ledger.acquire()
    ledger.abandon("of a test")
    ledger.release()


def test_the_way_back_that_the_page_tells_is_there(shown: Shown) -> None:
    """No undo takes a first position out."""
    ledger, page = shown.scene.ledgers["halted"], shown.open("/groups/halted")
    before = ledger.acquire().positions
    ledger.release()
    ledger.forget([TopicPartition(shown.topic, 3)], "of a test")
    page.get_by_label("Token").fill(TOKEN)
    page.get_by_label("Topics").select_option(shown.topic)
    page.get_by_label("What").select_option("offset")
    for offset, told in (
        ("1", "Undo takes no first position out: offsetkeeper forget does."),
        ("2", "Undo takes it back."),
    ):
        page.get_by_role("textbox", name="Offset").fill(offset)
        page.get_by_role("button", name="Preview").click()
        page.get_by_role("button", name="Execute this").click()
        expect(page.locator(".preview")).to_contain_text(f"Done. The history shows it. {told}")
    ledger.load()
    ledger.rewind(before, "of a test")
