"""Messages that cross dialects: what one sends, every other receives, and the table in docs/sqs.md says how."""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import Draft
from penstock.broker import LocalBroker
from penstock.cli import main
from penstock.server import BackgroundServer
from penstock.server.dialects.sqs.message_attributes import REMEMBERED
from penstock.testing.http import Http
from penstock.testing.sqs_receiving import receive
from penstock.testing.sqs_sending import SqsClient, SqsMessageFixtures, blob, text

EVERYTHING: dict[str, Any] = {"MessageAttributeNames": ["All"], "AttributeNames": ["All"]}
BINARY = bytes(range(256))


@pytest.mark.parametrize("store", ["memory", "sqlite"])
class TestCrossing(SqsMessageFixtures):
    @pytest.fixture
    def url(self, store: str, tmp_path: Path) -> str:
        return "memory:" if store == "memory" else f"sqlite:///{tmp_path}/queue.db"

    # from SQS

    def test_from_sqs_to_the_library(self, sqs: SqsClient, broker: LocalBroker) -> None:
        given = {"a": text("ü"), "n": text("007", "Number"), "b": blob(b"\0"), "u": text("x", "String.url")}
        sent = sqs("SendMessage", "orders", MessageBody="Grüße", MessageAttributes=given, MessageGroupId="g")
        (message,) = broker["orders"].receive()
        assert (message.id, message.text, message.group) == (sent["MessageId"], "Grüße", "g")
        assert message.content_type == "text/plain; charset=utf-8"
        remembered = message.attributes.pop(REMEMBERED)  # type: ignore[attr-defined]
        assert message.attributes == {"a": "ü", "n": "007", "b": b"\0", "u": "x"}
        assert json.loads(str(remembered)) == {"types": {"n": "Number", "u": "String.url"}}

    def test_a_plain_message_of_sqs_carries_nothing_else(self, sqs: SqsClient, broker: LocalBroker) -> None:
        sqs("SendMessage", "orders", MessageBody="x", MessageAttributes={"a": text("v"), "b": blob(b"w")})
        (message,) = broker["orders"].receive()
        assert message.attributes == {"a": "v", "b": b"w"}

    def test_from_sqs_to_mqs(self, sqs: SqsClient, http: Http) -> None:
        sent = sqs("SendMessage", "orders", MessageBody="Grüße")
        answer = http("GET", "/messages/orders")
        assert (answer.status, answer.body.decode()) == (200, "Grüße")
        assert answer.headers["content-type"] == "text/plain; charset=utf-8"
        assert answer.headers["x-mqs-message-id"] == sent["MessageId"]
        assert http("DELETE", f"/messages/{sent['MessageId']}").status == 204
        assert sqs("ReceiveMessage", "orders") == {}

    def test_from_sqs_to_mq_core(self, sqs: SqsClient, http: Http) -> None:
        sqs("SendMessage", "orders", MessageBody="Grüße")
        answer = http("GET", "/orders/messages")
        assert answer.status == 200
        assert "Grüße".encode() in answer.body or "Grüße" in json.dumps(answer.json, ensure_ascii=False)

    def test_from_sqs_to_a_spark_reader(self, sqs: SqsClient, server: BackgroundServer) -> None:
        browse = pytest.importorskip("penstock.spark.browse")
        from penstock import arrow
        from penstock.spark import columns
        from penstock.spark.options import ReadOptions

        sqs("SendMessage", "orders", MessageBody="Grüße", MessageAttributes={"n": text("7", "Number")})
        chosen = ReadOptions.parse({"url": server.url, "queue": "orders"})
        names = ["body", "content_type", "attributes"]
        reader = browse.FilteringBrowse(chosen, columns.chosen(columns.from_arrow_schema(arrow.schema_of(names))))
        (row,) = [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]
        assert (row["body"], row["content_type"]) == ("Grüße".encode(), "text/plain; charset=utf-8")
        assert "7" in str(row["attributes"])

    def test_the_command_line_shows_a_queue_of_sqs(
        self, sqs: SqsClient, server: BackgroundServer, capsys: pytest.CaptureFixture[str]
    ) -> None:
        sqs("SendMessage", "orders", MessageBody="Grüße", MessageAttributes={"n": text("7", "Number")})
        assert main(["peek", "orders", "--store", server.url]) == 0
        shown = capsys.readouterr().out
        assert "Grüße" in shown
        assert main(["peek", "orders", "--store", server.url, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["attributes"]["n"] == "7"

    # to SQS

    def test_from_the_library_to_sqs(self, sqs: SqsClient, broker: LocalBroker) -> None:
        given = {"text": "ü", "whole": 7, "part": 1.5, "bytes": b"\0"}
        sent = broker["orders"].send("Grüße".encode(), attributes=given)
        message = receive(sqs, **EVERYTHING)
        assert (message["MessageId"], message["Body"]) == (sent.id, "Grüße")
        assert message["MD5OfBody"] == hashlib.md5("Grüße".encode(), usedforsecurity=False).hexdigest()
        assert message["MessageAttributes"] == {
            "text": text("ü"),
            "whole": text("7", "Number"),
            "part": text("1.5", "Number"),
            "bytes": blob(b"\0"),
        }
        sqs("DeleteMessage", "orders", ReceiptHandle=message["ReceiptHandle"])
        assert broker["orders"].stats().messages == 0

    def test_from_mqs_to_sqs(self, sqs: SqsClient, http: Http) -> None:
        id = http("POST", "/messages/orders", b'{"a": 1}', Content_Type="application/json").headers["x-mqs-message-id"]
        message = receive(sqs, **EVERYTHING)
        assert (message["MessageId"], message["Body"]) == (id, '{"a": 1}')
        assert message["MessageAttributes"] == {"Content-Type": text("application/json")}

    @pytest.mark.parametrize("body", [BINARY, b"\xff", b"a\0b", "\ufffe".encode(), b"\xed\xa0\x80"], ids=repr)
    def test_a_body_that_is_no_text_of_sqs_comes_in_base64_and_says_so(
        self, sqs: SqsClient, broker: LocalBroker, body: bytes
    ) -> None:
        broker["orders"].send(body, content_type="image/png")
        message = receive(sqs, **EVERYTHING)
        assert base64.b64decode(message["Body"]) == body
        assert message["MD5OfBody"] == hashlib.md5(message["Body"].encode(), usedforsecurity=False).hexdigest()
        told = {"Content-Type": text("image/png"), "Content-Transfer-Encoding": text("base64")}
        assert message["MessageAttributes"] == told

    def test_an_empty_body_of_another_dialect_is_empty(self, sqs: SqsClient, broker: LocalBroker) -> None:
        broker["orders"].send(b"")
        assert receive(sqs)["Body"] == ""

    def test_what_sqs_cannot_write_in_an_attribute_is_replaced(self, sqs: SqsClient, broker: LocalBroker) -> None:
        broker["orders"].send(b"x", attributes={"a": "x\0y"})
        assert receive(sqs, **EVERYTHING)["MessageAttributes"] == {"a": text("x\ufffdy")}

    @pytest.mark.parametrize("kept", ["", "{", "[]", "7", '{"types": 7}', '{"types": {"a": 7, "n": "Binary"}, "sender": 9}'])
    def test_anything_may_be_where_sqs_keeps_what_it_knows(self, sqs: SqsClient, broker: LocalBroker, kept: str) -> None:
        broker["orders"].send(b"x", attributes={"a": "v", "n": "w", REMEMBERED: kept})
        message = receive(sqs, **EVERYTHING)
        assert message["MessageAttributes"] == {"a": text("v"), "n": text("w")}
        assert message["Attributes"]["SenderId"] == "000000000000"

    def test_a_fifo_queue_of_the_library_is_one_of_sqs(self, sqs: SqsClient, broker: LocalBroker) -> None:
        queue = broker.create("shop.fifo", groups=True, deduplicate=300)
        queue.send_many([Draft(b"1", key="k", group="g"), Draft(b"2", key=b"\xff", group="g")])
        message = receive(sqs, "shop.fifo", **EVERYTHING)
        assert (message["Attributes"]["MessageGroupId"], message["Attributes"]["MessageDeduplicationId"]) == ("g", "k")
        sent = sqs("SendMessage", "shop.fifo", MessageBody="3", MessageGroupId="g", MessageDeduplicationId="k")
        assert sent["MessageId"] == message["MessageId"]

    def test_a_receiver_of_the_library_holds_a_message_against_sqs(
        self, sqs: SqsClient, server: BackgroundServer, broker: LocalBroker
    ) -> None:
        sqs("SendMessage", "orders", MessageBody="x")
        with penstock.open(server.url) as remote:
            (held,) = remote["orders"].receive()
            assert sqs("ReceiveMessage", "orders") == {}
            held.release()
        assert receive(sqs)["Body"] == "x"
