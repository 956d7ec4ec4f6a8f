"""Moves between stores with their proof, and deduplication that keeps the first."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import penstock
from penstock.errors import BadInput, QueueNotFound
from penstock.message import Draft, Message
from penstock.spark.pipelines.failures import readable
from penstock.spark.pipelines.move import checksum, dedupe, move
from penstock.spark.pipelines.redrive import letters
from penstock.testing.servers import PostgresqlServer


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/queue.db"


def essence(message: Message) -> tuple[object, ...]:
    return message.body, message.content_type, tuple(message.attributes.items()), message.group


def test_a_queue_goes_from_files_to_sql_to_sql_and_each_step_is_proven(
    spark: SparkSession, url: str, tmp_path: Path, postgresql: PostgresqlServer
) -> None:
    urls = [f"vsqs:///{tmp_path}/files", url, postgresql.new_url()]
    drafts = [Draft(bytes([number, 0, 255]), "x/y", {"whole": number, "raw": b"\0"}) for number in range(50)]
    for each in urls:
        with penstock.open(each) as broker:
            broker.create("jobs")
            broker["jobs"].send(b"was there") if each == url else None
    with penstock.open(urls[0]) as broker:
        broker["jobs"].send_many(drafts)
        sent = sorted(map(essence, broker["jobs"].peek(100)), key=repr)

    first = move(spark, urls[0], "jobs", urls[1], checkpoint=str(tmp_path / "check-1"), maxMessagesPerTrigger="30")
    assert (first.proven, first.came.count, first.left.count, first.totals.rows) == (True, 50, 50, 50)
    assert not (tmp_path / "check-1/proof.json").exists()
    second = move(spark, urls[1], "jobs", urls[2], checkpoint=str(tmp_path / "check-2"))
    assert (second.proven, second.came.count) == (True, 51)
    with penstock.open(urls[2]) as broker:
        came = [essence(message) for message in broker["jobs"].peek(100) if message.body != b"was there"]
    assert sorted(came, key=repr) == sent
    with penstock.open(urls[1]) as broker:
        assert broker["jobs"].stats().messages == 0


def test_a_checksum_knows_bodies_types_and_attributes_but_no_order(spark: SparkSession, url: str) -> None:
    with penstock.open(url) as broker:
        sums = []
        for number, drafts in enumerate(
            [
                [Draft(b"a", attributes={"x": 1, "y": 2}), Draft(b"b")],
                [Draft(b"b"), Draft(b"a", attributes={"y": 2, "x": 1})],
                [Draft(b"a", attributes={"x": "1", "y": 2}), Draft(b"b")],
                [Draft(b"a", attributes={"x": 1, "y": 2}), Draft(b"b", "x/y")],
            ]
        ):
            broker.create(f"q{number}").send_many(drafts)
            sums.append(checksum(spark, url, f"q{number}"))
    assert sums[0] == sums[1]
    assert len({sums[0], sums[2], sums[3]}) == 3


def test_what_means_one_queue_reaches_no_other_whatever_is_in_its_name(spark: SparkSession, url: str, tmp_path: Path) -> None:
    with penstock.open(url) as broker:
        for name in ("a", "ab", "to"):
            broker.create(name).send(b"same")
        for number, act in enumerate(
            (
                lambda: move(spark, url, "a*", url, "to", checkpoint=f"{tmp_path}/move"),
                lambda: dedupe(spark, url, "a,ab"),
                lambda: dedupe(spark, url, "a*", "to", checkpoint=f"{tmp_path}/dedupe"),
                lambda: letters(spark, url, "a?").count(),
            )
        ):
            with pytest.raises(Exception) as caught:
                act()
            assert isinstance(readable(caught.value), QueueNotFound), number
        assert [broker[name].stats().messages for name in ("a", "ab", "to")] == [1, 1, 1]
        broker.create("a*").send(b"other")
        assert move(spark, url, "a*", url, "to", checkpoint=f"{tmp_path}/again").proven
        assert [broker[name].stats().messages for name in ("a", "ab", "a*", "to")] == [1, 1, 0, 2]


def test_what_others_do_meanwhile_is_not_proven(spark: SparkSession, url: str, tmp_path: Path) -> None:
    with penstock.open(url) as broker:
        broker.create("a").send(b"1")
        broker.create("b")
        check = str(tmp_path / "check")
        (tmp_path / "check").mkdir()
        (tmp_path / "check/proof.json").write_text('[[1, "77", "77"], [0, "0", "0"]]')  # left by a run that saw another message
        assert not move(spark, url, "a", url, "b", checkpoint=check).proven
        with pytest.raises(BadInput, match="moved to itself"):
            move(spark, url, "a", url, checkpoint=check)


def test_duplicates_are_removed_in_place_and_the_first_stays(spark: SparkSession, url: str) -> None:
    with penstock.open(url) as broker:
        queue = broker.create("jobs")
        drafts = [Draft(b'{"id": 1}'), Draft(b'{"id": 2}', attributes={"n": 1}), Draft(b'{"id": 2}', attributes={"n": 2})]
        queue.send_many([*drafts, Draft(b'{"id": 1}'), Draft(b'{"id": 1.0}'), Draft(b"\xff no JSON"), Draft(b'{"no": "id"}')])
        ids = [message.id for message in queue.peek(10)]
        assert dedupe(spark, url, "jobs", dry_run=True).duplicates == 1
        by_id = dedupe(spark, url, "jobs", by="id", dry_run=True)
        assert (by_id.messages, by_id.removed) == (7, 0)
        assert dedupe(spark, url, "jobs", by="key", dry_run=True).duplicates == 0
        assert queue.stats().messages == 7

        assert dedupe(spark, url, "jobs").removed == 1
        assert [message.id for message in queue.peek(10)] == [*ids[:3], *ids[4:]]
        held = queue.receive(2)  # the first two: their duplicates go, but the held messages stay
        assert dedupe(spark, url, "jobs", by="body").removed == 1
        assert {message.id for message in queue.peek(10)} >= {message.id for message in held}
        assert dedupe(spark, url, "jobs", by="body").removed == 0


def test_the_first_of_each_go_to_another_queue_over_batches_and_runs(spark: SparkSession, url: str, tmp_path: Path) -> None:
    check = str(tmp_path / "check")
    with penstock.open(url) as broker:
        queue = broker.create("jobs")
        broker.create("unique")
        queue.send_many([Draft(b'{"id": %d}' % (number % 7), attributes={"n": number}) for number in range(30)])
        done = dedupe(spark, url, "jobs", "unique", by="id", checkpoint=check, maxMessagesPerTrigger="12")
        assert (done.messages, done.duplicates) == (30, 23)
        queue.send_many([b'{"id": 3}', b'{"id": 8}'])
        assert dedupe(spark, url, "jobs", "unique", by="id", checkpoint=check).duplicates == 1
        found = broker["unique"].peek(100)
        assert [message.attributes.get("n") for message in found] == [0, 1, 2, 3, 4, 5, 6, None]
        assert found[-1].body == b'{"id": 8}'
        assert queue.stats().messages == 0
