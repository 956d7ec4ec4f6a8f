"""Take the pictures of the page in docs/page.md: `make pictures`. A real server, busy queues, each view light and dark."""

from __future__ import annotations

import json
import math
import random
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from urllib.request import Request, urlopen

import penstock
from penstock.message import Draft, Redrive

ROOT = Path(__file__).parent.parent
PICTURES = ROOT / "docs/pictures"
sys.path.insert(0, str(ROOT / "tests"))

from browser import DESK, PHONE, Windows, chromium, windows  # noqa: E402
from playwright.sync_api import Page, expect  # noqa: E402
from test_serve import serving  # noqa: E402

BUSY = 150
"""Seconds of business before the first picture: curves need a past."""
JSON = "application/json"
SHOPS = ("Napoli", "Zürich", "Kraków", "São Paulo", "Łódź")
random.seed(7)


def order(number: int) -> Draft:
    body = {
        "order": 48_200 + number,
        "shop": SHOPS[number % len(SHOPS)],
        "customer": {"name": "Zoë Meyer", "id": 2**60 + number, "since": "2024-03-01"},
        "items": [{"sku": "margherita", "quantity": 2, "price": 9.5}, {"sku": "tiramisù", "quantity": 1, "price": 6}],
        "paid": number % 3 > 0,
        "note": None,
    }
    return Draft(json.dumps(body, ensure_ascii=False).encode(), JSON, {"trace": f"7f3a{number:04x}", "attempt": 1})


def event(number: int) -> Draft:
    return Draft(json.dumps({"event": number, "page": f"/menu/{number % 40}", "ms": number * 37 % 900}).encode(), JSON)


QUEUES = {
    "orders": 14,
    "payments": 9,
    "clickstream": 120,
    "emails": 6,
    "webhooks": 4,
    "thumbnails": 3,
    "stock-updates": 20,
    "sms": 1,
}
"""Messages a second that come in, about."""
RESTING = ("invoices", "reports-nightly", "refunds", "search-index")


def fill(broker: penstock.Broker) -> None:
    broker.create("failed")
    for name in QUEUES:
        broker.create(name, visibility=30, redrive=Redrive("failed", 3) if name in ("orders", "webhooks") else None)
    for name in RESTING:
        broker.create(name, redrive=Redrive("failed", 1) if name == "refunds" else None, visibility=0)
    broker["reports-nightly"].send_many([event(number) for number in range(12)])
    broker["invoices"].send_many([Draft(b"%PDF-1.7", "application/pdf", delay=3600) for _ in range(40)])
    broker["refunds"].send_many([order(number) for number in range(900)])
    while broker["refunds"].receive(1000):
        pass
    broker["refunds"].update(visibility=30)
    broker["clickstream"].send_many([event(number) for number in range(4000)])
    broker.schedule("nightly-report", queue="reports-nightly", cron="0 3 * * *", zone="Europe/Berlin", body=b"{}")
    broker.schedule("month-end-invoices", queue="invoices", cron="0 0 1 * *", zone="America/Sao_Paulo", body=b"{}")
    broker.schedule("remind-by-sms", queue="sms", every=20, body=b"{}")
    broker.schedule("full-reindex", queue="search-index", every=7200, body=b"{}")
    broker.change_schedule("full-reindex", paused=True)


def send(url: str, name: str, rate: int, stop: Event) -> None:
    """Like the tide: more comes in at some times than at others."""
    make = order if name in ("orders", "payments", "webhooks") else event
    number, phase = 0, random.random() * 7
    with penstock.open(url) as broker:
        while not stop.wait(0.5):
            wave = 1 + 0.8 * math.sin(phase + time.monotonic() / 9)
            count = max(0, round(rate * wave / 2 + random.random()))
            if count:
                broker[name].send_many([make(number + place) for place in range(count)])
            number += count


def work(url: str, name: str, holder: str, rate: float, stop: Event) -> None:
    with penstock.open(url) as broker:
        while not stop.is_set():
            messages = broker[name].receive(max(1, round(rate / 2)), wait=1, holder=holder)
            stop.wait(0.5)
            broker[name].delete_many(messages if name != "webhooks" else messages[1:])


