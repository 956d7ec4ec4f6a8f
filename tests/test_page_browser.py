"""The page in a real browser: each view, and each thing that can be done there, on a real server without tokens."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import Windows
from playwright.sync_api import Page, expect
from test_serve import serving

import penstock
from penstock import Broker, RetryPolicy
from penstock.message import Curve, Redrive, Settings

SCRIPT = "<script>window.hacked = 1</script>"
PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAIAAAACCAIAAAD91JpzAAAAFklEQVR4nGP8z8DAwMDAxMDAwMDAAAANHQEDasKb6QAAAABJRU5ErkJggg=="
)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One server for all: each test has queues of its own."""
    store = tmp_path_factory.mktemp("page") / "queue.db"
    with serving(f"sqlite:///{store}", "--access-log", "off") as (_, url):
        yield url


@pytest.fixture
def broker(url: str) -> Iterator[Broker]:
    """Another program."""
    with penstock.open(url) as broker:
        yield broker


def row(page: Page, words: str) -> object:
    return page.get_by_role("row").filter(has_text=words)


def bury(broker: Broker, name: str, bodies: list[bytes]) -> penstock.Queue:
    """A queue whose messages have all died: they are in the queue NAME-dead, which is returned."""
    letters = broker.create(f"{name}-dead")
    home = broker.create(name, redrive=Redrive(f"{name}-dead", 1), visibility=0)
    home.send_many(bodies)
    while home.receive(100):
        pass
    home.update(visibility=30)
    return letters


def test_the_root_is_the_page_for_a_browser_and_leads_to_each_queue(url: str, broker: Broker, windows: Windows) -> None:
    broker.create("first-stop").send_many([b"1", b"2", b"3"])
    page = windows.open(url)
    expect(page).to_have_title("Queues · Penstock")
    page.get_by_label("Filter by name").fill("first-st")
    found = page.get_by_role("row").filter(has_text="first-stop")
    expect(found.locator(".messages")).to_have_text("3")
    found.get_by_role("link").click()
    expect(page).to_have_url(f"{url}/dashboard/queues/first-stop")
    expect(page.get_by_role("heading", level=1)).to_have_text("first-stop")
    page.go_back()
    expect(page.get_by_label("Filter by name")).to_have_value("first-st")  # the address keeps what was chosen


def test_a_send_by_another_program_shows_by_itself_without_polling(url: str, broker: Broker, windows: Windows) -> None:
    queue = broker.create("awaited")
    page = windows.open(f"{url}/dashboard?filter=awaited")
    depth = page.get_by_role("row").filter(has_text="awaited").locator(".messages")
    expect(depth).to_have_text("0")
    expect(page.locator("#live")).to_have_text("live")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    queue.send(b"hello")
    expect(depth).to_have_text("1")
    queue.send_many([b"hello"] * 4)
    expect(depth).to_have_text("5")
    queue.receive(2)
    expect(page.get_by_role("row").filter(has_text="awaited").locator(".in_flight")).to_have_text("2")
    assert asked == []  # the stream that was there has told it


def test_a_queue_is_created_changed_with_the_same_checks_and_deleted(url: str, broker: Broker, windows: Windows) -> None:
    broker.create("made-dead")
    page = windows.open(url)
    page.get_by_role("button", name="New queue").click()
    page.get_by_label("Name", exact=True).fill("made here")
    page.get_by_label("Visibility").fill("2 min")
    page.get_by_label("Dead letter queue").fill("made-dead")
    page.get_by_role("button", name="Create").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("made here")
    made = broker["made here"]
    assert made.settings == Settings(visibility=120, redrive=Redrive("made-dead", 5))

    windows.expected.append("400")  # what the server refuses is on the console too
    page.get_by_role("button", name="Edit settings").click()
    page.get_by_label("Retention").fill("0 s")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("alert")).to_contain_text("etention 0 is not between")
    assert made.settings.retention == Settings().retention
    page.get_by_label("Retention").fill("7 days")
    page.get_by_role("button", name="Save").click()
    expect(page.locator(".pairs")).to_contain_text("7 days")
    assert made.settings.retention == 7 * 86400

    page.get_by_role("button", name="Delete queue").click()
    sure = page.get_by_role("dialog").get_by_role("button", name="Delete")
    if page.get_by_role("dialog").get_by_role("textbox").count():
        expect(sure).to_be_disabled()
        page.get_by_role("dialog").get_by_role("textbox").fill("made here")
    sure.click()
    expect(page).to_have_url(re.compile("/dashboard$"))
    assert "made here" not in broker.queues().names


