"""Dead letters: inspected, selected by SQL and sent back; the others are untouched."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import penstock
from penstock.errors import BadInput, QueueNotFound
from penstock.message import Draft
from penstock.spark.pipelines.redrive import letters, redrive, summarize
from penstock.testing.servers import PostgresqlServer


@pytest.fixture(params=["sqlite", "postgresql", "spool"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgresql":
        server: PostgresqlServer = request.getfixturevalue("postgresql")
        return server.new_url()
    return f"{request.param}:///{tmp_path}/queues"


def bury(broker: penstock.Broker) -> None:
    """Three letters that died in `work`, two that a pipeline rejected (one from a queue that is gone), one with no origin."""
    dead = broker.create("dead")
    work = broker.create("work", redrive=("dead", 1))
    work.send_many([Draft(json.dumps({"customer": {"name": name}, "n": n}).encode()) for n, name in enumerate("aab")])
    work.receive(3, visibility=0)
    assert work.receive(3) == []
    dead.send(b"no json", attributes={"reason": "not so", "queue": "work"})
    dead.send(b"[]", attributes={"reason": "not so", "queue": "gone"})
    dead.send(b"stray")


def test_letters_are_counted_chosen_and_sent_back(spark: SparkSession, url: str, caplog: pytest.LogCaptureFixture) -> None:
    with penstock.open(url) as broker:
        bury(broker)
        dead, work = broker["dead"], broker["work"]
        before = {message.id: message for message in dead.peek(9)}

        found = summarize(letters(spark, url, "dead"), field="customer.name")
        assert found["letters"] == [("all", 6)]
        assert found["reason"] == [("max_receives", 3), ("not so", 2), ("(unknown)", 1)]
        assert found["source"] == [("work", 4), ("(unknown)", 1), ("gone", 1)]
        assert found["tries"] == [("0", 3), ("1", 3)]
        assert found["age"] == [("under a minute", 6)]
        assert found["customer.name"] == [("(unknown)", 3), ("a", 2), ("b", 1)]

        where = "reason = 'max_receives' AND json:customer.name::string = 'a' AND age < 3600"
        tried = redrive(spark, url, "dead", where=where, dry_run=True)
        assert (tried.chosen, tried.moved) == (2, {"work": 2})
        assert {message.id: message for message in dead.peek(9)} == before  # nothing was received, nothing moved

        done = redrive(spark, url, "dead", where=where, rate=1000)
        assert (done.chosen, done.moved, done.held) == (2, {"work": 2}, 0)
        back = work.peek(9)
        assert sorted(json.loads(message.body)["n"] for message in back) == [0, 1]
        moved = {message.id for message in back}
        assert {message.id: message for message in dead.peek(9)} == {
            id: message for id, message in before.items() if id not in moved
        }
        assert redrive(spark, url, "dead", where=where).chosen == 0  # running it again finds nothing left

        rest = redrive(spark, url, "dead")
        assert (rest.chosen, rest.moved, rest.homeless, rest.gone) == (4, {"work": 2}, 1, {"gone": 1})
        last = redrive(spark, url, "dead", to="work", limit=1)
        assert (last.chosen, last.moved) == (1, {"work": 1})
        assert (dead.stats().messages, work.stats().messages) == (1, 5)


def test_a_letter_that_somebody_holds_is_left_to_him(spark: SparkSession, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/queues.db"
    with penstock.open(url) as broker:
        dead, work = broker.create("dead"), broker.create("work")
        dead.send_many([b"1", b"2", b"3"])
        (held,) = dead.receive()
        taken: list[penstock.Message] = []

        def advance(_done: int, _all: int) -> None:
            if not taken:
                taken.extend(dead.receive())

        done = redrive(spark, url, "dead", to="work", rate=1, advance=advance)
        assert (done.chosen, done.moved, done.held) == (2, {"work": 1}, 1)
        assert held.delete()
        assert taken[0].delete()
        assert work.stats().messages == 1


def test_bad_input_is_told(spark: SparkSession, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/queues.db"
    with penstock.open(url) as broker:
        broker.create("dead").send(b"x")
    with pytest.raises(BadInput, match=r"--where 'reeson = 1': there is no column 'reeson'.*line 1"):
        letters(spark, url, "dead", where="reeson = 1")
    with pytest.raises(BadInput, match=r"--where.*[Ss]yntax"):
        letters(spark, url, "dead", where="reason = = 1")
    with pytest.raises(BadInput, match="--field 'a b'"):
        summarize(letters(spark, url, "dead"), field="a b")
    with pytest.raises(QueueNotFound):
        letters(spark, url, "nobody")
    with pytest.raises(QueueNotFound, match="nobody"):
        redrive(spark, url, "dead", to="nobody")
    with pytest.raises(BadInput, match="itself"):
        redrive(spark, url, "dead", to="dead")
    with pytest.raises(BadInput, match="rate 0"):
        redrive(spark, url, "dead", rate=0)
