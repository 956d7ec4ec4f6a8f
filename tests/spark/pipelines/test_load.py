"""Loads: each row becomes a message once, and a row that cannot is diverted, with the reason."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import penstock
from penstock.errors import BadInput, QueueNotFound
from penstock.message import Message
from penstock.spark.pipelines.failures import readable
from penstock.spark.pipelines.load import load


@pytest.fixture
def url(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path}/queue.db"
    with penstock.open(url) as broker:
        for name in ("in", "other", "bad"):
            broker.create(name)
    return url


def found(url: str, queue: str = "in") -> list[Message]:
    with penstock.open(url) as broker:
        return broker[queue].peek(1000)


def test_lines_of_text_are_messages_once_and_new_files_come_with_the_next_run(
    spark: SparkSession, url: str, tmp_path: Path
) -> None:
    (tmp_path / "a.txt").write_text("one\n\nthree")
    check = str(tmp_path / "check")
    folder, files = str(tmp_path / "*.txt"), [str(tmp_path / "a.txt"), str(tmp_path / "b.txt")]
    assert load(spark, folder, url, "in", checkpoint=check, format="text").rows == 3
    assert load(spark, folder, url, "in", checkpoint=check, format="text").rows == 0
    (tmp_path / "b.txt").write_text("four\n")
    assert load(spark, folder, url, "in", checkpoint=check, format="text").rows == 1
    assert [message.text for message in found(url)] == ["one", "", "three", "four"]
    assert load(spark, files, url, "other", checkpoint=f"{check}-2").rows == 4
    assert sorted(message.text for message in found(url, "other")) == ["", "four", "one", "three"]


def test_a_comma_in_a_name_makes_no_list_of_it(spark: SparkSession, url: str, tmp_path: Path) -> None:
    for name in ("a,b.txt", "b.txt", "c.txt"):
        (tmp_path / name).write_text(name)
    assert load(spark, f"{tmp_path}/a,b.txt", url, "in", checkpoint=f"{tmp_path}/check").rows == 1
    assert [message.text for message in found(url)] == ["a,b.txt"]
    files = [f"{tmp_path}/a,b.txt", f"{tmp_path}/{{c,d}}.tx*"]
    assert load(spark, files, url, "other", checkpoint=f"{tmp_path}/check-2").rows == 2
    assert sorted(message.text for message in found(url, "other")) == ["a,b.txt", "c.txt"]


def test_a_file_whose_name_looks_like_a_pattern_is_refused(spark: SparkSession, url: str, tmp_path: Path) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    (folder / "plain.txt").write_text("plain")
    for name in ("{c}.txt", "[d].txt", "e*.txt", "f?.txt", "g\\h.txt"):
        (folder / name).write_text("special")
        for files in (folder, folder / name, folder / "*.txt"):
            with pytest.raises(BadInput) as caught:
                load(spark, str(files), url, "in", checkpoint=f"{tmp_path}/check")
            assert repr(str(folder / name)) in str(caught.value)
            (tmp_path / "check" / "penstock.json").unlink()
        (folder / name).unlink()
    assert found(url) == []


def test_a_line_of_json_is_a_body_byte_for_byte_and_its_fields_can_be_mapped(
    spark: SparkSession, url: str, tmp_path: Path
) -> None:
    lines = ['{"id":  1, "of": {"region": "north"}, "to": "other"}', '{"id": 2.50}', "no JSON"]
    (tmp_path / "a.jsonl").write_text("\n".join([lines[0], "", *lines[1:]]))
    with pytest.raises(Exception) as caught:
        load(spark, str(tmp_path / "a.jsonl"), url, "in", checkpoint=str(tmp_path / "check"))
    error = readable(caught.value)
    assert isinstance(error, BadInput)
    assert str(error) == f"in {tmp_path}/a.jsonl: the line is not JSON: no JSON"
    assert found(url) == []

    bad = tmp_path / "bad.jsonl"
    columns = {"attribute.region": "of.region", "queue": "to"}
    check = str(tmp_path / "check-2")
    done = load(spark, str(tmp_path / "a.jsonl"), url, "in", checkpoint=check, columns=columns, bad_file=str(bad))
    assert (done.rows, done.bad) == (2, 1)
    (first,), (second,) = found(url, "other"), found(url)
    assert (first.text, first.content_type, first.attributes) == (lines[0], "application/json", {"region": "north"})
    assert (second.text, second.attributes) == (lines[1], {})
    (told,) = map(json.loads, bad.read_text().splitlines())
    assert told.pop("id")
    assert told == {"reason": "the line is not JSON", "queue": "in", "file": f"{tmp_path}/a.jsonl", "body": "no JSON"}
    with penstock.open(url) as broker:
        assert broker.queues().names == ["bad", "in", "other"], "the queue in between is gone"


def test_rows_of_csv_are_json_and_those_that_do_not_fit_go_to_a_queue(spark: SparkSession, url: str, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,name,price\n1,bolt,2.5\n2\n3,nut,cheap\n")
    columns = {"attribute.id": "id", "attribute.price": "price", "content_type": "name"}
    schema = "id int, name string, price double"
    check = str(tmp_path / "check")
    done = load(spark, str(tmp_path / "a.csv"), url, "in", checkpoint=check, columns=columns, schema=schema, bad_queue="bad")
    assert (done.rows, done.bad) == (3, None), "nobody counts what goes to a queue that others use"
    (good,) = found(url)
    assert json.loads(good.body) == {"id": 1, "name": "bolt", "price": 2.5}
    assert (good.attributes, good.content_type) == ({"id": 1, "price": 2.5}, "bolt")
    assert [(message.text, message.attributes["reason"]) for message in found(url, "bad")] == [
        ("2", "the line does not fit the columns"),
        ("3,nut,cheap", "the line does not fit the columns"),
    ]


def test_a_delay_or_deadline_that_is_none_makes_a_bad_row(spark: SparkSession, url: str, tmp_path: Path) -> None:
    lines = "v,5,2030-01-01\nw,,\nx,abc,2030-01-01\ny,0,tomorrow\nz,0,9999-12-31 23:59:59-05:00\n"
    (tmp_path / "a.csv").write_text(f"body,wait,until\n{lines}")
    columns = {"delay": "wait", "deadline": "until"}
    with pytest.raises(Exception) as caught:
        load(spark, str(tmp_path / "a.csv"), url, "in", checkpoint=f"{tmp_path}/check", columns=columns)
    error = readable(caught.value)
    assert isinstance(error, BadInput)
    assert str(error) == f"in {tmp_path}/a.csv: its delay is not a double: abc: x"
    assert found(url) == []
    load(spark, str(tmp_path / "a.csv"), url, "in", checkpoint=f"{tmp_path}/check-2", columns=columns, bad_queue="bad")
    sent = {message.text: message for message in found(url)}
    assert sent.keys() == {"v", "w"}
    assert (sent["v"].visible_at - sent["v"].sent_at, sent["w"].deadline_at) == (5_000_000, None)
    told = {message.body: message.attributes["reason"] for message in found(url, "bad")}
    assert told.keys() == {b"x", b"y", b"z"}
    assert (told[b"x"], told[b"y"]) == ("its delay is not a double: abc", "its deadline is not a timestamp: tomorrow")
    assert "not within the years 1 to 9999" in str(told[b"z"])

    rows = spark.createDataFrame([(b"p", "1"), (b"q", "soon")], "body binary, wait string")
    rows.coalesce(1).write.parquet(f"{tmp_path}/rows")
    load(spark, f"{tmp_path}/rows", url, "other", checkpoint=f"{tmp_path}/check-3", columns={"delay": "wait"}, bad_queue="bad")
    assert [message.body for message in found(url, "other")] == [b"p"]
    assert found(url, "bad")[-1].attributes["reason"] == "its delay is not a double: soon"


def test_a_column_is_known_by_its_whole_name(spark: SparkSession, url: str, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a.b,c`d\n1,2\n")
    columns = {"attribute.x": "a.b", "attribute.y": "c`d"}
    load(spark, str(tmp_path / "a.csv"), url, "in", checkpoint=f"{tmp_path}/check", columns=columns)
    (message,) = found(url)
    assert (json.loads(message.body), message.attributes) == ({"a.b": "1", "c`d": "2"}, {"x": "1", "y": "2"})


def test_columns_of_parquet_and_what_only_the_sink_finds_out(spark: SparkSession, url: str, tmp_path: Path) -> None:
    spark.sql(
        "SELECT * FROM VALUES (binary('a'), 'one'), (binary('b'), repeat('x', 300)), (null, 'three') AS rows (payload, what)"
    ).coalesce(1).write.parquet(str(tmp_path / "rows"))
    bad = tmp_path / "bad.jsonl"
    columns = {"content_type": "what"}
    files, check = str(tmp_path / "rows"), str(tmp_path / "check")
    done = load(spark, files, url, "in", checkpoint=check, body="payload", columns=columns, bad_file=str(bad))
    assert (done.rows, done.bad) == (1, 2)
    assert [(message.body, message.content_type) for message in found(url)] == [(b"a", "one")]
    reasons = sorted(json.loads(line)["reason"] for line in bad.read_text().splitlines())
    assert len(reasons) == 2
    assert "must be at most 255" in reasons[0]
    assert "null" in reasons[1]


def test_a_rate_is_kept_by_portions_of_a_second(spark: SparkSession, url: str, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("".join(f"{number}\n" for number in range(5)))
    done = load(spark, str(tmp_path / "a.txt"), url, "in", checkpoint=str(tmp_path / "check"), rate=2)
    assert (done.rows, done.batches, done.stopped) == (5, 3, False)
    assert [message.text for message in found(url)] == ["0", "1", "2", "3", "4"]


def test_what_is_missing_is_told_by_its_name(spark: SparkSession, url: str, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,name\n1,bolt\n")
    (tmp_path / "x.parquet").write_text("this is no Parquet, but text")
    check = str(tmp_path / "check")

    def told(file: str, queue: str = "in", **how: str) -> str:
        with pytest.raises(Exception) as caught:
            load(spark, str(tmp_path / file), url, queue, checkpoint=f"{check}-{file}-{queue}", **how)  # type: ignore[arg-type]
        error = readable(caught.value)
        assert isinstance(error, BadInput | QueueNotFound)
        return str(error)

    assert told("a.csv", body="nam") == "there is no column 'nam'; there are id, name"
    assert told("b.csv") == f"there is no file {tmp_path}/b.csv"
    assert told("x.parquet") == f"the file {tmp_path}/x.parquet is not Parquet, or it is damaged"
    assert told("a.csv", queue="jobs") == "there is no queue 'jobs'"
