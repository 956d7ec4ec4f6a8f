"""A report: figures counted by Spark from an archive and from live queues, and the page that shows them."""

from __future__ import annotations

import base64
import hashlib
import re
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import penstock
from penstock.errors import BadInput, QueueNotFound
from penstock.spark.pipelines import archive, page
from penstock.spark.pipelines.report import EVENTS, report
from penstock.testing.clock import FakeClock

START = datetime(2026, 1, 1, 10, tzinfo=UTC)
SCHEMA = (
    "queue string, body binary, attributes map<string,string>, sent_at timestamp, receives int, first_received_at timestamp"
)


def test_an_archive_is_counted(spark: SparkSession, tmp_path: Path) -> None:
    """A hundred messages, a second apart; number n waited n / 10 seconds, and every tenth was received three times."""
    rows = [
        ("jobs", b"12345", {"by": f"p{n % 2}"}, START + timedelta(seconds=n), 3 if n % 10 == 0 else 1, None) for n in range(100)
    ]
    rows = [(*row[:5], row[3] + timedelta(seconds=n / 10)) for n, row in enumerate(rows)]
    folder = tmp_path / "archive"
    spark.createDataFrame(rows, SCHEMA).write.partitionBy("queue").parquet(str(folder))
    figures = report(spark, [str(folder)], producer="by")
    whole = figures["all"]
    assert (whole["messages"], whole["bytes"], whole["redelivered"], whole["redeliveries"]) == (100, 500, 10, 20)
    assert (whole["first_at"], whole["last_at"]) == ("2026-01-01T10:00:00Z", "2026-01-01T10:01:48Z")
    assert whole["waiting"] == {"p50": 4.9, "p90": 8.9, "p99": 9.8, "max": 9.9}
    assert whole["handling"] is None
    assert figures["step"] == 5
    assert [row["sent"] for row in figures["throughput"]] == [5] * 20 + [0, 0]
    assert sum(row["received"] for row in figures["throughput"]) == 100
    assert figures["producers"] == [{"name": "p0", "messages": 50, "bytes": 250}, {"name": "p1", "messages": 50, "bytes": 250}]
    assert [row["queue"] for row in figures["queues"]] == ["jobs"]
    assert figures["deaths"] == []


