"""The page in a real browser, where others chose the names and the bodies: hostile text, large bodies, many queues."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from urllib.parse import quote

import pytest
from browser import Windows, check_width
from playwright.sync_api import Page, expect
from test_serve import serving

import penstock
from penstock import Broker
from penstock.message import Draft, Redrive
from penstock.policy import MAX_ATTRIBUTES, MAX_BODY
from penstock.testing.http import Http

MARK = "\u202e"
"""Turns the direction of what follows."""
SCRIPT = "<script>window.hacked = 1</script><img src=x onerror='window.hacked = 2'>"
NAMES = [
    "<img src=x onerror=hacked=1>",
    "<script>hacked=1<script>",
    "שלום עולם",
    "100% ?a=b&c#d",
    "javascript;hacked=1",
    "日本語の注文",
    "'\"`${hacked=1}",
    "x" * 128,
]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    store = tmp_path_factory.mktemp("hostile") / "queue.db"
    with serving(f"sqlite:///{store}", "--access-log", "off") as (_, url):
        yield url


@pytest.fixture
def broker(url: str) -> Iterator[Broker]:
    with penstock.open(url) as broker:
        yield broker


def check_unharmed(page: Page) -> None:
    """No text has become an element, or has run."""
    assert page.evaluate("() => 'hacked' in window") is False
    assert page.locator("main script, main img[src=x], main iframe, main svg script").count() == 0


def test_a_name_is_text_wherever_it_is_shown(url: str, broker: Broker, windows: Windows) -> None:
    for name in NAMES:
        letters = broker.create(f"{name[:120]} dead"[:128])
        broker.create(name, redrive=Redrive(letters.name, 1), visibility=3600).send(b"x")
        broker[name].receive(holder=SCRIPT)
    page = windows.open(url)
    expect(page.get_by_role("rowgroup").last.get_by_role("row")).to_have_count(2 * len(NAMES))
    check_unharmed(page)
    for name in NAMES:
        page.goto(url)
        page.get_by_role("link", name=name, exact=True).click()
        expect(page.get_by_role("heading", level=1)).to_have_text(name)
        expect(page).to_have_url(f"{url}/dashboard/queues/{quote(name, safe=chr(39) + '()*!')}")
        page.get_by_role("link", name="Messages").first.click()
        expect(page.locator("table.messages tbody tr")).to_contain_text(SCRIPT[:20])
        check_unharmed(page)
        check_width(page)


def test_what_others_call_schedules_pipelines_and_checks_is_text(url: str, broker: Broker, windows: Windows) -> None:
    broker.create("target", exist_ok=True).send(b"x")
    for name in NAMES:
        broker.schedule(name[:100], queue="target", cron="0 0 29 2 *", body=b"")
    page = windows.open(f"{url}/dashboard/schedules")
    rows = page.locator("tbody tr")
    expect(rows).to_have_count(len(NAMES))
    check_unharmed(page)
    check_width(page)
    for name in NAMES[:2]:
        page.get_by_role("button", name=f"Remove {name}", exact=True).click()
        expect(page.get_by_role("heading", name=f"Remove {name}", exact=True)).to_be_visible()
        page.get_by_role("dialog").get_by_role("button", name="Remove").click()
        expect(page.get_by_role("cell", name=name, exact=True)).to_have_count(0)
    check_unharmed(page)
    checks = {SCRIPT: {"action": "drop", "rows": 2, "failed": 1}}
    told = {"reads": ["target"], "rows": 1, "checks": checks, "last_error": f"{SCRIPT}{MARK}\0"}
    broker.report(NAMES[0], **told)  # type: ignore[attr-defined]
    page.goto(f"{url}/dashboard/pipelines")
    expect(rows).to_contain_text(f"{SCRIPT} 1 of 2 dropped")
    expect(page.locator("pre")).to_have_text(f"{SCRIPT}⟨U+202E⟩␀")
    check_unharmed(page)
    job = {"queue": "target", "action": "release", "filter": {"text": f"{SCRIPT}{MARK}"}}
    assert Http(url)("POST", "/penstock/jobs", job).status == 200
    page.goto(f"{url}/dashboard/jobs")
    expect(page.locator(".job")).to_contain_text(f"with “{SCRIPT}⟨U+202E⟩” in the body")
    check_unharmed(page)
    check_width(page)


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        pytest.param(SCRIPT.encode(), "text/html", id="a page"),
        pytest.param(
            b"<?xml version='1.0'?><svg xmlns='http://www.w3.org/2000/svg' onload='hacked=1'/>", "image/svg+xml", id="svg"
        ),
        pytest.param(json.dumps({SCRIPT: [SCRIPT, MARK, "\0", "\ud800"]}).encode(), "application/json", id="json"),
        pytest.param(f"price {MARK}001 euro\0\x1b[31m\u200b\u2066".encode(), "text/plain", id="marks and NUL"),
        pytest.param(b"\x89PNG\r\n\x1a\n" + SCRIPT.encode(), "text/html", id="a broken image"),
        pytest.param(b"%PDF-1.7 " + SCRIPT.encode() + b"\xff", "application/pdf", id="bytes"),
        pytest.param(b"[" * 50_000 + b"]" * 50_000, "application/json", id="deep JSON"),
        pytest.param(b"", "text/html", id="nothing"),
    ],
)
def test_a_body_is_never_a_page(url: str, broker: Broker, windows: Windows, body: bytes, kind: str) -> None:
    queue = broker.create("bodies") if "bodies" not in broker.queues().names else broker["bodies"]
    queue.purge()
    sent = queue.send(body, content_type=kind, attributes={SCRIPT[:40]: SCRIPT + MARK}, key=SCRIPT)
    page = windows.open(f"{url}/dashboard/queues/bodies/messages")
    expect(page.locator("tbody tr")).to_have_count(1)
    check_unharmed(page)
    page.locator("tbody tr").get_by_role("link").click()
    expect(page.get_by_text(sent.id)).to_be_visible()
    for way in page.get_by_role("radiogroup", name="Show the body as").locator("span").all():
        way.click()
        check_unharmed(page)
    told = page.inner_text("main")
    assert not set(told) & {MARK, "\0", "\x1b", "\u200b", "\u2066"}  # they are shown by their numbers
    check_unharmed(page)
    check_width(page)


def test_marks_that_turn_or_hide_text_are_shown_by_their_numbers(url: str, broker: Broker, windows: Windows) -> None:
    queue = broker.create("marks")
    sent = queue.send(f"price {MARK}001\0".encode(), content_type="text/plain", attributes={"note": f"{MARK}abc"})
    page = windows.open(f"{url}/dashboard/queues/marks/messages/{sent.id}")
    expect(page.get_by_role("region", name="The body")).to_have_text("price ⟨U+202E⟩001␀")
    expect(page.get_by_role("region", name="Attributes")).to_contain_text("⟨U+202E⟩abc")


def test_as_many_attributes_as_a_message_can_have_are_shown(url: str, broker: Broker, windows: Windows) -> None:
    queue = broker.create("attributes")
    sent = queue.send(b"x", attributes={f"{SCRIPT[:30]}{number}": "v" * 900 for number in range(MAX_ATTRIBUTES)})
    page = windows.open(f"{url}/dashboard/queues/attributes/messages/{sent.id}")
    expect(page.get_by_role("region", name="Attributes").locator("tbody tr")).to_have_count(MAX_ATTRIBUTES)
    check_unharmed(page)
    check_width(page)


def test_a_body_of_a_mebibyte_is_shown_searched_and_paged(url: str, broker: Broker, windows: Windows) -> None:
    queue = broker.create("large")
    words = json.dumps({"rows": ["needle" if number == 30_000 else f"row {number:07}" for number in range(70_000)]})
    text = queue.send(words.encode()[: MAX_BODY - 1].ljust(MAX_BODY), content_type="text/plain")
    array = json.dumps(list(range(100_000, 230_000))).replace(" ", "")
    numbers = queue.send(array.encode()[:MAX_BODY], content_type="application/json")
    page = windows.open(f"{url}/dashboard/queues/large/messages")  # a list has no bodies
    expect(page.locator("tbody tr")).to_have_count(2)
    expect(page.locator("tbody tr").first).to_contain_text("1.05 MB")
    page.goto(f"{url}/dashboard/queues/large/messages/{text.id}")
    body = page.get_by_role("region", name="The body")
    expect(body).to_contain_text('{"rows": ["row 0000000"')
    assert len(body.inner_text()) < 100_000  # a part, so that the browser is quick
    page.get_by_label("Find in the body").fill("NEEDLE")
    expect(page.get_by_text("1 found")).to_be_visible()
    expect(body).to_contain_text("needle")
    assert page.evaluate("() => CSS.highlights.get('here').values().next().value.toString()") == "needle"
    page.get_by_text("Hex", exact=True).click()
    expect(page.get_by_text("0 to 4,095 of 1,048,576")).to_be_visible()
    page.get_by_role("button", name="Later").click()
    expect(page.get_by_text("4,096 to 8,191 of 1,048,576")).to_be_visible()
    page.goto(f"{url}/dashboard/queues/large/messages/{numbers.id}")
    expect(body).to_contain_text("[\n  100000,\n  100001,")


def test_a_thousand_queues_are_listed_without_drawing_them_all(url: str, broker: Broker, windows: Windows) -> None:
    for number in range(1000):
        broker.create(f"many-{number:04}")
    broker["many-0999"].send_many([Draft(b"x")] * 7)
    page = windows.open(f"{url}/dashboard?filter=many-")
    rows = page.get_by_role("rowgroup").last.get_by_role("row")
    expect(page.get_by_role("table")).to_have_attribute("aria-rowcount", "1001")
    expect(rows.first).to_contain_text("many-0000")
    assert rows.count() < 100
    page.keyboard.press("End")
    expect(page.get_by_role("row").filter(has_text="many-0999")).to_be_visible()  # also while the page is still loading
    assert rows.count() < 100
    page.get_by_role("columnheader", name="Messages").get_by_role("button").click()
    page.keyboard.press("Home")
    expect(rows.first).to_contain_text("many-0999")
    expect(page).to_have_url(re.compile("sort=messages&order=down"))
    page.get_by_label("Filter by name").fill("MANY-05")
    expect(page.get_by_role("table")).to_have_attribute("aria-rowcount", "101")