def stream(url: str, stop: Event) -> None:
    """A reader as Spark is one: named claims, epoch after epoch; and what its pipelines tell of themselves."""
    with penstock.open(url) as broker:
        queue, epoch, rows = broker["clickstream"], 41, 1_250_000
        while not stop.wait(2):
            claim = queue.claim("spark clicks-to-lake", epoch, 260)
            queue.confirm(claim.reader, claim.epoch)
            if epoch > 42:
                queue.settle(claim.reader, epoch - 1)
            epoch, rows = epoch + 1, rows + claim.size
            lag = queue.stats().visible
            told = {"reads": ["clickstream"], "rows": rows, "rate": claim.size / 2, "lag": lag, "batch_seconds": 1.4}
            broker.report("clicks-to-lake", **told)  # type: ignore[attr-defined]
            checks = {
                "orders.price_positive": {"action": "drop", "rows": 88_412, "failed": 17},
                "orders.shop_known": {"action": "count", "rows": 88_412, "failed": 0},
            }
            told = {"reads": ["orders"], "rows": 88_412, "rate": 3.5, "lag": 12, "batch_seconds": 0.6, "checks": checks}
            broker.report("orders-archive", **told, report="https://reports.example/orders")  # type: ignore[attr-defined]


def post(url: str, path: str, value: object) -> None:
    request = Request(url + path, json.dumps(value).encode(), {"Content-Type": JSON})
    with urlopen(request) as answer:
        answer.read()


def shoot(
    opened: Windows, url: str, name: str, address: str, ready: Callable[[Page], None], size: dict[str, int] = DESK
) -> None:
    for scheme in ("light", "dark"):
        page = opened.open(url + address, scheme=scheme, size=size)
        ready(page)
        page.wait_for_load_state("load")
        page.screenshot(path=PICTURES / f"page-{name}{'-dark' if scheme == 'dark' else ''}.png")
        page.context.close()


def show(*words: str) -> Callable[[Page], None]:
    def ready(page: Page) -> None:
        for word in words:
            expect(page.get_by_text(word).first).to_be_visible()

    return ready


def choose_shop(page: Page) -> None:
    show("São Paulo")(page)
    page.locator(".groups button").filter(has_text="São Paulo").click()
    expect(page.locator("tbody tr").first).to_contain_text("São Paulo")
    page.mouse.move(0, 0)


def take_all(url: str, locked: str) -> None:
    with penstock.open(url) as broker:
        (held,) = broker["orders"].receive(1, visibility=3600, holder="kitchen-3", wait=20)
    with chromium() as browser, windows(browser) as opened:
        shoot(opened, url, "overview", "/", show("clickstream", "live"))
        shoot(opened, url, "phone", "/", show("clickstream"), PHONE)
        shoot(opened, url, "queue", "/dashboard/queues/orders?span=minute", show("kitchen-1", "live"))
        shoot(opened, url, "messages", "/dashboard/queues/orders/messages", show("order", "live"))
        shoot(opened, url, "message", f"/dashboard/queues/orders/messages/{held.id}", show("tiramisù"))
        shoot(opened, url, "dead-letters", "/dashboard/dead-letters/failed?by=field&path=shop", choose_shop)
        shoot(opened, url, "jobs", "/dashboard/jobs", show("running"))
        shoot(opened, url, "schedules", "/dashboard/schedules", show("nightly-report"))
        shoot(opened, url, "pipelines", "/dashboard/pipelines", show("clicks-to-lake"))
        shoot(opened, url, "server", "/dashboard/server", show(penstock.__version__))
        shoot(opened, locked, "sign-in", "/dashboard/sign-in", show("Token"))


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        settings = Path(folder) / "locked.toml"
        settings.write_text("[[token]]\nname = 'shop'\nsecret = 'a-secret-for-the-picture'\n")
        quiet = ("--access-log", "off")
        with (
            serving(f"sqlite:///{folder}/shop.db", *quiet) as (_, url),
            serving("memory:", *quiet, "--config", str(settings)) as (_, locked),
            penstock.open(url) as broker,
            ThreadPoolExecutor(40) as pool,
        ):
            fill(broker)
            stop = Event()
            try:
                at_work = [pool.submit(send, url, name, rate, stop) for name, rate in QUEUES.items()]
                for name, rate in QUEUES.items():
                    if name != "clickstream":
                        at_work += [
                            pool.submit(work, url, name, f"{TEAM.get(name, name)}-{place}", rate * 0.55, stop)
                            for place in (1, 2)
                        ]
                at_work.append(pool.submit(stream, url, stop))
                time.sleep(BUSY)
                post(
                    url,
                    "/penstock/jobs",
                    {
                        "queue": "reports-nightly",
                        "action": "move",
                        "to": "search-index",
                        "filter": {"text": "menu"},
                        "expect": 12,
                    },
                )
                job = {
                    "queue": "failed",
                    "action": "redrive",
                    "filter": {"field": "shop", "equals": "Napoli"},
                    "rate": 2,
                    "expect": 180,
                }
                post(url, "/penstock/jobs", job)
                time.sleep(12)
                take_all(url, locked)
            finally:
                stop.set()
            for each in at_work:
                each.result()


TEAM = {"orders": "kitchen", "payments": "till", "emails": "mailer", "webhooks": "hooks", "thumbnails": "resizer"}

if __name__ == "__main__":
    main()
