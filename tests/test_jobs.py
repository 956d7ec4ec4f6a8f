"""Jobs: all messages that fit a filter are deleted, released, moved or redriven, in the background, on each kind of store."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from test_serve import serving

import penstock
from penstock import BadInput, Broker
from penstock.broker import LocalBroker
from penstock.message import Draft
from penstock.server import BackgroundServer, ServerSettings
from penstock.server.jobs.book import JOBS, KEPT, LABEL, MOST_OF_QUEUE, JobBook
from penstock.server.jobs.filters import MOST_IDS, MessageFilter, read_filter
from penstock.server.jobs.plan import Action, Job, Plan
from penstock.server.tokens import read_tokens
from penstock.testing.clock import FakeClock
from penstock.testing.http import Http, HttpAnswer, ServerFixtures
from penstock.testing.servers import PostgresqlServer
from penstock.testing.serving import until

URLS = {"memory": "memory:", "sqlite": "sqlite:///{}/queue.db", "vsqs": "vsqs:///{}/vsqs", "spool": "spool:///{}/spool"}
ENDED = ("completed", "cancelled", "failed")


def bodies(broker: Broker, queue: str) -> list[str]:
    return sorted(message.text for message in broker[queue].peek(1000))


class Jobs:
    """Calls the three requests."""

    def __init__(self, http: Http) -> None:
        self.http = http

    def start(self, queue: str, action: str, filter: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
        answer = self.http("POST", "/penstock/jobs", {"queue": queue, "action": action, "filter": filter or {}, **more})
        assert answer.status == 200, answer.body
        job: dict[str, Any] = answer.json
        return job

    def list(self, queue: str = "") -> list[dict[str, Any]]:
        answer = self.http("GET", f"/penstock/jobs{f'?queue={queue}' if queue else ''}")
        assert answer.status == 200, answer.body
        found: list[dict[str, Any]] = answer.json["jobs"]
        return found

    def end(self, id: str) -> dict[str, Any]:
        """Wait until a job has ended."""
        until(lambda: self.find(id)["status"] in ENDED)
        return self.find(id)

    def find(self, id: str) -> dict[str, Any]:
        return next(job for job in self.list() if job["id"] == id)

    def do(self, queue: str, action: str, filter: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
        return self.end(self.start(queue, action, filter, **more)["id"])

    def play(self, id: str, clock: FakeClock) -> dict[str, Any]:
        """Move the clock until a job has ended."""

        def ended() -> bool:
            clock.advance(1)
            return self.find(id)["status"] in ENDED

        until(ended)
        return self.find(id)


def kill(broker: Broker, queue: str, *letters: bytes) -> None:
    """Let messages die in a queue."""
    home = broker[queue]
    home.send_many(list(letters))
    while home.stats().messages:
        home.receive(len(letters), visibility=0)


class JobChapter(ServerFixtures):
    @pytest.fixture
    def jobs(self, http: Http, broker: Broker) -> Jobs:
        broker.create("dead")
        broker.create("orders", visibility=60, redrive=("dead", 1))
        broker.create("elsewhere")
        return Jobs(http)

    def test_a_delete_takes_what_fits_and_nothing_else(self, jobs: Jobs, broker: Broker, clock: FakeClock) -> None:
        broker["orders"].send_many([json.dumps({"kind": kind, "n": n}).encode() for n in range(50) for kind in ("a", "b")])
        done = jobs.do("orders", "delete", {"field": "kind", "equals": "a"}, expect=50)
        assert done == {
            "id": done["id"],
            "queue": "orders",
            "action": "delete",
            "filter": {"field": "kind", "equals": "a"},
            "to": None,
            "rate": None,
            "status": "completed",
            "done": 50,
            "stayed": 0,
            "scanned": 100,
            "messages": 100,
            "total": 50,
            "reason": "",
            "started_at": clock(),
            "by": "",
        }
        assert {json.loads(text)["kind"] for text in bodies(broker, "orders")} == {"b"}
        assert len(bodies(broker, "orders")) == 50

    def test_a_delete_of_all_takes_what_is_held_and_hidden_too(self, jobs: Jobs, broker: Broker) -> None:
        broker["orders"].send_many([b"1", b"2", Draft(b"later", delay=3600)])
        (held,) = broker["orders"].receive()
        done = jobs.do("orders", "delete")
        assert (done["done"], done["total"], done["messages"]) == (3, 3, 3)
        assert broker["orders"].stats().messages == 0
        assert held.delete() is False

    def test_a_delete_by_state_leaves_the_others(self, jobs: Jobs, broker: Broker) -> None:
        broker["orders"].send_many([b"1", b"2", Draft(b"later", delay=3600)])
        (held,) = broker["orders"].receive()
        done = jobs.do("orders", "delete", {"state": "visible"})
        assert (done["done"], done["total"]) == (1, 1)
        assert bodies(broker, "orders") == sorted([held.text, "later"])
        assert held.delete()

    def test_what_a_reader_has_claimed_by_name_is_not_touched(self, jobs: Jobs, broker: Broker) -> None:
        broker["orders"].send_many([b"1", b"2", b"3"])
        assert broker["orders"].claim("stream", 1, 2).size == 2
        broker["orders"].confirm("stream", 1)
        assert jobs.do("orders", "release")["done"] == 0
        assert jobs.do("orders", "delete")["done"] == 1
        assert len(broker["orders"].read("stream", 1)) == 2

    def test_a_release_gives_back_what_receivers_hold(self, jobs: Jobs, broker: Broker) -> None:
        broker["orders"].send_many([b"1", b"2", b"3", Draft(b"later", delay=3600)])
        broker["orders"].receive(2, holder="worker")
        done = jobs.do("orders", "release")
        assert (done["done"], done["total"], done["scanned"]) == (2, 2, 4)
        stats = broker["orders"].stats()
        assert (stats.visible, stats.in_flight, stats.delayed) == (3, 0, 1)
        assert {message.holder for message in broker["orders"].peek(10)} == {None}

    def test_chosen_ids_are_moved(self, jobs: Jobs, broker: Broker) -> None:
        sent = broker["orders"].send_many([b"%d" % number for number in range(10)])
        done = jobs.do("orders", "move", {"ids": [sent[2].id, sent[7].id, "no-such-id"]}, to="elsewhere")
        assert (done["done"], done["total"], done["to"]) == (2, 3, "elsewhere")
        assert bodies(broker, "elsewhere") == ["2", "7"]
        assert len(bodies(broker, "orders")) == 8

    def test_a_redrive_by_reason_and_source_takes_letters_back(self, jobs: Jobs, broker: Broker) -> None:
        broker.create("mail", redrive=("dead", 1))
        kill(broker, "orders", b"1", b"2")
        kill(broker, "mail", b"3")
        reasons = {message.death.reason for message in broker["dead"].peek(10) if message.death}
        assert len(reasons) == 1
        assert jobs.do("dead", "redrive", {"source": "orders", "reason": "another reason"})["done"] == 0
        done = jobs.do("dead", "redrive", {"source": "orders", "reason": reasons.pop()})
        assert (done["status"], done["done"]) == ("completed", 2)
        assert (bodies(broker, "orders"), bodies(broker, "dead"), bodies(broker, "mail")) == (["1", "2"], ["3"], [])

    def test_letters_whose_queue_is_gone_stay_and_are_told(self, jobs: Jobs, broker: Broker) -> None:
        broker.create("gone", redrive=("dead", 1))
        kill(broker, "gone", b"1")
        kill(broker, "orders", b"2")
        broker.delete("gone")
        done = jobs.do("dead", "redrive")
        assert (done["status"], done["done"], done["stayed"]) == ("failed", 1, 1)
        assert done["reason"] == "A queue to which messages were to go does not exist."
        assert bodies(broker, "dead") == ["1"]

    def test_duplicates_stay_and_are_counted(self, jobs: Jobs, broker: Broker) -> None:
        broker.create("once", deduplicate=True).send(b"1")
        broker["orders"].send_many([Draft(b"1"), Draft(b"2")])
        done = jobs.do("orders", "move", to="once")
        assert (done["status"], done["done"], done["stayed"]) == ("completed", 1, 1)
        assert (bodies(broker, "once"), bodies(broker, "orders")) == (["1", "2"], ["1"])

    def test_by_age_and_by_text(self, jobs: Jobs, broker: Broker, clock: FakeClock) -> None:
        broker["orders"].send_many([b"old pizza", b"old pasta"])
        clock.advance(60)
        broker["orders"].send_many([b"new pizza"])
        clock.advance(10)
        assert jobs.do("orders", "delete", {"text": "pizza", "older_than": 60})["done"] == 1
        assert jobs.do("orders", "delete", {"younger_than": 60, "text": "pasta"})["done"] == 0
        assert bodies(broker, "orders") == ["new pizza", "old pasta"]

    def test_what_comes_later_stays(self, jobs: Jobs, broker: Broker, clock: FakeClock) -> None:
        broker["orders"].send_many([b"1", b"2", b"3"])
        job = jobs.start("orders", "delete", rate=1)
        until(lambda: jobs.find(job["id"])["done"] == 1)
        clock.advance(0.5)
        broker["orders"].send(b"later")
        done = jobs.play(job["id"], clock)
        assert (done["done"], bodies(broker, "orders")) == (3, ["later"])

    def test_a_job_changes_no_more_in_a_second_than_its_rate(self, jobs: Jobs, broker: Broker, clock: FakeClock) -> None:
        broker["orders"].send_many([b"%d" % number for number in range(30)])
        started = clock()
        job = jobs.start("orders", "delete", rate=20)
        for seconds in (0, 0.1, 0.1):
            clock.advance(seconds)
            allowed = 2 + 20 * (clock() - started) // 1_000_000
            until(lambda allowed=allowed: broker["orders"].stats().messages <= 30 - allowed + 1)
            assert broker["orders"].stats().messages >= 30 - allowed
        assert jobs.find(job["id"])["status"] == "running"
        assert jobs.play(job["id"], clock)["done"] == 30

    def test_a_cancelled_job_leaves_the_rest(self, jobs: Jobs, broker: Broker, clock: FakeClock) -> None:
        broker["orders"].send_many([b"1", b"2", b"3"])
        job = jobs.start("orders", "delete", rate=1)
        until(lambda: jobs.find(job["id"])["done"] == 1)
        answer = jobs.http("DELETE", f"/penstock/jobs/{job['id']}")
        assert (answer.status, answer.json["status"] in ("cancelling", "cancelled")) == (200, True)
        done = jobs.end(job["id"])
        assert (done["status"], done["done"], len(bodies(broker, "orders"))) == ("cancelled", 1, 2)
        assert jobs.http("DELETE", f"/penstock/jobs/{job['id']}").status == 404
        clock.advance(60)
        assert jobs.do("orders", "delete")["done"] == 2

    def test_a_job_ends_with_its_queue(self, jobs: Jobs, broker: LocalBroker, clock: FakeClock) -> None:
        broker["orders"].send_many([b"1", b"2", b"3"])
        job = jobs.start("orders", "delete", rate=1)
        until(lambda: jobs.find(job["id"])["done"] == 1)
        assert jobs.http("POST", "/penstock/broker/delete", {"arguments": {"name": "orders"}}).status == 200
        clock.advance(1)
        until(lambda: bodies(broker, JOBS) == [])
        assert jobs.list() == []

    def test_jobs_are_listed_the_last_one_first(self, jobs: Jobs, broker: Broker, clock: FakeClock) -> None:
        assert jobs.list() == []
        first = jobs.do("orders", "delete")["id"]
        clock.advance(1)
        second = jobs.do("elsewhere", "delete")["id"]
        clock.advance(1)
        third = jobs.do("orders", "release")["id"]
        assert [job["id"] for job in jobs.list()] == [third, second, first]
        assert [job["id"] for job in jobs.list("orders")] == [third, first]
        for _ in range(KEPT):
            clock.advance(1)
            last = jobs.do("orders", "release")["id"]
        assert len(jobs.list("orders")) == KEPT
        assert jobs.list()[0]["id"] == last
        assert len([name for name in broker["orders"].settings.labels if name.startswith(LABEL)]) == KEPT

    def test_a_queue_has_a_few_jobs_at_a_time(self, jobs: Jobs, broker: Broker) -> None:
        broker["orders"].send_many([b"%d" % number for number in range(20)])
        for _ in range(MOST_OF_QUEUE):
            jobs.start("orders", "delete", rate=1)
        answer = jobs.http("POST", "/penstock/jobs", {"queue": "orders", "action": "delete"})
        assert (answer.status, f"{MOST_OF_QUEUE} jobs change queue 'orders' already" in answer.json["error"]) == (400, True)

    def test_no_message_makes_a_job(self, jobs: Jobs, broker: Broker, clock: FakeClock) -> None:
        """A sender may write to the queue of jobs, but not to the labels of the queue that the job would change."""
        broker["orders"].send_many([b"1", b"2", b"3"])
        job = jobs.start("orders", "delete", {"text": "1"}, rate=1)
        until(lambda: jobs.find(job["id"])["scanned"] >= 1)
        (real,) = broker[JOBS].peek()
        plan = json.loads(real.body)
        forged = [
            {**plan, "filter": {}},
            {**plan, "rate": None},
            {**plan, "queue": "elsewhere"},
            {**plan, "id": "x", "filter": {}},
            {**plan, "action": "fly"},
            {**plan, "filter": {"state": "happy"}},
        ]
        broker[JOBS].send_many([*(json.dumps(each).encode() for each in forged), b"garbage", b"[]", b"{}"])
        jobs.start("elsewhere", "delete")  # have the server look
        until(lambda: bodies(broker, JOBS) in ([real.text], []))
        jobs.play(job["id"], clock)
        assert bodies(broker, "orders") == ["2", "3"]

    def test_a_server_that_stops_leaves_its_jobs_to_the_next(self, broker: LocalBroker, clock: FakeClock) -> None:
        broker.create("orders").send_many([b"%d" % number for number in range(5)])
        with BackgroundServer(broker, self.server_settings) as first:
            before = Jobs(Http(first.url))
            job = before.start("orders", "delete", rate=1)
            until(lambda: before.find(job["id"])["done"] == 1)
        with BackgroundServer(broker, self.server_settings) as second:
            after = Jobs(Http(second.url))
            assert after.find(job["id"])["status"] == "running"
            assert after.play(job["id"], clock)["done"] == 5
        assert bodies(broker, "orders") == []


def test_a_job_that_ends_while_its_queue_is_looked_at_was_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    with penstock.broker.open_local("memory:") as broker:
        broker.create("orders")
        book, plan = JobBook(broker), Plan("a job", "orders", Action.DELETE)
        book.begin(plan)
        living = book._living

        def living_later(jobs: list[Job]) -> set[str]:
            book.note(plan, status="completed")
            broker[JOBS].purge()
            return living(jobs)

        monkeypatch.setattr(book, "_living", living_later)
        assert [job.status for job in book.jobs("orders")] == ["completed"]


@pytest.mark.parametrize("store", URLS)
class TestJobs(JobChapter):
    @pytest.fixture
    def url(self, store: str, tmp_path: Path) -> str:
        return URLS[store].format(tmp_path)


class TestJobsOnPostgresql(JobChapter):
    @pytest.fixture
    def url(self, postgresql: PostgresqlServer) -> str:
        return postgresql.new_url()


# refusals and rights


@pytest.fixture
def served() -> Iterator[tuple[Broker, Http]]:
    with penstock.open("memory:") as broker, BackgroundServer(broker, ServerSettings(port=0, access_log=False)) as server:
        broker.create("orders").send(b"1")
        yield broker, Http(server.url)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ([], "the body must be an object"),
        ({"queue": "orders"}, "action None is not one of delete, release, move, redrive"),
        ({"queue": "orders", "action": "fly"}, "action 'fly' is not one of"),
        ({"queue": "", "action": "delete"}, "name"),
        ({"action": "delete"}, "name"),
        ({"queue": "none", "action": "delete"}, "'none'"),
        ({"queue": "orders", "action": "delete", "speed": 1}, "a job has no 'speed'"),
        ({"queue": "orders", "action": "delete", "to": "x"}, "a delete goes to no queue (to)"),
        ({"queue": "orders", "action": "move"}, "a move says to which queue it goes (to)"),
        ({"queue": "orders", "action": "move", "to": "orders"}, "cannot be moved to itself"),
        ({"queue": "orders", "action": "move", "to": "none"}, "'none'"),
        ({"queue": "orders", "action": "delete", "rate": 0}, "rate 0 is not between 1 and"),
        ({"queue": "orders", "action": "delete", "rate": 1.5}, "rate must be a whole number"),
        ({"queue": "orders", "action": "delete", "expect": -1}, "expect -1 is not between"),
        ({"queue": "orders", "action": "delete", "filter": {"colour": "red"}}, "a filter has no 'colour'"),
    ],
)
def test_what_cannot_be_a_job_is_refused_and_changes_nothing(served: tuple[Broker, Http], given: Any, words: str) -> None:
    broker, http = served
    answer = http("POST", "/penstock/jobs", json.dumps(given).encode())
    assert answer.status in (400, 404)
    assert words in answer.json["error"]
    assert (broker["orders"].stats().messages, JOBS in broker) == (1, False)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ([], "a filter is an object"),
        ({"state": "happy"}, "state 'happy' is not one of visible, in_flight"),
        ({"equals": 1}, "equals needs field"),
        ({"text": ""}, "text '' must be text of 1 to 1000 characters"),
        ({"text": 3}, "text 3 must be text"),
        ({"text": "\ud800"}, "cannot be written in UTF-8"),
        ({"older_than": -1}, "older_than -1 is not between 0"),
        ({"younger_than": "soon"}, "younger_than must be a number of seconds"),
        ({"ids": "x"}, "ids is a list of ids"),
        ({"ids": [3]}, "ids is a list of ids"),
        ({"ids": ["x"] * (MOST_IDS + 1)}, f"there are {MOST_IDS + 1} ids, the limit is {MOST_IDS}"),
        ({"field": "a", "equals": "x" * 2000}, "equals has more than 1000 characters"),
    ],
)
def test_a_bad_filter_is_named(given: Any, words: str) -> None:
    with pytest.raises((BadInput, ValueError), match=words[:40].replace("(", r"\(")):
        read_filter(given)


@pytest.mark.parametrize(
    ("body", "field", "equals", "fits"),
    [
        (b'{"a": {"b": [1, 2]}}', "a.b.1", 2, True),
        (b'{"a": {"b": [1, 2]}}', "a.b.2", 2, False),
        (b'{"a": {"b": [1, 2]}}', "a.b", [1, 2.0], True),
        (b'{"a": true}', "a", 1, False),
        (b'{"a": [true]}', "a", [1], False),
        (b'{"a": {"x": 1}}', "a", {"x": True}, False),
        (b'{"a": null}', "a", None, True),
        (b'{"a": null}', "b", None, False),
        (b"[[3]]", "0.0", 3, True),
        (b'{"0": "x"}', "0", "x", True),
        (b'"text"', "0", "t", False),
        (b"no json", "a", 1, False),
        (b"[" * 100_000, "0", 1, False),
        (b"\xff", "a", 1, False),
    ],
)
def test_a_field_is_compared_as_json(body: bytes, field: str, equals: Any, fits: bool) -> None:
    with penstock.open("memory:") as broker:
        broker.create("q").send(body)
        (message,) = broker["q"].peek()
        assert read_filter({"field": field, "equals": equals}).fits(message, broker.clock()) is fits
        assert MessageFilter().fits(message, broker.clock())


RIGHTS = {
    "all": (["admin", "read", "count"], ["*"]),
    "blind": (["admin"], ["*"]),
    "few": (["admin", "read", "count"], ["orders", "dead"]),
    "reader": (["read", "count"], ["*"]),
    "counter": (["count"], ["*"]),
    "taker": (["receive", "send", "read"], ["*"]),
}


def test_a_job_needs_the_rights_of_what_it_does(tmp_path: Path) -> None:
    tables = [
        {"name": name, "secret": f"{name}-of-some-length", "scopes": scopes, "queues": queues}
        for name, (scopes, queues) in RIGHTS.items()
    ]
    settings = ServerSettings(port=0, access_log=False, tokens=read_tokens(tables, "test", ""))
    with penstock.open("memory:", clock=FakeClock()) as broker, BackgroundServer(broker, settings) as server:
        for name in ("orders", "dead", "secret"):
            broker.create(name).send_many([b"1", b"2", b"3"])

        def ask(name: str, method: str = "POST", path: str = "/penstock/jobs", **body: Any) -> HttpAnswer:
            return Http(server.url, {"Authorization": f"Bearer {name}-of-some-length"})(method, path, body or None)

        def statuses(**body: Any) -> dict[str, int]:
            return {name: ask(name, **body).status for name in RIGHTS}

        no = dict.fromkeys(RIGHTS, 403)
        nothing = {"ids": []}
        assert statuses(queue="orders", action="delete", filter=nothing) == {**no, "all": 200, "blind": 200, "few": 200}
        by_text = {"text": "1", "state": "damaged"}
        assert statuses(queue="orders", action="delete", filter=by_text) == {**no, "all": 200, "few": 200}
        assert statuses(queue="dead", action="redrive", filter=nothing) == {**no, "all": 200, "blind": 200}
        to = {"queue": "dead", "action": "move", "filter": nothing}
        assert statuses(**to, to="orders") == {**no, "all": 200, "blind": 200, "few": 200}
        assert statuses(**to, to="secret") == {**no, "all": 200, "blind": 200}
        assert statuses(queue="secret", action="delete", filter=nothing) == {**no, "all": 200, "blind": 200}

        job = ask("all", queue="secret", action="move", to="orders", filter={"text": "1"}, rate=1).json
        shown = {name: ask(name, "GET") for name in RIGHTS}
        assert {name: answer.status for name, answer in shown.items()} == {**dict.fromkeys(RIGHTS, 200), "blind": 403}
        ids = {name: [each["id"] for each in answer.json.get("jobs", [])] for name, answer in shown.items()}
        assert [name for name in RIGHTS if job["id"] in ids[name]] == ["all", "reader", "counter", "taker"]
        filters = {
            name: next(each["filter"] for each in shown[name].json["jobs"] if each["id"] == job["id"])
            for name in ("reader", "counter")
        }
        assert filters == {"reader": {"text": "1"}, "counter": None}
        assert ask("few", "GET", "/penstock/jobs?queue=secret").status == 403
        path = f"/penstock/jobs/{job['id']}"
        cancelled = {name: ask(name, "DELETE", path).status for name in ("few", "reader", "counter", "taker", "blind")}
        assert cancelled == {"few": 404, "reader": 403, "counter": 403, "taker": 403, "blind": 200}


def test_a_queue_with_groups_is_not_moved_where_their_order_is_lost(served: tuple[Broker, Http]) -> None:
    broker, http = served
    broker.create("fifo", groups=True)
    answer = http("POST", "/penstock/jobs", {"queue": "fifo", "action": "move", "to": "orders"})
    assert (answer.status, "has no groups" in answer.json["error"]) == (400, True)


# kills


@pytest.fixture
def stores(tmp_path: Path, postgresql: PostgresqlServer) -> Callable[[str], str]:
    return lambda kind: postgresql.new_url() if kind == "postgresql" else URLS[kind].format(tmp_path)


@pytest.mark.parametrize("action", ["delete", "release", "redrive"])
@pytest.mark.parametrize("kind", ["sqlite", "vsqs", "postgresql"])
def test_after_a_kill_the_next_server_goes_on(kind: str, action: str, stores: Callable[[str], str]) -> None:
    url = stores(kind)
    with penstock.open(url) as broker:
        broker.create("dead", visibility=3600)
        broker.create("orders", redrive=("dead", 1))
        if action == "redrive":
            kill(broker, "orders", *(b"%d" % number for number in range(40)))
        else:
            broker["dead"].send_many([b"%d" % number for number in range(40)])
        if action == "release":
            broker["dead"].receive(40)
    with serving(url) as (process, address):
        jobs = Jobs(Http(address))
        job = jobs.start("dead", action, rate=10)
        until(lambda: jobs.find(job["id"])["done"] > 2)
        process.kill()
        process.wait()
    with penstock.open(url) as broker:
        stats = broker["dead"].stats()
        left = stats.in_flight if action == "release" else stats.messages
        assert 0 < left < 40
    with serving(url) as (_, address):
        done = Jobs(Http(address)).end(job["id"])
        assert (done["status"], done["total"]) == ("completed", 40)
    with penstock.open(url) as broker:
        expected = {"delete": ([], []), "release": (40, []), "redrive": ([], 40)}[action]
        found = (bodies(broker, "dead"), bodies(broker, "orders"))
        assert (
            tuple(each if not isinstance(want, int) else len(set(each)) for each, want in zip(found, expected, strict=True))
            == expected
        )
        assert broker["dead"].stats().in_flight == 0


# the audit


def test_changes_are_in_the_audit(served: tuple[Broker, Http]) -> None:
    broker, http = served
    (sent,) = broker["orders"].send_many([b"2"])
    http("POST", "/penstock/queues/orders/delete_many", {"arguments": {"messages": [sent.id]}})
    http("POST", "/penstock/queues/orders/update", {"arguments": {"visibility": 5}})
    http("POST", "/penstock/queues/orders/purge", {"arguments": {}})
    http("POST", "/penstock/queues/orders/stats", {"arguments": {}})
    http("POST", "/penstock/queues/none/purge", {"arguments": {}})
    http("PUT", "/queues/mail", {"retention_timeout": 3600, "visibility_timeout": 30})
    http("DELETE", "/queues/mail")
    http("PUT", "/mail2")
    job = http("POST", "/penstock/jobs", {"queue": "orders", "action": "delete"}).json["id"]
    until(lambda: http("GET", "/penstock/server").json["audit"][-1]["deed"] == "delete completed")
    lines = http("GET", "/penstock/server").json["audit"]
    assert [(line["deed"], line["queue"]) for line in lines] == [
        ("delete_many", "orders"),
        ("update", "orders"),
        ("purge", "orders"),
        ("create", "mail"),
        ("delete", "mail"),
        ("create", "mail2"),
        ("delete started", "orders"),
        ("delete completed", "orders"),
    ]
    assert (lines[0]["messages"], lines[-1]["job"], lines[-1]["messages"]) == (1, job, 0)
