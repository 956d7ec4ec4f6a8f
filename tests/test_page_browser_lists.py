"""Lists and curves of the page that live while somebody reads them."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from browser import Windows
from playwright.sync_api import Locator, Page, Route, expect
from test_serve import serving

import penstock
from penstock import Broker


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serving(f"sqlite:///{tmp_path_factory.mktemp('lists')}/queue.db", "--access-log", "off") as (_, url):
        yield url


@pytest.fixture
def broker(url: str) -> Iterator[Broker]:
    """Another program."""
    with penstock.open(url) as broker:
        yield broker


HIDE = """(hidden) => { Object.defineProperty(document, "hidden", {value: hidden, configurable: true});
    document.dispatchEvent(new Event("visibilitychange")); }"""


def names(page: Page) -> list[str]:
    return page.locator(".rows .name a").all_inner_texts()


def test_the_list_is_sorted_by_any_column_and_the_address_says_how(url: str, broker: Broker, windows: Windows) -> None:
    for place, depth in enumerate((2, 3, 1)):
        broker.create(f"sorted-{place}").send_many([b"x"] * depth)
    page = windows.open(f"{url}/dashboard?filter=sorted")
    expect(page.locator(".rows .name a")).to_have_text(["sorted-0", "sorted-1", "sorted-2"])
    page.get_by_role("button", name="Messages").click()
    expect(page.locator(".rows .name a")).to_have_text(["sorted-1", "sorted-0", "sorted-2"])
    expect(page.get_by_role("columnheader", name="Messages")).to_have_attribute("aria-sort", "descending")
    expect(page).to_have_url(re.compile("sort=messages&order=down"))
    page.reload()
    expect(page.locator(".rows .name a")).to_have_text(["sorted-1", "sorted-0", "sorted-2"])


def test_a_row_does_not_move_away_from_the_pointer(url: str, broker: Broker, windows: Windows) -> None:
    broker.create("moves-first").send_many([b"x"] * 2)
    later = broker.create("moves-later")
    page = windows.open(f"{url}/dashboard?filter=moves&sort=messages&order=down")
    expect(page.locator(".rows .name a")).to_have_text(["moves-first", "moves-later"])
    page.locator(".rows .row").first.hover()
    depth = page.get_by_role("row").filter(has_text="moves-later").locator(".messages")
    later.send_many([b"x"] * 5)
    expect(depth).to_have_text("5")
    for number in range(6, 11):  # the server tells twice a second at most: it is time for another order
        later.send(b"x")
        expect(depth).to_have_text(str(number))
    assert names(page) == ["moves-first", "moves-later"]
    page.get_by_label("Filter by name").hover()
    later.send(b"x")
    expect(page.locator(".rows .name a")).to_have_text(["moves-later", "moves-first"])


def test_going_back_leads_to_where_the_reader_was(url: str, broker: Broker, windows: Windows) -> None:
    for number in range(120):
        broker.create(f"long-{number:03}")
    page = windows.open(f"{url}/dashboard?filter=long-")
    expect(page.locator(".list")).to_have_attribute("aria-rowcount", "121")
    page.evaluate("() => scrollTo(0, 3000)")
    page.get_by_role("link", name="long-095").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("long-095")
    page.go_back()
    expect(page.get_by_role("heading", name="Queues")).to_be_focused()
    assert page.evaluate("() => scrollY") == 3000
    expect(page.get_by_role("link", name="long-095")).to_be_in_viewport()


def test_a_hidden_page_asks_for_nothing_and_catches_up_when_it_is_seen(url: str, broker: Broker, windows: Windows) -> None:
    queue = broker.create("unseen")
    page, seen = (windows.open(f"{url}/dashboard?filter=unseen") for _ in range(2))
    for each in (page, seen):
        expect(depth(each)).to_have_text("0")
        expect(each.locator("#live")).to_have_text("live")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.evaluate(HIDE, True)
    queue.send(b"hello")
    expect(depth(seen)).to_have_text("1")
    assert (depth(page).inner_text(), asked) == ("0", [])
    with page.expect_request(lambda request: "/penstock/changes" in request.url):
        page.evaluate(HIDE, False)
    expect(depth(page)).to_have_text("1")


def depth(page: Page) -> Locator:
    return page.get_by_role("row").filter(has_text="unseen").locator(".messages")


@pytest.mark.parametrize(
    ("view", "words"), [("schedules", "No schedules."), ("pipelines", "No pipeline has"), ("server", "Recent changes")]
)
def test_a_view_that_looks_every_few_seconds_does_not_while_it_is_hidden(
    url: str, windows: Windows, view: str, words: str
) -> None:
    page = windows.open("about:blank")
    page.clock.install()  # so that nobody waits
    page.goto(f"{url}/dashboard/{view}")
    expect(page.get_by_text(words).first).to_be_visible()
    with page.expect_response(f"**/penstock/{view}"):
        page.clock.fast_forward(5000)
    page.evaluate(HIDE, True)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.clock.fast_forward("20:00")
    assert page.evaluate("() => document.hidden") is True
    assert asked == []
    with page.expect_response(f"**/penstock/{view}"):
        page.evaluate(HIDE, False)


def test_what_is_selected_stays_selected_while_the_view_lives(url: str, broker: Broker, windows: Windows) -> None:
    queue = broker.create("held")
    queue.send_many([b"x"] * 3)
    queue.receive(1, holder="patient worker")
    page = windows.open(f"{url}/dashboard/queues/held")
    row = page.get_by_role("row").filter(has_text="patient worker")
    expect(row.get_by_role("cell").nth(2)).to_have_text("1")
    select = "(node) => getSelection().selectAllChildren(node)"
    row.get_by_role("cell").first.evaluate(select)
    queue.receive(1, holder="patient worker")
    expect(row.get_by_role("cell").nth(2)).to_have_text("2")
    assert page.evaluate("() => getSelection().toString()") == "patient worker"


def test_a_curve_tells_its_values_under_the_pointer_and_in_words(url: str, broker: Broker, windows: Windows) -> None:
    broker.create("curved").send_many([b"x"] * 7)
    page = windows.open(f"{url}/dashboard/queues/curved?span=minute")
    expect(page.get_by_role("radio", name="Minute")).to_be_checked()
    picture = page.get_by_role("img", name="Messages. in the queue: last 7")
    expect(picture).to_be_visible()
    box = picture.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] - 12, box["y"] + 40)
    expect(page.locator(".tip").first).to_contain_text("in the queue 7")


def test_a_reader_who_scrolls_while_the_list_loads_is_not_thrown_back(url: str, broker: Broker, windows: Windows) -> None:
    for number in range(120):
        broker.create(f"early-{number:03}", exist_ok=True)
    page = windows.open(f"{url}/dashboard/jobs")
    held: list[Route] = []
    page.route("**/penstock/overview?*", lambda route: held.append(route))
    page.get_by_role("link", name="Queues").click()
    page.get_by_label("Filter by name").fill("early-")
    page.get_by_label("Filter by name").blur()
    expect(page.locator(".list")).to_have_attribute("aria-rowcount", "121")  # the stream has told of them
    page.evaluate("() => scrollTo(0, 2000)")
    held[0].continue_()
    expect(page.get_by_role("heading", name="Queues")).to_be_focused()  # the last that happens to a view that was loaded
    assert page.evaluate("() => scrollY") == 2000


def test_schedules_are_seen_paused_resumed_and_removed(url: str, broker: Broker, windows: Windows) -> None:
    broker.create("reports")
    broker.schedule("nightly", queue="reports", cron="0 3 * * *", zone="Europe/Berlin", body=b"")
    broker.schedule("<b>tick", queue="reports", every=120, body=b"")
    page = windows.open(f"{url}/dashboard/schedules")
    row = page.get_by_role("row").filter(has_text="nightly")
    expect(row.get_by_role("cell")).to_have_text(
        ["nightly", "reports", "0 3 * * * (Europe/Berlin)", re.compile(r"^in \d+ "), "–", "0", "Pause Remove"]
    )
    expect(page.get_by_role("row").nth(1)).to_contain_text("every 2 minutes")
    page.get_by_role("button", name="Pause nightly").click()
    expect(row).to_contain_text("paused")
    assert [each.paused for each in broker.schedules()] == [False, True]
    page.get_by_role("button", name="Resume nightly").click()
    expect(row).not_to_contain_text("paused")
    page.get_by_role("button", name="Remove <b>tick").click()
    page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
    assert len(broker.schedules()) == 2
    page.get_by_role("button", name="Remove <b>tick").click()
    page.get_by_role("dialog").get_by_role("button", name="Remove").click()
    expect(page.get_by_role("row")).to_have_count(2)
    assert [each.name for each in broker.schedules()] == ["nightly"]
    broker.remove_schedule("nightly")
    page.reload()
    expect(page.get_by_text("No schedules.")).to_be_visible()
