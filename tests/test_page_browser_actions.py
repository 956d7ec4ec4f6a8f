"""What people do in the page to one message, to a choice of them, to all that fit, and to a queue, in a real browser."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from browser import Windows
from playwright.sync_api import Page, expect
from test_serve import serving

import penstock
from penstock import Broker
from penstock.message import Redrive


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serving(f"sqlite:///{tmp_path_factory.mktemp('actions')}/queue.db", "--access-log", "off") as (_, url):
        yield url


@pytest.fixture
def broker(url: str) -> Iterator[Broker]:
    """Another program."""
    with penstock.open(url) as broker:
        yield broker


def bury(broker: Broker, name: str, bodies: list[bytes]) -> penstock.Queue:
    """The queue with the dead letters of a queue whose messages have all died."""
    letters = broker.create(f"{name}-dead")
    home = broker.create(name, redrive=Redrive(letters.name, 1), visibility=0)
    home.send_many(bodies)
    while home.receive(100):
        pass
    home.update(visibility=3600)
    return letters


def bodies(queue: penstock.Queue) -> set[bytes]:
    return {message.body for message in queue.peek(100)}


def press(page: Page, name: str) -> None:
    page.get_by_role("button", name=name, exact=True).click()


def move_to(page: Page, name: str) -> None:
    page.get_by_label("To the queue").fill(name)
    page.get_by_role("dialog").get_by_role("button", name=re.compile("Move")).click()


def test_one_message_is_released_moved_and_redriven_from_its_own_view(url: str, broker: Broker, windows: Windows) -> None:
    queue, other = broker.create("one"), broker.create("one-other")
    sent = queue.send(b"travels")
    queue.receive(visibility=3600)
    page = windows.open(f"{url}/dashboard/queues/one/messages/{sent.id}")
    expect(page.locator(".pairs").first).to_contain_text("in flight")
    press(page, "Release")
    expect(page.locator(".pairs").first).to_contain_text("visible")
    assert queue.stats().visible == 1
    expect(page.get_by_role("button", name="Redrive")).to_have_count(0)  # that is for dead letters
    press(page, "Move")
    page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
    assert bodies(queue) == {b"travels"}
    press(page, "Move")
    move_to(page, "one-other")
    expect(page.get_by_text("No messages.")).to_be_visible()
    assert (bodies(queue), bodies(other)) == (set(), {b"travels"})

    (letter,) = bury(broker, "mortal", [b"ill"]).peek()
    page.goto(f"{url}/dashboard/queues/mortal-dead/messages/{letter.id}")
    reason = page.locator(".card").filter(has_text="Why it died")
    expect(reason).to_contain_text("max_receives")
    expect(reason.get_by_role("link", name="mortal")).to_be_visible()
    press(page, "Redrive")
    expect(page.get_by_text("No messages.")).to_be_visible()
    assert (bodies(broker["mortal"]), bodies(broker["mortal-dead"])) == ({b"ill"}, set())


def test_chosen_dead_letters_are_redriven_and_the_others_stay(url: str, broker: Broker, windows: Windows) -> None:
    letters = bury(broker, "some", [b"m%d" % number for number in range(5)])
    page = windows.open(f"{url}/dashboard/dead-letters/some-dead")
    rows = page.locator("tbody tr")
    expect(rows).to_have_count(5)
    for body in ("m1", "m3"):
        rows.filter(has_text=body).get_by_role("checkbox").check()
    press(page, "Redrive")
    expect(page.get_by_text("2 messages redriven.")).to_be_visible()
    expect(rows).to_have_count(3)
    assert (bodies(broker["some"]), bodies(letters)) == ({b"m1", b"m3"}, {b"m0", b"m2", b"m4"})


def test_all_that_fit_are_released_and_moved(url: str, broker: Broker, windows: Windows) -> None:
    queue, other = broker.create("every"), broker.create("every-other")
    queue.send_many([b"ham %d" % number for number in range(4)] + [b"egg"])
    queue.receive(100, visibility=3600)
    page = windows.open(f"{url}/dashboard/queues/every/messages?text=ham")

    def act(name: str) -> None:
        press(page, "Act on all that fit…")
        expect(page.get_by_role("dialog")).to_contain_text("4 messages fit (5 looked at)")
        page.get_by_label("Do this").select_option(name)

    act("Release")
    press(page, "Release 4 messages")
    expect(page.locator("tbody tr").filter(has_text="visible")).to_have_count(4)
    assert (queue.stats().visible, queue.stats().in_flight) == (4, 1)
    act("Move")
    move_to(page, "every-other")
    expect(page.get_by_text("No message fits.")).to_be_visible()
    assert (bodies(queue), len(bodies(other))) == ({b"egg"}, 4)


def test_a_copy_is_sent_with_the_body_and_the_attributes_of_a_message(url: str, broker: Broker, windows: Windows) -> None:
    queue = broker.create("copied")
    sent = queue.send(b'{"pizza": 1}', content_type="application/json", attributes={"waiter": "Zoë"})
    page = windows.open(f"{url}/dashboard/queues/copied/messages/{sent.id}")
    press(page, "Send a copy")
    box = page.get_by_role("dialog")
    expect(box.get_by_label("Body")).to_have_value('{"pizza": 1}')
    box.get_by_role("button", name="Send", exact=True).click()
    expect(page.get_by_text("Sent: the message is safe.")).to_be_visible()
    messages = [(message.body, message.content_type, message.attributes) for message in queue.peek(10)]
    assert messages == [(b'{"pizza": 1}', "application/json", {"waiter": "Zoë"})] * 2


def test_a_paused_queue_says_so_everywhere_and_a_button_resumes_it(url: str, broker: Broker, windows: Windows) -> None:
    queue = broker.create("resting")
    queue.send(b"x")
    page = windows.open(f"{url}/dashboard?filter=resting")
    row = page.get_by_role("row").filter(has_text="resting")
    expect(row.locator(".messages")).to_have_text("1")
    expect(row).not_to_contain_text("paused")
    queue.pause()
    expect(row).to_contain_text("paused")  # another program did it
    row.get_by_role("link").click()
    told = page.get_by_text("This queue is paused")
    expect(told).to_be_visible()
    press(page, "Resume")
    expect(page.get_by_role("button", name="Pause", exact=True)).to_be_visible()
    expect(told).to_have_count(0)
    assert [message.body for message in queue.receive(visibility=0)] == [b"x"]
    press(page, "Pause")
    expect(told).to_be_visible()
    assert queue.settings.paused
    assert queue.receive() == []
    queue.resume()  # another program again
    expect(told).to_have_count(0)


def test_the_server_tells_how_busy_it_is(url: str, broker: Broker, windows: Windows) -> None:
    broker.create("busy").send_many([b"x"] * 3)
    page = windows.open(f"{url}/dashboard/server")
    expect(page.locator(".tile").filter(has_text="connections").locator("b")).to_have_text(re.compile(r"^[1-9]\d*$"))
    expect(page.locator(".card").filter(has_text="Memory held for clients")).to_contain_text(re.compile(r"\d.* of 268 MB"))
    expect(page.get_by_role("region", name="Answer times").get_by_role("row").filter(has_text="penstock")).to_contain_text("ms")
    commits = page.get_by_role("list", name="Operations in a commit").get_by_role("listitem").first
    expect(commits.locator(".name")).to_have_text("up to 1")
    expect(commits.locator(".num")).to_have_text(re.compile(r"^\d+ commits?$"))
    node = page.get_by_role("region", name="Nodes on this store").get_by_role("row").filter(has_text="this one")
    expect(node).to_contain_text(penstock.__version__)