def test_live_queues_are_counted_with_their_history(spark: SparkSession, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    clock = FakeClock()
    clock.now = int(datetime.now(UTC).timestamp()) * 1_000_000 - 3600_000_000
    with penstock.open(url, clock=clock) as broker:
        dead = broker.create("dead")
        jobs = broker.create("jobs", history=86400, redrive=("dead", 1))
        jobs.send_many([b"a", b"b", b"c", b"d"])
        clock.advance(10)
        first, second, third = jobs.receive(3)
        clock.advance(2)
        assert first.delete()
        jobs.fail(second, "broken")
        third.release()
        assert [message.body for message in jobs.receive(2)] == [b"d"]  # the third died
        dead.send(b"x", attributes={"reason": "not so", "queue": "jobs"})
    figures = report(spark, ["jobs", "dead"], url=url)
    whole = figures["all"]
    assert (whole["messages"], whole["unsettled"], whole["processed"], whole["dead"]) == (5, 3, 1, 3)
    assert whole["handling"] == {"p50": 2.0, "p90": 2.0, "p99": 2.0, "max": 2.0}
    assert whole["waiting"]["max"] == 12.0
    assert figures["deaths"] == [{"name": name, "messages": 1, "bytes": 1} for name in ("broken", "max_receives", "not so")]
    by_queue = {row["queue"]: row for row in figures["queues"]}
    assert (by_queue["jobs"]["messages"], by_queue["dead"]["messages"]) == (3, 2)
    assert {event: sum(row[event] for row in figures["throughput"]) for event in EVENTS} == {
        "sent": 5,
        "received": 4,
        "settled": 2,
        "died": 3,
    }


def test_an_archived_message_is_settled_and_counted_once(spark: SparkSession, tmp_path: Path) -> None:
    url, lake = f"sqlite:///{tmp_path}/jobs.db", str(tmp_path / "lake")
    with penstock.open(url) as broker:
        for name, history in (("007", 86400), ("plain", 0)):
            broker.create(name, history=history).send_many([b"{}"] * 3)
        archive(spark, url, "*", lake, once=True)
        assert broker["007"].stats().settled == 3
        broker["plain"].send(b"new")
    for what, unsettled in (([lake], 0), ([lake, "007", "plain"], 1), (["plain", lake, "007", lake], 1)):
        figures = report(spark, what, url=url)
        whole = figures["all"]
        assert (whole["messages"], whole["unsettled"], whole["processed"]) == (6 + unsettled, unsettled, 6), what
        assert [row["queue"] for row in figures["queues"]] == ["007", "plain"]
        assert sum(row["settled"] for row in figures["throughput"]) == 6
        assert (whole["oldest_at"] is None) == (unsettled == 0)


def test_bad_input_is_told(spark: SparkSession, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    with pytest.raises(QueueNotFound, match="nobody"):
        report(spark, ["nobody"], url=url)
    with pytest.raises(BadInput, match=r"there is no folder '\./nothing'"):
        report(spark, ["./nothing"], url=url)
    with pytest.raises(BadInput, match="say which"):
        report(spark, ["jobs"])


def figures(**other: Any) -> dict[str, Any]:
    times = {"p50": 0.004, "p90": 0.2, "p99": 31.0}
    total = {
        "messages": 1234567,
        "bytes": 5_000_000,
        "unsettled": 7,
        "processed": 9,
        "redelivered": 12,
        "redeliveries": 15,
        "dead": 3,
        "first_at": "2026-01-01T10:00:00Z",
        "last_at": "2026-01-01T10:10:00Z",
        "oldest_at": "2026-01-01T10:00:00Z",
        "waiting": times | {"max": 50.0},
        "handling": None,
    }
    return {
        "at": "2026-01-01T12:00:00Z",
        "step": 60,
        "all": total,
        "queues": [total | {"queue": "jobs <b>"}],
        "throughput": [{"at": 1767261600 + 60 * n, "sent": n * 60, "received": n, "settled": 0, "died": 0} for n in range(10)],
        "times": {"waiting": [{"at": 1767261600 + 60 * n, **times} for n in range(10)], "handling": []},
        "deaths": [{"name": "<script>", "messages": 3, "bytes": None}],
        "producers": [],
    } | other


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        assert not {"src", "href", "onload"} & {name for name, _ in attrs}
        if tag not in ("meta", "line", "path", "rect", "i", "br") or tag == "i":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_one_file_that_needs_nothing_and_trusts_nobody() -> None:
    text = page.render(figures(), "A & B")
    tags = Tags()
    tags.feed(text)
    assert tags.open == []
    assert not {"link", "img", "iframe"} & set(tags.seen)
    assert not re.search(r"https?://|@import|url\(", text)
    assert "light-dark(" in text
    for words in (
        "A &amp; B",
        "1,234,567",
        "&lt;script&gt;",
        "jobs &lt;b&gt;",
        "4 ms / 31 s",
        "no message names its producer",
        "2 h",
    ):
        assert words in text, words


def test_the_page_runs_no_script_but_ours() -> None:
    """A browser runs what has the digest in the page's policy: one script, which is the same whatever the figures say."""
    hostile = "</script><script>alert(1)</script>"
    text = page.render(figures(deaths=[{"name": hostile, "messages": 3, "bytes": None}]), hostile)
    (script,) = re.findall(r"<script[^>]*>(.*?)</script>", text, re.DOTALL)
    assert hostile not in text
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in text
    assert "default-src 'none'" in text
    assert script in page.render(figures(), "Other")
    names = re.findall(r"^(?:const|let|class|function) (\w+)", script, re.MULTILINE)
    assert len(names) == len(set(names)), "the modules share one scope"


def test_a_report_of_nothing_is_a_page_too() -> None:
    empty = dict.fromkeys(figures()["all"]) | {"messages": 0, "unsettled": 0, "redelivered": 0, "dead": 0}
    nothing = figures(all=empty, queues=[], throughput=[], times={"waiting": [], "handling": []}, deaths=[])
    assert "no messages" in page.render(nothing, "Nothing")


def test_the_middle_of_the_times_is_the_median() -> None:
    text = page.render(figures(), "Times")
    assert "median" in text
    assert not re.search('[">]half["<]', text)  # the charts have a variable of that name