def test_a_queue_shows_its_consumers_its_readers_and_where_its_dead_letters_go(
    url: str, broker: Broker, windows: Windows
) -> None:
    bury(broker, "watched", [b"bad"])
    queue = broker["watched"]
    queue.send_many([b"%d" % number for number in range(10)])
    queue.receive(3, holder="worker 7")
    claim = queue.claim("spark-stream", 4, 2)
    queue.confirm(claim.reader, claim.epoch)
    page = windows.open(f"{url}/dashboard/queues/watched")
    holder = page.get_by_role("region", name="Consumers").get_by_role("row").filter(has_text="worker 7")
    expect(holder.get_by_role("cell", name="3", exact=True)).to_be_visible()
    reader = page.get_by_role("region", name="Readers").get_by_role("row").filter(has_text="spark-stream")
    expect(reader.get_by_role("cell", name="4", exact=True)).to_be_visible()
    page.get_by_role("link", name="watched-dead").first.click()
    expect(page.get_by_role("heading", level=1)).to_have_text("watched-dead")
    page.get_by_role("link", name="watched", exact=True).first.click()  # and back
    expect(page.get_by_role("heading", level=1)).to_have_text("watched")
    for span in ("Minute", "Hour", "Day"):
        page.get_by_text(span, exact=True).click()
        expect(page).to_have_url(re.compile(f"span={span.lower()}|queues/watched$"))
        expect(page.locator("svg[role=img]").first).to_be_visible()


def test_looking_at_messages_claims_none_and_goes_on_page_by_page(url: str, broker: Broker, windows: Windows) -> None:
    queue = broker.create("long-list")
    queue.send_many([b"message %d" % number for number in range(120)])
    page = windows.open(f"{url}/dashboard/queues/long-list/messages")
    rows = page.locator("tbody tr")
    expect(rows).to_have_count(50)
    expect(rows.first).to_contain_text("message 0")
    page.get_by_role("button", name="Show more").click()
    expect(rows).to_have_count(100)
    page.get_by_role("button", name="Show more").click()
    expect(rows).to_have_count(120)
    expect(page.get_by_role("button", name="Show more")).to_be_hidden()
    texts = rows.locator(".preview").all_inner_texts()
    assert texts == [f"message {number}" for number in range(120)]
    stats = queue.stats()
    assert (stats.visible, stats.in_flight) == (120, 0)
    assert queue.peek()[0].receives == 0


def test_the_list_of_messages_follows_the_queue(url: str, broker: Broker, windows: Windows) -> None:
    queue = broker.create("followed")
    page = windows.open(f"{url}/dashboard/queues/followed/messages")
    expect(page.get_by_text("No messages.")).to_be_visible()
    expect(page.locator("#live")).to_have_text("live")
    queue.send(b"the first")
    expect(page.locator("tbody tr")).to_have_count(1)
    (held,) = queue.receive(holder="worker 9", visibility=3600)
    expect(page.locator("tbody tr")).to_contain_text("in flight")
    expect(page.locator("tbody tr")).to_contain_text("worker 9")
    held.delete()
    expect(page.get_by_text("No messages.")).to_be_visible()


def test_a_message_is_sent_with_all_that_it_can_have(url: str, broker: Broker, windows: Windows) -> None:
    queue = broker.create("sent-to", groups=True)
    page = windows.open(f"{url}/dashboard/queues/sent-to/messages")
    page.get_by_role("button", name="Send", exact=True).click()
    box = page.get_by_role("dialog")
    box.get_by_label("Body").fill('{"pizza": "margherita"')
    box.get_by_role("button", name="Send", exact=True).click()
    expect(box.get_by_role("alert")).to_contain_text("not JSON")
    assert queue.stats().messages == 0
    box.get_by_label("Body").fill('{"pizza": "margherita"}')
    box.get_by_label("Group").fill("table 4")
    box.get_by_label("Attributes").fill("waiter=Zoë\ntip=a=b")
    box.get_by_role("button", name="Send", exact=True).click()
    expect(page.locator("tbody tr")).to_contain_text("margherita")
    (message,) = queue.peek()
    assert (message.body, message.content_type) == (b'{"pizza": "margherita"}', "application/json")
    assert (message.attributes, message.group) == ({"waiter": "Zoë", "tip": "a=b"}, "table 4")


