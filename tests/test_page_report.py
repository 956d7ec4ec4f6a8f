"""The report in a real browser: its charts are drawn by the chart module of the server's page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from browser import PHONE, Windows, check_access, check_width
from playwright.sync_api import expect

from penstock.spark.pipelines.page import render

TIMES = {"p50": 0.004, "p90": 0.2, "p99": 31.0, "max": 50.0}
START = 1767261600
HOSTILE = "</script><img src=x onerror=alert(1)>"


def figures() -> dict[str, Any]:
    total = {
        "messages": 1234567,
        "bytes": 5_000_000,
        "unsettled": 7,
        "redelivered": 12,
        "redeliveries": 15,
        "dead": 3,
        "first_at": "2026-01-01T10:00:00Z",
        "last_at": "2026-01-01T10:10:00Z",
        "oldest_at": "2026-01-01T10:00:00Z",
        "waiting": TIMES,
        "handling": None,
    }
    return {
        "at": "2026-01-01T12:00:00Z",
        "step": 60,
        "all": total,
        "queues": [{**total, "queue": "a-queue-with-a-long-name" * 3}],
        "throughput": [{"at": START + 60 * n, "sent": n * 60, "received": n, "settled": 0, "died": 0} for n in range(10)],
        "times": {"waiting": [{"at": START + 60 * n, **TIMES} for n in range(10) if n != 5], "handling": []},
        "deaths": [{"name": HOSTILE, "messages": 3, "bytes": None}],
        "producers": [{"name": "shop", "messages": 9, "bytes": 100}],
    }


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_charts_of_a_report_are_drawn_for_everyone_and_fit_a_phone(tmp_path: Path, windows: Windows, scheme: str) -> None:
    file = tmp_path / "report.html"
    file.write_text(render(figures(), HOSTILE), encoding="utf-8")
    page = windows.open(file.as_uri(), size=PHONE, scheme=scheme)
    expect(page.get_by_role("heading", level=1)).to_have_text(HOSTILE)
    waiting = page.get_by_role("img", name="Waiting time: sent to first received. median: last 4 ms, from 4 ms to 4 ms")
    expect(waiting.locator("path.line")).to_have_count(3)
    throughput = page.get_by_role("img", name="Throughput")
    expect(throughput.locator("path.line.a")).to_have_count(1)
    expect(throughput).to_contain_text("10:05")  # UTC, though the browser is elsewhere
    expect(page.get_by_role("list", name="Dead letters by reason")).to_contain_text(HOSTILE)
    assert page.locator("img[src]").count() == 0
    check_width(page)
    check_access(page)
