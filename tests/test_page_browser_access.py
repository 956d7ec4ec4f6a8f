"""The page for everybody: axe-core on each view, light and dark and on a phone; the keyboard; what it weighs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from importlib.resources import files

import pytest
from browser import DESK, PHONE, Windows, check_access, check_width
from playwright.sync_api import Page, expect
from test_serve import serving

import penstock
from penstock import Broker
from penstock.message import Redrive

MOST_BYTES = 150_000


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    store = f"sqlite:///{tmp_path_factory.mktemp('access')}/queue.db"
    with penstock.open(store) as broker:
        broker.create("orders-dead")
        orders = broker.create("orders", redrive=Redrive("orders-dead", 1), visibility=0, history=3600)
        orders.send_many([json.dumps({"pizza": number}).encode() for number in range(5)])
        while orders.receive(10):
            pass
        orders.update(visibility=3600)
        orders.send_many([json.dumps({"pizza": number, "toppings": ["ham"]}).encode() for number in range(60)])
        orders.receive(3, holder="worker 7")
        orders.send(b"later", delay=3600)
        orders.confirm("spark-stream", orders.claim("spark-stream", 1, 2).epoch)
        broker.create("empty")
        broker.create("resting", paused=True)
    with serving(store, "--access-log", "off") as (_, url):
        yield url


@pytest.fixture
def broker(url: str) -> Iterator[Broker]:
    with penstock.open(url) as broker:
        yield broker


def views(broker: Broker) -> dict[str, str]:
    """The address of each view, and words that it shows when it is ready."""
    message = broker["orders"].peek(1, state="queued")[0]
    return {
        "/": "orders",
        "/dashboard/queues/orders": "worker 7",
        "/dashboard/queues/resting": "This queue is paused",
        "/dashboard/queues/orders/messages?group=none": "No message fits.",
        "/dashboard/queues/orders/messages": "pizza",
        "/dashboard/queues/empty/messages": "No messages.",
        f"/dashboard/queues/orders/messages/{message.id}": "toppings",
        f"/dashboard/queues/orders/messages/{message.id}?as=hex": "7b 22",
        "/dashboard/dead-letters": "orders-dead",
        "/dashboard/dead-letters/orders-dead": "max_receives",
        "/dashboard/jobs": "completed",
        "/dashboard/schedules": "nightly",
        "/dashboard/pipelines": "2 of 9 dropped",
        "/dashboard/server": penstock.__version__,
        "/dashboard/sign-in": "asks for no token",
    }


@pytest.fixture(scope="module")
def _job(url: str) -> None:
    """Something to see among the jobs, the schedules and the pipelines."""
    from penstock.testing.http import Http

    job = {"queue": "empty", "action": "delete", "filter": {}}
    assert Http(url)("POST", "/penstock/jobs", json.dumps(job).encode()).status < 300
    with penstock.open(url) as broker:
        broker.schedule("nightly", queue="orders", cron="0 3 * * *", zone="Europe/Berlin", body=b"{}")
        broker.schedule("stopped", queue="orders", every=60, body=b"{}")
        broker.change_schedule("stopped", paused=True)
        checks = {
            "orders.small": {"action": "drop", "rows": 9, "failed": 2},
            "known": {"action": "stop", "rows": 9, "failed": 0},
        }
        broker.report("to-lake", reads=["orders", "empty"], checks=checks, last_error="it failed")  # type: ignore[attr-defined]


@pytest.mark.usefixtures("_job")
@pytest.mark.parametrize(("scheme", "size"), [("light", DESK), ("dark", DESK), ("light", PHONE), ("dark", PHONE)], ids=str)
def test_each_view_can_be_used_by_everybody(
    url: str, broker: Broker, windows: Windows, scheme: str, size: dict[str, int]
) -> None:
    page = windows.open(f"{url}/dashboard/sign-in", size=size, scheme=scheme)
    for address, words in views(broker).items():
        page.goto(f"{url}{address}")
        expect(page.get_by_text(words).first).to_be_attached()
        check_access(page)
        check_width(page)
        assert page.title().endswith("Penstock")
        assert page.get_by_role("heading", level=1).count() == 1


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_each_dialog_can_be_used_by_everybody(url: str, windows: Windows, scheme: str) -> None:
    page = windows.open(f"{url}/dashboard/queues/orders/messages", scheme=scheme, size=PHONE)
    expect(page.locator("tbody tr").first).to_be_visible()
    for name, ready in {
        "Send": "Attributes",
        "Purge": "to confirm",
        "Act on all…": "looked at",
    }.items():
        page.get_by_role("button", name=name, exact=True).click()
        box = page.get_by_role("dialog")
        expect(box).to_contain_text(ready)
        check_access(page)
        check_width(page)
        page.keyboard.press("Escape")
        expect(box).to_be_hidden()
        expect(page.get_by_role("button", name=name, exact=True)).to_be_focused()
    page.get_by_text("More filters").click()
    check_access(page)
    page.locator("tbody tr").first.get_by_role("checkbox").check()
    page.get_by_role("button", name="Move").click()
    expect(page.get_by_label("To the queue")).to_be_focused()
    check_access(page)
    page.goto(f"{url}/dashboard/queues/orders")
    page.get_by_role("button", name="Edit settings").click()
    expect(page.get_by_role("dialog")).to_contain_text("Retention")
    check_access(page)


def test_a_queue_is_found_and_a_message_read_and_deleted_with_the_keyboard_alone(
    url: str, broker: Broker, windows: Windows
) -> None:
    queue = broker.create("keyboard")
    queue.send_many([b"first", b"second"])
    page = windows.open(url)
    expect(page.get_by_text("keyboard").first).to_be_visible()
    press = page.keyboard.press
    press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    press("/")
    expect(page.get_by_label("Filter by name")).to_be_focused()
    page.keyboard.type("keyb")
    expect(page.get_by_role("table")).to_have_attribute("aria-rowcount", "2")
    tab_to(page, "keyboard")
    press("Enter")
    expect(page.get_by_role("heading", level=1)).to_be_focused()  # a reader is told where it is now
    tab_to(page, "Messages")
    press("Enter")
    expect(page.locator("tbody tr")).to_have_count(2)
    tab_to(page, "#")
    press("Enter")
    expect(page.get_by_role("region", name="The body")).to_have_text("first")
    tab_to(page, "Delete")
    press("Enter")
    box = page.get_by_role("dialog")
    expect(box).to_be_visible()
    tab_to(page, "Delete")
    assert box.evaluate("(box) => box.contains(document.activeElement)")  # the focus stays in the dialog
    press("Enter")
    expect(page.locator("tbody tr")).to_have_count(1)
    assert [message.body for message in queue.peek(10)] == [b"second"]


def tab_to(page: Page, words: str) -> None:
    """Press Tab until the element with the focus has such a text."""
    for _ in range(60):
        page.keyboard.press("Tab")
        if page.evaluate("() => document.activeElement.innerText ?? ''").startswith(words):
            return
    pytest.fail(f"no Tab leads to {words!r} at {page.url}")


def test_the_theme_is_that_of_the_system_until_one_is_chosen_and_then_stays(url: str, windows: Windows) -> None:
    page = windows.open(url, scheme="dark")
    paper = "() => getComputedStyle(document.documentElement).backgroundColor"
    dark = page.evaluate(paper)
    page.get_by_role("button", name="Switch between light and dark").click()
    assert page.evaluate(paper) != dark
    light = page.evaluate(paper)
    page.reload()
    expect(page.get_by_role("heading", level=1)).to_be_visible()
    assert page.evaluate(paper) == light


def test_times_are_in_the_zone_of_the_reader(url: str, broker: Broker, windows: Windows) -> None:
    sent = broker["empty"].send(b"x")
    message = broker["empty"].peek()[0]
    page = windows.open(f"{url}/dashboard/queues/empty/messages/{sent.id}")
    kathmandu = page.locator("time").first.get_attribute("title")
    assert kathmandu
    minutes = (message.sent_at // 1_000_000 + (5 * 60 + 45) * 60) // 60 % (24 * 60)  # 5:45 ahead
    assert f" {minutes // 60:02}:{minutes % 60:02}:" in kathmandu
    broker["empty"].delete(sent.id)


def test_the_whole_page_is_small_and_asks_nobody_else(url: str, windows: Windows) -> None:
    """Its files, and what the browser loads of them: nothing comes from another server."""
    assets = [file for file in (files("penstock.server.page") / "assets").iterdir() if file.is_file()]
    sizes = {file.name: len(file.read_bytes()) for file in assets}
    assert sum(sizes.values()) < MOST_BYTES, sizes
    for file in assets:
        text = file.read_text()
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", text), file.name
    page = windows.open("about:blank")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(url)
    expect(page.get_by_text("orders").first).to_be_visible()
    assert all(address.startswith(url) for address in asked), asked
