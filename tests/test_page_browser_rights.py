"""Who may see and do what in the page: sign-in with a token, few rights, a page that is read-only, a server that restarts."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from browser import Windows
from playwright.sync_api import Page, expect
from test_serve import serving

import penstock
from penstock import Broker
from penstock.message import Redrive
from penstock.testing.http import Http

ADMIN, READER, SENDER = "the-secret-of-the-admin", "the-secret-of-a-reader", "the-secret-of-a-sender"
KEEPER = "the-secret-of-a-keeper"
TOKENS = f"""
[[token]]
name = "admin"
secret = "{ADMIN}"

[[token]]
name = "reader"
secret = "{READER}"
scopes = ["count", "read"]
queues = ["shop-*"]

[[token]]
name = "sender"
secret = "{SENDER}"
scopes = ["count", "send"]
queues = ["shop-orders"]

[[token]]
name = "keeper"
secret = "{KEEPER}"
scopes = ["count", "admin"]
queues = ["shop-*"]
"""
CHANGES = re.compile("Send|Purge|Delete|Release|Move|Redrive|New queue|Edit settings|Act on all|Cancel|Pause|Resume|Remove")


@dataclass
class Served:
    url: str
    process: subprocess.Popen[str]
    settings: Path
    broker: Broker


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("rights")
    settings = folder / "penstock.toml"
    settings.write_text(TOKENS)
    with penstock.open(f"sqlite:///{folder}/queue.db") as broker:
        broker.create("shop-dead")
        orders = broker.create("shop-orders", redrive=Redrive("shop-dead", 1), visibility=0)
        orders.send_many([b"bad"] * 3)
        while orders.receive(10):
            pass
        orders.update(visibility=3600)
        orders.send_many([b"pizza %d" % number for number in range(5)])
        broker.create("private").send(b"salary")
        for name in ("shop-orders", "private"):
            broker.schedule(f"to-{name}", queue=name, cron="0 0 29 2 *", body=b"")
        with serving(f"sqlite:///{folder}/queue.db", "--access-log", "off", "--config", str(settings)) as (process, url):
            yield Served(url, process, settings, broker)


def sign_in(page: Page, secret: str) -> None:
    page.get_by_label("Token").fill(secret)
    page.get_by_role("button", name="Sign in").click()


def test_a_wrong_token_is_refused_in_words_and_a_right_one_leads_to_where_one_wanted(served: Served, windows: Windows) -> None:
    windows.expected.append("401")
    page = windows.open(f"{served.url}/dashboard/queues/shop-orders/messages?text=pizza")
    expect(page.get_by_role("heading", level=1)).to_have_text("Sign in")
    expect(page.get_by_label("Token")).to_be_focused()
    assert "pizza" not in page.inner_text("body")
    sign_in(page, "not-the-secret-of-anybody")
    expect(page.get_by_role("alert")).not_to_be_empty()
    expect(page.get_by_role("heading", level=1)).to_have_text("Sign in")
    sign_in(page, ADMIN)
    expect(page).to_have_url(f"{served.url}/dashboard/queues/shop-orders/messages?text=pizza")
    expect(page.locator("tbody tr")).to_have_count(5)


def test_a_sign_in_leads_to_no_other_address(served: Served, windows: Windows) -> None:
    page = windows.open(f"{served.url}/dashboard/sign-in?to=//elsewhere.example/dashboard")
    sign_in(page, ADMIN)
    expect(page).to_have_url(f"{served.url}/dashboard")


def test_no_script_can_read_the_session_and_another_site_cannot_use_it(served: Served, windows: Windows) -> None:
    page = windows.open(served.url)
    sign_in(page, ADMIN)
    expect(page.get_by_role("heading", level=1)).to_have_text("Queues")
    (cookie,) = page.context.cookies()
    assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
    assert page.evaluate("() => document.cookie") == ""
    stored = page.evaluate("() => JSON.stringify([{...localStorage}, {...sessionStorage}, location.href, history.state])")
    assert ADMIN not in stored
    # The cookie alone, without the page's own header, changes nothing.
    http = Http(served.url, {"Cookie": f"{cookie['name']}={cookie['value']}"})
    refused = http("POST", "/penstock/queues/shop-orders/purge", b'{"arguments": {}}')
    assert refused.status == 403, refused.body
    assert served.broker["shop-orders"].stats().messages == 5


def test_a_sign_out_ends_the_session_everywhere(served: Served, windows: Windows) -> None:
    page = windows.open(served.url)
    sign_in(page, ADMIN)
    expect(page.get_by_role("heading", level=1)).to_have_text("Queues")
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Sign in")
    assert page.context.cookies() == []
    page.goto(f"{served.url}/dashboard/queues/shop-orders/messages")
    expect(page.get_by_role("heading", level=1)).to_have_text("Sign in")


def test_what_a_token_may_not_do_is_not_shown(served: Served, windows: Windows) -> None:
    page = windows.open(served.url)
    sign_in(page, READER)
    rows = page.get_by_role("rowgroup").last.get_by_role("row")
    expect(rows).to_have_count(2)
    assert "private" not in page.inner_text("body")
    for address in (
        "/dashboard",
        "/dashboard/queues/shop-orders",
        "/dashboard/queues/shop-orders/messages",
        "/dashboard/dead-letters/shop-dead",
        "/dashboard/jobs",
        "/dashboard/schedules",
    ):
        page.goto(f"{served.url}{address}")
        expect(page.get_by_role("heading", level=1)).to_be_visible()
        if address.endswith("messages"):
            expect(page.locator("tbody tr")).to_have_count(5)
        if "schedules" in address:
            expect(page.locator("tbody")).to_contain_text("to-shop-orders")
            assert "private" not in page.inner_text("body")
        if "dead" in address:
            expect(page.locator(".groups")).to_contain_text("max_receives")
        assert page.get_by_role("button", name=CHANGES).all_inner_texts() == [], address
        assert page.get_by_role("checkbox").count() == 0, address
        assert page.get_by_role("link", name="Server").count() == 0  # it tells of all queues
    page.goto(f"{served.url}/dashboard/queues/shop-orders/messages")
    page.locator("tbody tr").first.get_by_role("link").click()
    expect(page.get_by_role("region", name="The body")).to_contain_text("pizza")
    assert page.get_by_role("button", name=CHANGES).all_inner_texts() == []


def test_a_queue_that_a_token_may_not_know_is_not_there(served: Served, windows: Windows) -> None:
    windows.expected += ["403", "404"]
    page = windows.open(served.url)
    sign_in(page, READER)
    expect(page.get_by_role("heading", level=1)).to_have_text("Queues")
    for address in ("private", "private/messages", "private/messages/1", "no-such-queue"):
        page.goto(f"{served.url}/dashboard/queues/{address}")
        expect(page.locator("#view p").first).to_be_visible()
        assert "salary" not in page.inner_text("body")


def test_a_token_that_may_only_send_sends_and_reads_no_message(served: Served, windows: Windows) -> None:
    page = windows.open(f"{served.url}/dashboard/queues/shop-orders/messages")
    sign_in(page, SENDER)
    expect(page.get_by_text("Your token may not read the messages of this queue.")).to_be_visible()
    assert "pizza" not in page.inner_text("body")
    page.get_by_role("button", name="Send", exact=True).click()
    box = page.get_by_role("dialog")
    box.get_by_label("Body").fill("calzone")
    box.get_by_label("Content type").fill("text/plain")
    box.get_by_role("button", name="Send", exact=True).click()
    expect(page.get_by_text("Sent: the message is safe.")).to_be_visible()
    (sent,) = [message for message in served.broker["shop-orders"].peek(10) if message.body == b"calzone"]
    served.broker["shop-orders"].delete(sent.id)


def test_a_token_that_may_not_send_sees_how_to_remove_a_schedule_and_not_how_to_change_it(
    served: Served, windows: Windows
) -> None:
    page = windows.open(f"{served.url}/dashboard/schedules")
    sign_in(page, KEEPER)
    rows = page.locator("tbody tr")
    expect(rows).to_have_count(1)  # the other queue is not for it
    assert rows.get_by_role("button").all_inner_texts() == ["Remove"]
    page.goto(f"{served.url}/dashboard/queues/shop-orders")
    page.get_by_role("button", name="Pause").click()
    expect(page.get_by_text("This queue is paused")).to_be_visible()
    assert served.broker["shop-orders"].settings.paused
    page.get_by_role("button", name="Resume").click()
    expect(page.get_by_text("This queue is paused")).to_have_count(0)


def test_a_session_ends_with_its_token(served: Served, windows: Windows) -> None:
    windows.expected.append("401")
    page = windows.open(f"{served.url}/dashboard/queues/shop-orders/messages")
    sign_in(page, READER)
    expect(page.locator("tbody tr")).to_have_count(5)
    served.settings.write_text(TOKENS.replace(READER, "another-secret-of-this-reader"))
    try:
        served.process.send_signal(signal.SIGHUP)
        expect(page.get_by_role("heading", level=1)).to_have_text("Sign in")  # the stream ends, and the page asks why
    finally:
        served.settings.write_text(TOKENS)
        served.process.send_signal(signal.SIGHUP)


def test_a_read_only_page_changes_nothing_even_without_tokens(tmp_path: Path, windows: Windows) -> None:
    store = f"sqlite:///{tmp_path}/queue.db"
    with penstock.open(store) as broker:
        broker.create("orders").send(b"pizza")
    windows.expected.append("403")
    with serving(store, "--access-log", "off", "--page", "read-only") as (_, url):
        page = windows.open(f"{url}/dashboard/queues/orders/messages")
        expect(page.locator("tbody tr")).to_have_count(1)
        expect(page.locator("#bar")).to_contain_text("read-only")
        assert page.get_by_role("button", name=CHANGES).all_inner_texts() == []
        refused = page.evaluate(
            """() => fetch("/penstock/queues/orders/purge", {method: "POST", headers: {"Content-Type": "application/json"},
                body: '{"arguments": {}}'}).then((answer) => answer.status)"""
        )
        assert refused == 403
        with penstock.open(url) as broker:
            assert broker["orders"].stats().messages == 1
            broker["orders"].send(b"calzone")  # programs are as free as ever
        expect(page.locator("tbody tr")).to_have_count(2)
        page.close()


def test_an_open_page_says_that_the_server_is_away_and_comes_back_by_itself(tmp_path: Path, windows: Windows) -> None:
    windows.expected.append("ERR_CONNECTION_REFUSED|ERR_INCOMPLETE_CHUNKED|ERR_CONNECTION_RESET|ERR_EMPTY_RESPONSE")
    store = f"sqlite:///{tmp_path}/queue.db"
    with penstock.open(store) as broker:
        broker.create("orders").send(b"pizza")
    with serving(store, "--access-log", "off") as (process, url):
        page = windows.open(url)
        depth = page.get_by_role("row").filter(has_text="orders").locator(".messages")
        expect(depth).to_have_text("1")
        expect(page.locator("#live")).to_have_text("live")
        process.terminate()
        expect(page.get_by_text("The connection to the server is lost.")).to_be_visible()
        assert process.wait() == 0
        expect(page.locator("#live")).to_have_text("offline")
        expect(depth).to_have_text("1")  # what was known stays in sight
    with penstock.open(store) as broker:
        broker["orders"].send_many([b"calzone"] * 2)
    again = [sys.executable, "-m", "penstock.cli", "serve", "--store", store, "--port", str(urlsplit(url).port)]
    with subprocess.Popen([*again, "--access-log", "off"], stderr=subprocess.DEVNULL) as process:
        try:
            expect(page.get_by_text("Connected again.")).to_be_visible()
            expect(page.get_by_text("The connection to the server is lost.")).to_be_hidden()
            expect(depth).to_have_text("3")
        finally:
            process.kill()