def test_a_message_that_has_failed_says_how_often_and_why_and_its_queue_how_it_is_retried(
    url: str, broker: Broker, windows: Windows
) -> None:
    queue = broker.create("failing", retry={"attempts": 7})
    sent = queue.send(b"x", retry=RetryPolicy(3, curve=Curve.LINEAR))
    for error in ("OSError: no", "<b>the last one</b>"):
        queue.receive()[0].release(0, error)
    page = windows.open(f"{url}/dashboard/queues/failing/messages/{sent.id}")
    for words in ("2 times: <b>the last one</b>", "attempts=3,delay=1,curve=linear"):
        expect(page.locator(".pairs").first).to_contain_text(words)
    page.goto(f"{url}/dashboard/queues/failing")
    expect(page.get_by_text("attempts=7,delay=1,curve=exponential")).to_be_visible()


def test_a_message_is_shown_as_json_text_and_bytes_and_is_searchable(url: str, broker: Broker, windows: Windows) -> None:
    queue = broker.create("shown")
    body = b'{"order":{"id":1152921504606846977,"items":[{"sku":"A-1"},{"sku":"B-7"}],"10":"ten","2":"two"},"paid":true}'
    sent = queue.send(body, content_type="application/json", attributes={"trace": "abc", "big": 2**60 + 1, "raw": b"\x00\xff"})
    queue.receive(holder="kitchen", visibility=3600)
    page = windows.open(f"{url}/dashboard/queues/shown/messages/{sent.id}")
    for words in (sent.id, "in flight", "kitchen", "1 time", "application/json"):
        expect(page.locator(".pairs").first).to_contain_text(words)
    attributes = page.get_by_role("region", name="Attributes")
    expect(attributes).to_contain_text("1152921504606846977")
    expect(attributes).to_contain_text("AP8=")
    shown = page.get_by_role("region", name="The body")
    expect(shown).to_contain_text('"id": 1152921504606846977,\n')  # its own digits, on a line of its own
    assert json.loads(shown.inner_text()) == json.loads(body)
    assert shown.inner_text().index('"10"') < shown.inner_text().index('"2"')  # in its own order
    search = page.get_by_label("Find in the body")
    search.fill("SKU")
    expect(page.get_by_text("2 found")).to_be_visible()
    search.press("Enter")
    expect(page.get_by_text("2 of 2")).to_be_visible()
    assert page.evaluate("() => [CSS.highlights.get('found').size, CSS.highlights.get('here').size]") == [2, 1]
    page.get_by_text("Text", exact=True).click()
    expect(shown).to_have_text(body.decode())
    page.get_by_text("Hex", exact=True).click()
    expect(page).to_have_url(re.compile("as=hex"))
    expect(page.get_by_label("The body in hexadecimal")).to_contain_text("00000000  7b 22 6f 72")
    with page.expect_download() as download:
        page.get_by_role("link", name="Download").click()
    assert Path(download.value.path()).read_bytes() == body


def test_an_image_is_shown_if_its_bytes_are_those_of_a_raster_image(url: str, broker: Broker, windows: Windows) -> None:
    queue = broker.create("images")
    image = queue.send(PIXEL, content_type="application/octet-stream")
    drawing = queue.send(b'<svg xmlns="http://www.w3.org/2000/svg"><script>1</script></svg>', content_type="image/svg+xml")
    page = windows.open(f"{url}/dashboard/queues/images/messages/{image.id}")
    shown = page.get_by_alt_text("The body, shown as an image")
    expect(shown).to_be_visible()
    assert shown.evaluate("async (image) => { await image.decode(); return image.naturalWidth; }") == 2
    assert shown.get_attribute("src").startswith("blob:")
    page.goto(f"{url}/dashboard/queues/images/messages/{drawing.id}?as=image")
    expect(page.get_by_role("region", name="The body")).to_contain_text("<svg")
    assert not page.get_by_text("Image", exact=True).count()


def test_a_message_that_is_gone_is_said_to_be_gone(url: str, broker: Broker, windows: Windows) -> None:
    queue = broker.create("leaving")
    sent = queue.send(b"short-lived")
    queue.delete(sent.id)
    windows.expected.append("404")
    page = windows.open(f"{url}/dashboard/queues/leaving/messages/{sent.id}")
    expect(page.get_by_text("not in the queue any more")).to_be_visible()
    page.goto(f"{url}/dashboard/queues/no-such-queue/messages")
    expect(page.locator("#view")).to_contain_text("no-such-queue")


