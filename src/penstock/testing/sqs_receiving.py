"""The SQS suite's chapter on receiving and settling: filters, visibility, long polls, receipt handles, dead letters."""

from __future__ import annotations

import json
import socket
from threading import Thread
from typing import Any
from urllib.parse import urlsplit

import pytest

from penstock import Broker
from penstock.broker import LocalBroker
from penstock.server import BackgroundServer
from penstock.server.dialects.sqs import in_flight
from penstock.testing.clock import START, FakeClock
from penstock.testing.serving import until
from penstock.testing.sqs_client import ACCOUNT
from penstock.testing.sqs_sending import INVALID, SqsClient, SqsMessageFixtures, text

GONE = "Message does not exist or is not available for visibility timeout change."


def bodies(received: dict[str, Any]) -> list[str]:
    return [message["Body"] for message in received.get("Messages", [])]


def receive(sqs: SqsClient, queue: str = "orders", **members: Any) -> dict[str, Any]:
    """The one message that is there."""
    (message,) = sqs("ReceiveMessage", queue, **members)["Messages"]
    return dict(message)


class SqsReceiving(SqsMessageFixtures):
    def test_nothing_is_an_answer_without_messages(self, sqs: SqsClient) -> None:
        assert sqs("ReceiveMessage", "orders") == {}

    def test_one_message_comes_unless_more_are_asked_for(self, sqs: SqsClient) -> None:
        for number in range(13):
            sqs("SendMessage", "orders", MessageBody=str(number))
        assert len(bodies(sqs("ReceiveMessage", "orders"))) == 1
        assert len(bodies(sqs("ReceiveMessage", "orders", MaxNumberOfMessages=10))) == 10
        assert len(bodies(sqs("ReceiveMessage", "orders", MaxNumberOfMessages=10))) == 2

    @pytest.mark.parametrize(
        ("name", "value", "reason"),
        [
            ("MaxNumberOfMessages", 0, "Must be between 1 and 10, if provided."),
            ("MaxNumberOfMessages", 11, "Must be between 1 and 10, if provided."),
            ("WaitTimeSeconds", -1, "Must be >= 0 and <= 20, if provided."),
            ("WaitTimeSeconds", 21, "Must be >= 0 and <= 20, if provided."),
            ("VisibilityTimeout", -1, "Must be >= 0 and <= 43200, if provided."),
            ("VisibilityTimeout", 43201, "Must be >= 0 and <= 43200, if provided."),
        ],
    )
    def test_a_parameter_beyond_its_range_is_refused(self, sqs: SqsClient, name: str, value: int, reason: str) -> None:
        expected = (INVALID, f"Value {value} for parameter {name} is invalid. Reason: {reason}")
        assert sqs.refusal("ReceiveMessage", "orders", **{name: value}) == expected

    # what a message says about itself

    @pytest.mark.parametrize(
        ("names", "expected"),
        [
            ([], []),
            (["All"], ["Help.Me", "Hello", "General"]),
            ([".*"], ["Help.Me", "Hello", "General"]),
            (["*"], ["Help.Me", "Hello", "General"]),
            (["Foo", "Help"], []),
            (["Hello", "General"], ["Hello", "General"]),
            (["Foo", "Hello"], ["Hello"]),
            (["Hel.*"], ["Hello", "Help.Me"]),
            (["Help.*", "General"], ["Help.Me", "General"]),
            (["AWS."], []),
            (["..foo"], []),
            (["AWS.sqs"], []),
        ],
        ids=str,
    )
    def test_a_receiver_gets_the_attributes_that_it_asks_for_and_their_digest(
        self, sqs: SqsClient, names: list[str], expected: list[str]
    ) -> None:
        given = {"Help.Me": text("Me"), "Hello": text("There"), "General": text("7", "Number")}
        sqs("SendMessage", "orders", MessageBody="msg", MessageAttributes=given)
        message = receive(sqs, MessageAttributeNames=names)
        assert message.get("MessageAttributes", {}) == {name: given[name] for name in expected}
        again = sqs("SendMessage", "orders", MessageBody="x", MessageAttributes={name: given[name] for name in expected})
        assert message.get("MD5OfMessageAttributes") == again.get("MD5OfMessageAttributes")

    @pytest.mark.parametrize("parameter", ["AttributeNames", "MessageSystemAttributeNames"])
    def test_system_attributes_come_under_both_names_of_the_parameter(
        self, sqs: SqsClient, clock: FakeClock, parameter: str
    ) -> None:
        sqs("SendMessage", "orders", MessageBody="msg")
        clock.advance(2)
        receive(sqs, VisibilityTimeout=1)
        clock.advance(3)
        every: dict[str, Any] = {parameter: ["All"]}
        some: dict[str, Any] = {parameter: ["SenderId", "SequenceNumber"]}
        none: dict[str, Any] = {parameter: ["SequenceNumber"]}
        sent, first = START // 1000, START // 1000 + 2000
        assert receive(sqs, **every)["Attributes"] == {
            "SenderId": ACCOUNT,
            "SentTimestamp": str(sent),
            "ApproximateReceiveCount": "2",
            "ApproximateFirstReceiveTimestamp": str(first),
        }
        clock.advance(30)
        assert receive(sqs, **some)["Attributes"] == {"SenderId": ACCOUNT}
        clock.advance(30)
        assert "Attributes" not in receive(sqs, **none)

    def test_given_both_parameters_aws_looks_at_one(self, sqs: SqsClient) -> None:
        sqs("SendMessage", "orders", MessageBody="msg")
        message = receive(sqs, AttributeNames=["SenderId"], MessageSystemAttributeNames=["All"])
        assert len(message["Attributes"]) == (4 if sqs.protocol == "json" else 1)

    def test_the_sender_of_another_account_is_told(self, server: BackgroundServer, sqs: SqsClient) -> None:
        other = SqsClient(server.url, sqs.protocol, key="123456789012")
        other("SendMessage", "orders", MessageBody="x")
        assert receive(sqs, AttributeNames=["SenderId"])["Attributes"] == {"SenderId": "123456789012"}

    # visibility

    def test_a_received_message_is_hidden_for_as_long_as_the_queue_says(self, sqs: SqsClient, clock: FakeClock) -> None:
        sqs("SetQueueAttributes", "orders", Attributes={"VisibilityTimeout": "5"})
        sqs("SendMessage", "orders", MessageBody="x")
        first = receive(sqs)
        clock.advance(4.999)
        assert sqs("ReceiveMessage", "orders") == {}
        clock.advance(0.001)
        again = receive(sqs)
        assert again["MessageId"] == first["MessageId"]
        assert again["ReceiptHandle"] != first["ReceiptHandle"]

    def test_a_receiver_may_hide_it_for_another_time_or_for_none(self, sqs: SqsClient, clock: FakeClock) -> None:
        sqs("SendMessage", "orders", MessageBody="x")
        receive(sqs, VisibilityTimeout=0)
        receive(sqs, VisibilityTimeout=43200)
        clock.advance(43199)
        assert sqs("ReceiveMessage", "orders") == {}
        clock.advance(1)
        receive(sqs)

    def test_the_counters_are_exact_after_each_call(self, sqs: SqsClient, clock: FakeClock) -> None:
        def counters() -> list[int]:
            names = ["ApproximateNumberOfMessages" + more for more in ("", "NotVisible", "Delayed")]
            found = sqs("GetQueueAttributes", "orders", AttributeNames=names)["Attributes"]
            return [int(found[name]) for name in names]

        entries = [{"Id": str(number), "MessageBody": "x", "DelaySeconds": 2 * (number % 2)} for number in range(4)]
        sqs("SendMessageBatch", "orders", Entries=entries)
        assert counters() == [2, 0, 2]
        message = receive(sqs)
        assert counters() == [1, 1, 2]
        clock.advance(2)
        assert counters() == [3, 1, 0]
        sqs("DeleteMessage", "orders", ReceiptHandle=message["ReceiptHandle"])
        assert counters() == [3, 0, 0]
        message = receive(sqs)
        sqs("ChangeMessageVisibility", "orders", ReceiptHandle=message["ReceiptHandle"], VisibilityTimeout=0)
        assert counters() == [3, 0, 0]

    # long polls

    def begin(self, server: BackgroundServer, protocol: str, **members: Any) -> tuple[Thread, list[dict[str, Any]]]:
        found: list[dict[str, Any]] = []

        def wait() -> None:
            found.append(SqsClient(server.url, protocol)("ReceiveMessage", "orders", **members))

        poller = Thread(target=wait)
        poller.start()
        return poller, found

    def poll(self, server: BackgroundServer, protocol: str, **members: Any) -> tuple[Thread, list[dict[str, Any]]]:
        poller, found = self.begin(server, protocol, **members)
        until(lambda: server.app.polls.resting == 1)
        return poller, found

    @pytest.mark.parametrize("asked", [{"WaitTimeSeconds": 20}, {}], ids=["asked", "as the queue says"])
    def test_a_long_poll_is_woken_by_a_message(self, server: BackgroundServer, sqs: SqsClient, asked: dict[str, int]) -> None:
        sqs("SetQueueAttributes", "orders", Attributes={"ReceiveMessageWaitTimeSeconds": "20"})
        poller, found = self.poll(server, sqs.protocol, **asked)
        sqs("SendMessage", "orders", MessageBody="x")
        poller.join()
        assert bodies(found[0]) == ["x"]

    def test_a_receiver_may_ask_not_to_wait(self, server: BackgroundServer, sqs: SqsClient) -> None:
        sqs("SetQueueAttributes", "orders", Attributes={"ReceiveMessageWaitTimeSeconds": "20"})
        poller, found = self.begin(server, sqs.protocol, WaitTimeSeconds=0)
        until(lambda: bool(found) or server.app.polls.resting == 1)
        assert found == [{}]
        poller.join()

    @pytest.mark.parametrize("hidden_by", ["delay", "visibility", "change"])
    def test_a_long_poll_is_woken_when_a_message_becomes_visible(
        self, server: BackgroundServer, sqs: SqsClient, clock: FakeClock, hidden_by: str
    ) -> None:
        sqs("SendMessage", "orders", MessageBody="x", DelaySeconds=1 if hidden_by == "delay" else 0)
        held = None if hidden_by == "delay" else receive(sqs, VisibilityTimeout=1 if hidden_by == "visibility" else 600)
        poller, found = self.poll(server, sqs.protocol, WaitTimeSeconds=20)
        if held is not None and hidden_by == "change":
            sqs("ChangeMessageVisibility", "orders", ReceiptHandle=held["ReceiptHandle"], VisibilityTimeout=0)
        clock.advance(1)
        poller.join()
        assert bodies(found[0]) == ["x"]

    def test_a_long_poll_ends_by_itself(self, sqs: SqsClient) -> None:
        assert sqs("ReceiveMessage", "orders", WaitTimeSeconds=1) == {}

    def test_a_client_that_leaves_its_long_poll_costs_no_message(
        self, server: BackgroundServer, sqs: SqsClient, broker: Broker
    ) -> None:
        parts = urlsplit(server.url)
        with socket.create_connection((parts.hostname or "", parts.port or 0)) as client:
            body = json.dumps({"QueueUrl": "orders", "WaitTimeSeconds": 20}).encode()
            head = (
                f"POST / HTTP/1.1\r\nHost: localhost\r\nX-Amz-Target: AmazonSQS.ReceiveMessage\r\nContent-Length: {len(body)}"
            )
            client.sendall(f"{head}\r\nContent-Type: application/x-amz-json-1.0\r\n\r\n".encode() + body)
            until(lambda: server.app.polls.resting == 1)
        until(lambda: server.app.polls.resting == 0)
        sqs("SendMessage", "orders", MessageBody="x")
        assert receive(sqs, AttributeNames=["ApproximateReceiveCount"])["Attributes"] == {"ApproximateReceiveCount": "1"}

    # the limit of messages in flight

    def test_a_standard_queue_has_a_limit_of_messages_in_flight(
        self, broker: LocalBroker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(in_flight, "MOST", 3)
        with BackgroundServer(broker, self.server_settings) as server:
            sqs = SqsClient(server.url, "json")
            sqs("CreateQueue", QueueName="orders")
            for number in range(5):
                sqs("SendMessage", "orders", MessageBody=str(number))
            held = sqs("ReceiveMessage", "orders", MaxNumberOfMessages=3)["Messages"]
            assert sqs.refusal("ReceiveMessage", "orders")[0] == "OverLimit"
            sqs("DeleteMessage", "orders", ReceiptHandle=held[0]["ReceiptHandle"])
            receive(sqs)
            assert sqs.refusal("ReceiveMessage", "orders")[0] == "OverLimit"


class SqsSettling(SqsMessageFixtures):
    def test_a_deleted_message_is_gone_and_may_be_deleted_again(self, sqs: SqsClient, broker: Broker) -> None:
        sqs("SendMessage", "orders", MessageBody="x")
        handle = receive(sqs)["ReceiptHandle"]
        for _ in range(3):
            assert sqs("DeleteMessage", "orders", ReceiptHandle=handle) == {}
        assert broker["orders"].stats().messages == 0

    def test_a_handle_deletes_after_its_time_if_nobody_received_the_message_since(
        self, sqs: SqsClient, broker: Broker, clock: FakeClock
    ) -> None:
        sqs("SendMessage", "orders", MessageBody="x")
        handle = receive(sqs, VisibilityTimeout=1)["ReceiptHandle"]
        clock.advance(2)
        sqs("DeleteMessage", "orders", ReceiptHandle=handle)
        assert broker["orders"].stats().messages == 0

    def test_a_handle_from_before_the_last_receive_deletes_nothing_and_is_told_of_success(
        self, sqs: SqsClient, broker: Broker
    ) -> None:
        sqs("SendMessage", "orders", MessageBody="x")
        old = receive(sqs, VisibilityTimeout=0)["ReceiptHandle"]
        new = receive(sqs)["ReceiptHandle"]
        assert sqs("DeleteMessage", "orders", ReceiptHandle=old) == {}
        assert broker["orders"].stats().messages == 1
        entries = [{"Id": "old", "ReceiptHandle": old}, {"Id": "new", "ReceiptHandle": new}]
        assert sqs("DeleteMessageBatch", "orders", Entries=entries) == {"Successful": [{"Id": "old"}, {"Id": "new"}]}
        assert broker["orders"].stats().messages == 0

    @pytest.mark.parametrize("operation", ["DeleteMessage", "ChangeMessageVisibility"])
    def test_a_text_that_is_no_handle_of_this_queue_is_refused(self, sqs: SqsClient, operation: str) -> None:
        sqs("CreateQueue", QueueName="others")
        sqs("SendMessage", "others", MessageBody="x")
        good = receive(sqs, "others")["ReceiptHandle"]
        more = {"VisibilityTimeout": 5} if operation.startswith("Change") else {}
        changed = good[:-5] + ("A" if good[-5] != "A" else "B") + good[-4:]
        for handle in ("garbage", "x" * 2000, "é", good, good[:20], changed):
            expected = ("ReceiptHandleIsInvalid", f'The input receipt handle "{handle}" is not a valid receipt handle.')
            assert sqs.refusal(operation, "orders", ReceiptHandle=handle, **more) == expected
        assert sqs.refusal(operation, "others", ReceiptHandle=changed, **more)[0] == "ReceiptHandleIsInvalid"
        assert sqs(operation, "others", ReceiptHandle=good, **more) == {}

    def test_a_handle_is_good_after_a_restart_of_the_server(self, broker: LocalBroker, protocol: str) -> None:
        with BackgroundServer(broker, self.server_settings) as server:
            sqs = SqsClient(server.url, protocol)
            sqs("CreateQueue", QueueName="orders")
            sqs("SendMessage", "orders", MessageBody="x")
            handle = receive(sqs)["ReceiptHandle"]
        with BackgroundServer(broker, self.server_settings) as server:
            SqsClient(server.url, protocol)("DeleteMessage", "orders", ReceiptHandle=handle)
        assert broker["orders"].stats().messages == 0

    # changes of visibility

    def test_the_visibility_of_a_message_can_be_changed_again_and_again(self, sqs: SqsClient, clock: FakeClock) -> None:
        sqs("SendMessage", "orders", MessageBody="x")
        handle = receive(sqs, VisibilityTimeout=2)["ReceiptHandle"]
        for _ in range(4):
            clock.advance(1)
            sqs("ChangeMessageVisibility", "orders", ReceiptHandle=handle, VisibilityTimeout=2)
            assert sqs("ReceiveMessage", "orders") == {}
        clock.advance(2)
        assert receive(sqs)["Body"] == "x"

    def test_an_old_handle_changes_the_visibility_as_at_aws(self, sqs: SqsClient) -> None:
        sqs("SendMessage", "orders", MessageBody="x")
        old = receive(sqs, VisibilityTimeout=0)["ReceiptHandle"]
        receive(sqs, VisibilityTimeout=600)
        sqs("ChangeMessageVisibility", "orders", ReceiptHandle=old, VisibilityTimeout=0)
        receive(sqs)

    def test_the_visibility_of_a_message_that_is_gone_cannot_be_changed(self, sqs: SqsClient) -> None:
        sqs("SendMessage", "orders", MessageBody="x")
        handle = receive(sqs)["ReceiptHandle"]
        sqs("DeleteMessage", "orders", ReceiptHandle=handle)
        expected = (INVALID, f"Value {handle} for parameter ReceiptHandle is invalid. Reason: {GONE}")
        assert sqs.refusal("ChangeMessageVisibility", "orders", ReceiptHandle=handle, VisibilityTimeout=42) == expected

    def test_a_message_that_is_visible_again_is_hidden_again_by_its_last_receiver(
        self, sqs: SqsClient, clock: FakeClock
    ) -> None:
        sqs("SendMessage", "orders", MessageBody="x")
        handle = receive(sqs, VisibilityTimeout=1)["ReceiptHandle"]
        clock.advance(1)
        assert sqs("ChangeMessageVisibility", "orders", ReceiptHandle=handle, VisibilityTimeout=5) == {}
        assert sqs("ReceiveMessage", "orders") == {}
        sqs("ChangeMessageVisibility", "orders", ReceiptHandle=handle, VisibilityTimeout=0)
        entry = {"Id": "a", "ReceiptHandle": handle, "VisibilityTimeout": 5}
        assert sqs("ChangeMessageVisibilityBatch", "orders", Entries=[entry]) == {"Successful": [{"Id": "a"}]}
        assert sqs("ReceiveMessage", "orders") == {}

    def test_an_old_handle_of_a_message_that_is_visible_changes_nothing(self, sqs: SqsClient) -> None:
        sqs("SendMessage", "orders", MessageBody="x")
        old = receive(sqs, VisibilityTimeout=0)["ReceiptHandle"]
        receive(sqs, VisibilityTimeout=0)
        assert sqs("ChangeMessageVisibility", "orders", ReceiptHandle=old, VisibilityTimeout=600) == {}
        receive(sqs)

    @pytest.mark.parametrize("seconds", [-1, 43201])
    def test_a_visibility_beyond_its_range_is_refused(self, sqs: SqsClient, seconds: int) -> None:
        sqs("SendMessage", "orders", MessageBody="x")
        handle = receive(sqs)["ReceiptHandle"]
        code, told = sqs.refusal("ChangeMessageVisibility", "orders", ReceiptHandle=handle, VisibilityTimeout=seconds)
        assert code == INVALID
        assert told.startswith(f"Value {seconds} for parameter VisibilityTimeout is invalid. Reason: ")

    def test_twelve_hours_since_the_receive_are_the_limit(self, sqs: SqsClient, clock: FakeClock) -> None:
        sqs("SendMessage", "orders", MessageBody="x")
        handle = receive(sqs)["ReceiptHandle"]
        sqs("ChangeMessageVisibility", "orders", ReceiptHandle=handle, VisibilityTimeout=43200)
        clock.advance(3600)
        sqs("ChangeMessageVisibility", "orders", ReceiptHandle=handle, VisibilityTimeout=39600)
        reason = "Total VisibilityTimeout for the message is beyond the limit [43200 seconds]"
        expected = (INVALID, f"Value 39601 for parameter VisibilityTimeout is invalid. Reason: {reason}")
        assert sqs.refusal("ChangeMessageVisibility", "orders", ReceiptHandle=handle, VisibilityTimeout=39601) == expected

    def test_a_batch_of_changes_fails_by_the_entry(self, sqs: SqsClient, clock: FakeClock) -> None:
        for number in range(3):
            sqs("SendMessage", "orders", MessageBody=str(number))
        found = sqs("ReceiveMessage", "orders", MaxNumberOfMessages=3)["Messages"]
        handles = {message["Body"]: message["ReceiptHandle"] for message in found}
        entries = [
            {"Id": "now", "ReceiptHandle": handles["0"], "VisibilityTimeout": 0},
            {"Id": "later", "ReceiptHandle": handles["1"], "VisibilityTimeout": 60},
            {"Id": "never", "ReceiptHandle": handles["2"], "VisibilityTimeout": 43201},
            {"Id": "bad", "ReceiptHandle": "x", "VisibilityTimeout": 1},
        ]
        done = sqs("ChangeMessageVisibilityBatch", "orders", Entries=entries)
        assert done["Successful"] == [{"Id": "now"}, {"Id": "later"}]
        assert [(one["Id"], one["Code"]) for one in done["Failed"]] == [("never", INVALID), ("bad", "ReceiptHandleIsInvalid")]
        assert bodies(sqs("ReceiveMessage", "orders", MaxNumberOfMessages=3, VisibilityTimeout=600)) == ["0"]
        clock.advance(30)
        assert bodies(sqs("ReceiveMessage", "orders", MaxNumberOfMessages=3)) == ["2"]

    # dead letters

    def test_a_dead_letter_is_the_same_message_and_its_receives_go_on(self, sqs: SqsClient, clock: FakeClock) -> None:
        sqs("CreateQueue", QueueName="dead")
        policy = json.dumps({"deadLetterTargetArn": f"arn:aws:sqs:us-east-1:{ACCOUNT}:dead", "maxReceiveCount": 2})
        sqs("SetQueueAttributes", "orders", Attributes={"RedrivePolicy": policy})
        attributes = {"a": text("v", "String.custom"), "n": text("1.0", "Number")}
        trace = {"AWSTraceHeader": text("Root=1")}
        sent = sqs("SendMessage", "orders", MessageBody="x", MessageAttributes=attributes, MessageSystemAttributes=trace)
        everything: dict[str, Any] = {"AttributeNames": ["All"], "MessageAttributeNames": ["All"], "VisibilityTimeout": 0}
        before = receive(sqs, **everything)
        receive(sqs, VisibilityTimeout=0)
        clock.advance(10)
        assert sqs("ReceiveMessage", "orders") == {}
        dead = receive(sqs, "dead", **everything)
        assert dead["MessageId"] == before["MessageId"] == sent["MessageId"]
        assert (dead["Body"], dead["MessageAttributes"]) == ("x", attributes)
        assert dead["MD5OfMessageAttributes"] == sent["MD5OfMessageAttributes"]
        source = {"DeadLetterQueueSourceArn": f"arn:aws:sqs:us-east-1:{ACCOUNT}:orders"}
        assert dead["Attributes"] == {**before["Attributes"], "ApproximateReceiveCount": "3", **source}
        again = receive(sqs, "dead", AttributeNames=["ApproximateReceiveCount"])
        assert again["Attributes"] == {"ApproximateReceiveCount": "4"}