def test_chosen_messages_are_deleted_released_and_moved(url: str, broker: Broker, windows: Windows) -> None:
    queue, other = broker.create("chosen"), broker.create("chosen-other")
    queue.send_many([b"m%d" % number for number in range(6)])
    queue.receive(2, visibility=3600)
    page = windows.open(f"{url}/dashboard/queues/chosen/messages")

    def choose(*bodies: str) -> None:
        for body in bodies:
            page.locator("tbody tr").filter(has_text=body).get_by_role("checkbox").check()
        expect(page.get_by_text(f"{len(bodies)} chosen")).to_be_visible()

    choose("m0", "m1")
    page.get_by_role("button", name="Release").click()
    expect(page.get_by_text("2 messages released.")).to_be_visible()
    assert queue.stats().in_flight == 0

    choose("m2", "m3")
    page.get_by_role("button", name="Delete").click()
    page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
    assert queue.stats().messages == 6
    page.get_by_role("button", name="Delete").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(page.get_by_text("2 messages deleted.")).to_be_visible()
    expect(page.locator("tbody tr")).to_have_count(4)

    choose("m4", "m5")
    page.get_by_role("button", name="Move").click()
    page.get_by_label("To the queue").fill("chosen-other")
    page.get_by_role("dialog").get_by_role("button", name="Move").click()
    expect(page.get_by_text("2 messages moved.")).to_be_visible()
    expect(page.locator("tbody tr")).to_have_count(2)
    assert {message.body for message in other.peek(10)} == {b"m4", b"m5"}
    assert {message.body for message in queue.peek(10)} == {b"m0", b"m1"}


def test_one_message_is_deleted_from_its_own_view(url: str, broker: Broker, windows: Windows) -> None:
    queue = broker.create("single")
    sent = queue.send_many([b"go", b"stay"])
    page = windows.open(f"{url}/dashboard/queues/single/messages/{sent[0].id}")
    page.get_by_role("button", name="Delete").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(page).to_have_url(f"{url}/dashboard/queues/single/messages")
    expect(page.locator("tbody tr")).to_have_count(1)
    assert [message.body for message in queue.peek(10)] == [b"stay"]


def test_all_that_fit_a_filter_are_counted_first_and_then_deleted_by_a_job(url: str, broker: Broker, windows: Windows) -> None:
    queue = broker.create("filtered")
    queue.send_many([json.dumps({"kind": "good" if number % 3 else "bad", "number": number}).encode() for number in range(300)])
    page = windows.open(f"{url}/dashboard/queues/filtered/messages")
    page.get_by_text("More filters").click()
    page.get_by_label("JSON field").fill("kind")
    page.get_by_label("Equals").fill("bad")
    page.get_by_role("button", name="Filter", exact=True).click()
    expect(page).to_have_url(re.compile("field=kind&equals=bad"))
    expect(page.locator("tbody tr").first).to_contain_text('"bad"')
    page.reload()  # the address has the filter
    expect(page.locator("tbody tr")).to_have_count(50)
    page.get_by_role("button", name="Act on all that fit…").click()
    box = page.get_by_role("dialog")
    expect(box).to_contain_text("100 messages fit (300 looked at)")
    assert queue.stats().messages == 300  # so far it was a look
    box.get_by_role("button", name="Delete 100 messages").click()
    expect(page.get_by_text("No message fits.")).to_be_visible()
    page.goto(f"{url}/dashboard/jobs")
    job = page.locator(".job").filter(has_text="filtered")
    expect(job).to_contain_text("completed")
    expect(job).to_contain_text("100 of 100 deleted")
    assert queue.stats().messages == 200
    assert not [message for message in queue.peek(300) if b"bad" in message.body]


def test_a_purge_needs_the_typed_name(url: str, broker: Broker, windows: Windows) -> None:
    queue = broker.create("purged")
    queue.send_many([b"x"] * 10)
    page = windows.open(f"{url}/dashboard/queues/purged/messages")
    expect(page.locator("tbody tr")).to_have_count(10)
    page.get_by_role("button", name="Purge").click()
    box = page.get_by_role("dialog")
    sure = box.get_by_role("button", name="Purge")
    expect(sure).to_be_disabled()
    box.get_by_role("textbox").fill("purge")
    expect(sure).to_be_disabled()
    box.get_by_role("textbox").press("Enter")
    expect(box).to_be_visible()
    assert queue.stats().messages == 10
    box.get_by_role("textbox").fill("purged")
    sure.click()
    expect(page.get_by_text("No messages.")).to_be_visible()
    assert queue.stats().messages == 0


def test_dead_letters_are_grouped_and_the_chosen_ones_are_redriven(url: str, broker: Broker, windows: Windows) -> None:
    letters = bury(broker, "sick", [json.dumps({"shop": "north" if number < 7 else "south"}).encode() for number in range(10)])
    page = windows.open(f"{url}/dashboard/dead-letters")
    found = page.get_by_role("row").filter(has_text="sick-dead")
    expect(found).to_contain_text("10")
    found.get_by_role("link", name="sick-dead").click()
    groups = page.locator(".groups")
    expect(groups).to_contain_text("max_receives")
    page.get_by_text("Queue", exact=True).last.click()
    expect(groups.get_by_role("button")).to_contain_text("sick")
    page.get_by_text("Age", exact=True).click()
    expect(groups).to_contain_text("younger than 1 minute")
    page.get_by_text("JSON field", exact=True).first.click()
    page.get_by_label("Field", exact=True).fill("shop")
    page.get_by_label("Field", exact=True).press("Enter")
    expect(groups).to_contain_text('"north"')
    groups.get_by_role("button").filter(has_text="south").click()
    expect(page.locator("tbody tr")).to_have_count(3)
    expect(page).to_have_url(re.compile("by=field.*equals=south|equals=south.*by=field"))
    page.get_by_role("button", name="Redrive those that fit…").click()
    box = page.get_by_role("dialog")
    box.get_by_role("button", name="Redrive 3 messages").click()
    expect(page.locator(".job")).to_contain_text("3 of 3 redriven")
    assert letters.stats().messages == 7
    assert {message.body for message in broker["sick"].peek(10)} == {b'{"shop": "south"}'}


def test_a_redrive_with_a_rate_survives_a_reload_and_can_be_cancelled(url: str, broker: Broker, windows: Windows) -> None:
    letters = bury(broker, "slow", [b"%d" % number for number in range(500)])
    page = windows.open(f"{url}/dashboard/dead-letters/slow-dead")
    page.get_by_role("button", name="Redrive…").click()
    page.get_by_label("At most so many a second").fill("1")
    page.get_by_role("button", name="Redrive 500 messages").click()
    job = page.locator(".job")
    expect(job).to_contain_text("running")
    expect(job).to_contain_text(re.compile(r"[1-9]\d* of 500 redriven"))
    page.reload()
    expect(job).to_contain_text("running")
    expect(job.get_by_role("progressbar")).to_be_visible()
    assert job.get_by_role("progressbar").get_attribute("max") == "500"
    job.get_by_role("button", name="Cancel").click()
    expect(job).to_contain_text("cancelled")
    left = letters.stats().messages
    assert 0 < left < 500
    assert left + broker["slow"].stats().messages == 500


def test_the_server_tells_what_it_is_and_what_was_changed(url: str, broker: Broker, windows: Windows) -> None:
    broker.create("noted").send(b"x")
    broker["noted"].purge()
    page = windows.open(f"{url}/dashboard/server")
    expect(page.get_by_text(penstock.__version__).first).to_be_visible()
    expect(page.locator("#view")).to_contain_text("sqlite")
    expect(page.locator("#view")).to_contain_text("purge")
    expect(page.locator("#view")).to_contain_text("noted")


def test_a_pipeline_that_reports_is_shown(url: str, broker: Broker, windows: Windows) -> None:
    broker.create("clicks")
    page = windows.open(f"{url}/dashboard/pipelines")
    expect(page.get_by_text("No pipeline has reported yet.")).to_be_visible()
    broker.create("taps").send_many([b"x"] * 5)
    told = {"reads": ["clicks", "taps"], "rows": 1234, "rate": 56.7, "lag": 89, "last_error": SCRIPT, "batch_seconds": 2.25}
    told["report"] = "https://reports.example/clicks"
    told |= {"checks": {"clicks.small": {"action": "drop", "rows": 1000, "failed": 7}}}
    broker.report("clicks-to-lake", **told)  # type: ignore[attr-defined]
    page.reload()
    found = page.get_by_role("row").filter(has_text="clicks-to-lake")
    for words in ("clicks", "1,234", "57", "taps 5", "failed", "2.25 s", "clicks.small 7 of 1,000 dropped"):
        expect(found).to_contain_text(words)
    expect(found.get_by_role("link", name="Open")).to_have_attribute("href", "https://reports.example/clicks")
    expect(page.locator("pre")).to_have_text(SCRIPT)
