"""The SQS suite's chapter on FIFO queues: order, the group's lock, deduplication, attempts, and what a handle is good for."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from typing import Any

import pytest

from penstock import Broker
from penstock.broker import LocalBroker
from penstock.server import BackgroundServer
from penstock.server.dialects.sqs import in_flight
from penstock.testing.clock import FakeClock
from penstock.testing.sqs_client import ACCOUNT
from penstock.testing.sqs_receiving import GONE, bodies
from penstock.testing.sqs_sending import ID_RULE, INVALID, SqsClient, SqsMessageFixtures, text

QUEUE = "orders.fifo"
NO_GROUP = "The request must contain the parameter MessageGroupId."
NO_ID = "The queue should either have ContentBasedDeduplication enabled or MessageDeduplicationId provided explicitly"
EXPIRED = "The receipt handle has expired."
NOT_IN_FLIGHT = ("AWS.SimpleQueueService.MessageNotInflight", "The specified message isn't in flight.")
BY_GROUP = {"DeduplicationScope": "messageGroup", "FifoThroughputLimit": "perMessageGroupId"}


class Fifo:
    """A FIFO queue, as a client uses it."""

    def __init__(self, sqs: SqsClient, queue: str = QUEUE, **attributes: str) -> None:
        self.sqs, self.queue = sqs, queue
        given = {"FifoQueue": "true", "ContentBasedDeduplication": "true", **attributes}
        sqs("CreateQueue", QueueName=queue, Attributes=given)

    def __call__(self, operation: str, **members: Any) -> dict[str, Any]:
        return self.sqs(operation, self.queue, **members)

    def send(self, body: str, group: str = "g", **members: Any) -> dict[str, Any]:
        return self("SendMessage", MessageBody=body, MessageGroupId=group, **members)

    def send_all(self, *bodies: str) -> None:
        """Each to the group that its first two letters name."""
        for body in bodies:
            self.send(body, body[:2])

    def receive(self, limit: int = 10, **members: Any) -> list[dict[str, Any]]:
        return list(self("ReceiveMessage", MaxNumberOfMessages=limit, **members).get("Messages", []))

    def bodies(self, limit: int = 10, **members: Any) -> list[str]:
        return [message["Body"] for message in self.receive(limit, **members)]

    def delete(self, message: dict[str, Any]) -> None:
        self("DeleteMessage", ReceiptHandle=message["ReceiptHandle"])

    def hide(self, message: dict[str, Any], seconds: int) -> None:
        self("ChangeMessageVisibility", ReceiptHandle=message["ReceiptHandle"], VisibilityTimeout=seconds)

    def set(self, **attributes: str) -> None:
        self("SetQueueAttributes", Attributes=attributes)


class SqsFifoFixtures(SqsMessageFixtures):
    @pytest.fixture
    def fifo(self, sqs: SqsClient) -> Iterator[Fifo]:
        yield Fifo(sqs)


class SqsFifoSending(SqsFifoFixtures):
    def test_what_a_message_says_about_itself(self, sqs: SqsClient) -> None:
        fifo = Fifo(sqs, VisibilityTimeout="0")
        sent = fifo.send("message-body-1", "group-1", MessageDeduplicationId="dedup-1")
        assert sent.keys() == {"MessageId", "MD5OfMessageBody", "SequenceNumber"}
        assert sent["SequenceNumber"].isdecimal() and len(sent["SequenceNumber"]) == 20
        for count in ("1", "2"):
            (message,) = fifo.receive(AttributeNames=["All"])
            attributes = message["Attributes"]
            assert message["MessageId"] == sent["MessageId"]
            assert attributes.keys() == {
                "ApproximateFirstReceiveTimestamp",
                "ApproximateReceiveCount",
                "MessageDeduplicationId",
                "MessageGroupId",
                "SenderId",
                "SentTimestamp",
                "SequenceNumber",
            }
            assert attributes["SequenceNumber"] == sent["SequenceNumber"]
            assert (attributes["MessageGroupId"], attributes["MessageDeduplicationId"]) == ("group-1", "dedup-1")
            assert attributes["ApproximateReceiveCount"] == count

    def test_sequence_numbers_rise(self, fifo: Fifo) -> None:
        numbers = [fifo.send(str(number), f"g{number % 2}")["SequenceNumber"] for number in range(5)]
        entries = [{"Id": str(number), "MessageBody": f"b{number}", "MessageGroupId": "g"} for number in range(5)]
        numbers += [one["SequenceNumber"] for one in fifo("SendMessageBatch", Entries=entries)["Successful"]]
        assert numbers == sorted(set(numbers))

    def test_a_message_needs_a_group_and_a_deduplication_id(self, fifo: Fifo) -> None:
        fifo.set(ContentBasedDeduplication="false")
        refusal = fifo.sqs.refusal
        assert refusal("SendMessage", QUEUE, MessageBody="x", MessageDeduplicationId="d") == ("MissingParameter", NO_GROUP)
        assert refusal("SendMessage", QUEUE, MessageBody="x", MessageGroupId="g") == (INVALID, NO_ID)
        good = {"Id": "1", "MessageBody": "x", "MessageGroupId": "g", "MessageDeduplicationId": "d"}
        for missing, told in (("MessageGroupId", NO_GROUP), ("MessageDeduplicationId", NO_ID)):
            bad = {name: value for name, value in good.items() if name != missing} | {"Id": "2"}
            assert refusal("SendMessageBatch", QUEUE, Entries=[good, bad]) == (INVALID, told)
        assert fifo.receive() == []

    @pytest.mark.parametrize("name", ["MessageGroupId", "MessageDeduplicationId"])
    @pytest.mark.parametrize("value", ["", "a" * 129, "group 123", "é", "a\tb"])
    def test_a_bad_id_is_refused(self, fifo: Fifo, name: str, value: str) -> None:
        given = {"MessageGroupId": "g", "MessageDeduplicationId": "d", name: value}
        expected = (INVALID, f"Value {value} for parameter {name} is invalid. Reason: {name} {ID_RULE}")
        assert fifo.sqs.refusal("SendMessage", QUEUE, MessageBody="x", **given) == expected

    def test_an_id_may_have_every_printable_character(self, fifo: Fifo) -> None:
        every = "".join(map(chr, range(33, 127)))
        fifo.send("x", every, MessageDeduplicationId=every)
        (message,) = fifo.receive(AttributeNames=["MessageGroupId", "MessageDeduplicationId"])
        assert set(message["Attributes"].values()) == {every}

    def test_a_message_has_no_delay_of_its_own(self, sqs: SqsClient, clock: FakeClock) -> None:
        fifo = Fifo(sqs, DelaySeconds="2")
        reason = "The request include parameter that is not valid for this queue type."
        expected = (INVALID, f"Value 2 for parameter DelaySeconds is invalid. Reason: {reason}")
        told = sqs.refusal("SendMessage", QUEUE, MessageBody="x", MessageGroupId="g", DelaySeconds=2)
        assert told == expected
        fifo.send("a", DelaySeconds=0)
        fifo.send("b")
        assert fifo.receive() == []
        clock.advance(2)
        assert fifo.bodies(1) == ["a"]

    # deduplication

    def test_an_equal_id_within_five_minutes_is_answered_as_the_first(self, fifo: Fifo, clock: FakeClock) -> None:
        first = fifo.send("one", MessageDeduplicationId="d")
        clock.advance(299)
        again = fifo.send("two", MessageDeduplicationId="d")
        assert (again["MessageId"], again["SequenceNumber"]) == (first["MessageId"], first["SequenceNumber"])
        assert again["MD5OfMessageBody"] != first["MD5OfMessageBody"]
        assert fifo.bodies() == ["one"]
        clock.advance(1)
        assert fifo.send("three", MessageDeduplicationId="d")["MessageId"] != first["MessageId"]

    @pytest.mark.parametrize("by", ["id", "content"])
    def test_an_equal_message_is_a_duplicate_in_any_group_and_after_the_first_was_deleted(self, fifo: Fifo, by: str) -> None:
        ids = {"MessageDeduplicationId": "d"} if by == "id" else {}
        fifo.send("x", "g1", **ids)
        (message,) = fifo.receive()
        fifo.delete(message)
        fifo.send("x", "g2", **ids)
        assert fifo.receive() == []

    def test_the_digest_of_the_body_is_the_id_of_a_message_without_one(self, fifo: Fifo) -> None:
        digest = hashlib.sha256(b"x").hexdigest()
        first = fifo.send("x")
        (message,) = fifo.receive(AttributeNames=["MessageDeduplicationId"])
        assert message["Attributes"] == {"MessageDeduplicationId": digest}
        assert fifo.send("y", MessageDeduplicationId=digest)["MessageId"] == first["MessageId"]
        assert fifo.send("x", MessageDeduplicationId="other")["MessageId"] != first["MessageId"]

    def test_in_one_batch_an_equal_id_is_a_duplicate(self, fifo: Fifo) -> None:
        entries = [
            {"Id": id, "MessageBody": id, "MessageGroupId": "g", "MessageDeduplicationId": "d"} for id in ("first", "second")
        ]
        one, two = fifo("SendMessageBatch", Entries=entries)["Successful"]
        assert (one["MessageId"], one["SequenceNumber"]) == (two["MessageId"], two["SequenceNumber"])
        assert fifo.bodies() == ["first"]

    def test_a_purged_queue_knows_no_id(self, fifo: Fifo) -> None:
        fifo.send("one", MessageDeduplicationId="d")
        fifo("PurgeQueue")
        fifo.send("two", MessageDeduplicationId="d")
        assert fifo.bodies() == ["two"]

    def test_in_the_scope_of_a_group_ids_of_other_groups_do_not_count(self, sqs: SqsClient) -> None:
        fifo = Fifo(sqs, **BY_GROUP)
        for group in ("g1", "g2", "g1"):
            fifo.send(f"in {group}", group, MessageDeduplicationId="d")
        found = fifo.receive(AttributeNames=["MessageDeduplicationId"])
        assert sorted(message["Body"] for message in found) == ["in g1", "in g2"]
        assert {message["Attributes"]["MessageDeduplicationId"] for message in found} == {"d"}

    def test_content_counts_in_the_scope_of_a_group_too(self, sqs: SqsClient) -> None:
        fifo = Fifo(sqs, DeduplicationScope="messageGroup")
        for group in ("g1", "g2", "g1"):
            fifo.send("x", group)
        assert fifo.bodies() == ["x", "x"]

    def test_a_new_scope_counts_once_the_ids_of_the_old_one_are_forgotten(self, fifo: Fifo, clock: FakeClock) -> None:
        """Recorded from AWS: right after the change, the old scope counts."""
        fifo.send("Test1", "group1", MessageDeduplicationId="same")
        fifo.delete(fifo.receive()[0])
        fifo.set(**BY_GROUP)
        fifo.send("Test3", "group3", MessageDeduplicationId="same")
        assert fifo.receive() == []
        fifo.send("Test4", "group4", MessageDeduplicationId="other")
        fifo.delete(fifo.receive()[0])
        fifo.send("Test5", "group5", MessageDeduplicationId="other")
        assert fifo.receive() == []
        clock.advance(300)
        for group in ("group6", "group7"):
            fifo.send(f"Test {group}", group, MessageDeduplicationId="other")
        assert sorted(fifo.bodies()) == ["Test group6", "Test group7"]

    def test_back_in_the_scope_of_the_queue_the_old_scope_counts_for_a_while(self, sqs: SqsClient) -> None:
        fifo = Fifo(sqs, **BY_GROUP)
        for number in (1, 2):
            fifo.send(f"Test{number}", f"group{number}", MessageDeduplicationId="same")
            fifo.delete(fifo.receive()[0])
        fifo.set(DeduplicationScope="queue", FifoThroughputLimit="perQueue")
        fifo.send("Test3", "group3", MessageDeduplicationId="same")
        assert fifo.bodies() == ["Test3"]


class SqsFifoReceiving(SqsFifoFixtures):
    # receiving in order

    def test_messages_of_a_group_come_one_after_another(self, fifo: Fifo) -> None:
        fifo.send_all(*(f"g1-{number}" for number in range(4)))
        for number in range(4):
            (message,) = fifo.receive(1)
            assert message["Body"] == f"g1-{number}"
            assert fifo.receive(1) == []
            fifo.delete(message)

    def test_one_receive_may_take_several_messages_of_a_group_in_order(self, fifo: Fifo, clock: FakeClock) -> None:
        fifo.send_all("g1-m1", "g1-m2", "g1-m3")
        assert fifo.bodies() == ["g1-m1", "g1-m2", "g1-m3"]
        clock.advance(30)
        assert fifo.bodies() == ["g1-m1", "g1-m2", "g1-m3"]

    def test_a_group_comes_whole_before_the_next(self, fifo: Fifo) -> None:
        fifo.send_all("g1-m1", "g2-m1", "g1-m2", "g1-m3")
        assert fifo.bodies() == ["g1-m1", "g1-m2", "g1-m3", "g2-m1"]

    def test_a_group_is_locked_while_one_of_its_messages_is_in_flight(self, fifo: Fifo, clock: FakeClock) -> None:
        fifo.send_all("g1-m1", "g1-m2", "g1-m3", "g1-m4", "g2-m1", "g3-m1")
        assert fifo.bodies(2) == ["g1-m1", "g1-m2"]
        assert fifo.bodies(1) == ["g2-m1"]
        clock.advance(30)
        found = fifo.bodies(10, VisibilityTimeout=0)
        assert [body for body in found if body.startswith("g1")] == ["g1-m1", "g1-m2", "g1-m3", "g1-m4"]
        assert sorted(found) == ["g1-m1", "g1-m2", "g1-m3", "g1-m4", "g2-m1", "g3-m1"]

    def test_what_is_hidden_for_no_time_comes_again_in_order(self, fifo: Fifo) -> None:
        fifo.send_all("g1-m1", "g2-m1", "g2-m2", "g3-m1", "g1-m2")
        assert fifo.bodies(3, VisibilityTimeout=0) == ["g1-m1", "g1-m2", "g2-m1"]
        again = fifo.bodies(10, VisibilityTimeout=0)
        assert sorted(again) == ["g1-m1", "g1-m2", "g2-m1", "g2-m2", "g3-m1"]
        for group in ("g1", "g2"):
            mine = [body for body in again if body.startswith(group)]
            assert mine == sorted(mine)

    @pytest.mark.parametrize("seconds", [0, 1])
    def test_a_message_made_visible_early_comes_alone(self, fifo: Fifo, clock: FakeClock, seconds: int) -> None:
        fifo.send_all("g1-m1", "g1-m2", "g2-m1")
        first, second = fifo.receive(2)
        assert (first["Body"], second["Body"]) == ("g1-m1", "g1-m2")
        fifo.hide(first, seconds)
        clock.advance(seconds)
        assert sorted(fifo.bodies(3)) == ["g1-m1", "g2-m1"]

    def test_once_all_received_are_deleted_the_rest_of_the_group_comes(self, fifo: Fifo) -> None:
        fifo.send_all("g1-m1", "g2-m1", "g1-m2", "g2-m2", "g1-m3", "g1-m4", "g3-m1")
        for message in fifo.receive(2):
            fifo.delete(message)
        found = fifo.bodies()
        assert sorted(found) == ["g1-m3", "g1-m4", "g2-m1", "g2-m2", "g3-m1"]
        assert found.index("g1-m3") < found.index("g1-m4") and found.index("g2-m1") < found.index("g2-m2")

    def test_after_a_partial_delete_the_group_stays_locked(self, fifo: Fifo) -> None:
        fifo.send_all("g1-m1", "g2-m1", "g1-m2", "g2-m2", "g1-m3", "g3-m1")
        first, _ = fifo.receive(2)
        fifo.delete(first)
        assert fifo.bodies() == ["g2-m1", "g2-m2", "g3-m1"]

    def test_a_batch_of_deletes_frees_the_group(self, fifo: Fifo) -> None:
        fifo.send_all("g1-m1", "g1-m2", "g1-m3")
        entries = [{"Id": message["Body"], "ReceiptHandle": message["ReceiptHandle"]} for message in fifo.receive(2)]
        entries.append({"Id": "again", "ReceiptHandle": entries[0]["ReceiptHandle"]})
        done = fifo("DeleteMessageBatch", Entries=entries)
        assert [one["Id"] for one in done["Successful"]] == ["g1-m1", "g1-m2", "again"]
        assert fifo.bodies() == ["g1-m3"]

    @pytest.mark.parametrize("hidden", [0, 1, 2, 3])
    def test_up_to_the_first_that_is_still_hidden_a_group_comes_again(
        self, sqs: SqsClient, clock: FakeClock, hidden: int
    ) -> None:
        """Recorded from AWS: the message at this place stays hidden while the visibility of the others has ended."""
        fifo = Fifo(sqs, VisibilityTimeout="2")
        fifo.send_all("g1-foo", "g1-bar", "g1-baz")
        found = fifo.receive()
        if hidden < 3:
            fifo.hide(found[hidden], 100)
        clock.advance(2)
        assert fifo.bodies() == ["g1-foo", "g1-bar", "g1-baz"][:hidden]

    def test_the_counters_of_groups(self, fifo: Fifo) -> None:
        def count(name: str) -> int:
            found = fifo("GetQueueAttributes", AttributeNames=[name])["Attributes"]
            return int(found[name])

        fifo.send_all("g1-m1", "g1-m2", "g1-m3", "g2-m1", "g3-m1")
        assert count("ApproximateNumberOfMessages") == 5
        found = fifo.receive(4)
        assert count("ApproximateNumberOfMessages") == 1
        assert count("ApproximateNumberOfMessagesNotVisible") == 4
        for message in found:
            fifo.delete(message)
        assert count("ApproximateNumberOfMessages") == 1
        assert count("ApproximateNumberOfMessagesNotVisible") == 0

    # handles

    def test_a_handle_deletes_nothing_once_its_time_is_over(self, fifo: Fifo, broker: Broker, clock: FakeClock) -> None:
        fifo.send("x")
        (message,) = fifo.receive(VisibilityTimeout=1)
        clock.advance(1)
        handle = message["ReceiptHandle"]
        expected = f"Value {handle} for parameter ReceiptHandle is invalid. Reason: {EXPIRED}"
        assert fifo.sqs.refusal("DeleteMessage", QUEUE, ReceiptHandle=handle) == (INVALID, expected)
        (failed,) = fifo("DeleteMessageBatch", Entries=[{"Id": "a", "ReceiptHandle": handle}])["Failed"]
        assert failed == {"Id": "a", "SenderFault": True, "Code": INVALID, "Message": expected}
        assert broker[QUEUE].stats().messages == 1

    def test_a_handle_from_before_the_last_receive_is_refused(self, fifo: Fifo) -> None:
        fifo.send("x")
        (old,) = fifo.receive(VisibilityTimeout=0)
        (new,) = fifo.receive()
        handle = old["ReceiptHandle"]
        assert fifo.sqs.refusal("DeleteMessage", QUEUE, ReceiptHandle=handle)[1].endswith(EXPIRED)
        assert fifo.sqs.refusal("ChangeMessageVisibility", QUEUE, ReceiptHandle=handle, VisibilityTimeout=1)[1].endswith(GONE)
        fifo.delete(new)

    def test_a_handle_whose_time_was_prolonged_deletes(self, fifo: Fifo, clock: FakeClock) -> None:
        fifo.send("x")
        (message,) = fifo.receive(VisibilityTimeout=2)
        fifo.hide(message, 10)
        clock.advance(5)
        fifo.delete(message)
        fifo.delete(message)  # again, and again of success
        clock.advance(60)
        assert fifo.receive() == []

    # attempts

    def test_an_attempt_that_is_repeated_gets_the_same_messages(self, fifo: Fifo, clock: FakeClock) -> None:
        fifo.send_all("g1-m1", "g2-m1", "g3-m1")
        first = fifo.receive(2, ReceiveRequestAttemptId="try", AttributeNames=["ApproximateReceiveCount"])
        clock.advance(20)
        again = fifo.receive(2, ReceiveRequestAttemptId="try", AttributeNames=["ApproximateReceiveCount"])
        assert again == first
        clock.advance(20)  # the time for which they are hidden began anew
        assert fifo.bodies() == ["g3-m1"]
        fifo.delete(again[0])
        fifo.delete(first[1])

    def test_an_attempt_gets_others_once_its_messages_have_changed(self, fifo: Fifo, clock: FakeClock) -> None:
        fifo.send_all("g1-m1", "g2-m1", "g3-m1", "g4-m1")
        first = fifo.receive(1, ReceiveRequestAttemptId="a")
        fifo.delete(first[0])
        second = fifo.receive(1, ReceiveRequestAttemptId="a")
        assert second[0]["Body"] == "g2-m1"
        fifo.hide(second[0], 1000)
        third = fifo.receive(1, ReceiveRequestAttemptId="a")
        assert third[0]["Body"] == "g3-m1"
        clock.advance(30)
        assert fifo.bodies(1, ReceiveRequestAttemptId="a") != []

    def test_an_attempt_is_forgotten_after_five_minutes(self, fifo: Fifo, clock: FakeClock) -> None:
        fifo.send_all("g1-m1", "g2-m1")
        fifo.receive(1, ReceiveRequestAttemptId="a", VisibilityTimeout=1000)
        clock.advance(301)
        assert fifo.bodies(1, ReceiveRequestAttemptId="a") == ["g2-m1"]

    def test_a_bad_attempt_is_refused(self, fifo: Fifo) -> None:
        assert fifo.sqs.refusal("ReceiveMessage", QUEUE, ReceiveRequestAttemptId="a b")[0] == INVALID

    def test_a_message_that_is_visible_again_keeps_its_place_and_cannot_be_hidden(self, fifo: Fifo, clock: FakeClock) -> None:
        fifo.send_all("g1-m1")
        (message,) = fifo.receive(VisibilityTimeout=1)
        clock.advance(1)
        handle = message["ReceiptHandle"]
        assert fifo.sqs.refusal("ChangeMessageVisibility", QUEUE, ReceiptHandle=handle, VisibilityTimeout=5) == NOT_IN_FLIGHT
        assert fifo.bodies() == ["g1-m1"]

    # dead letters and limits

    def test_a_dead_letter_of_a_fifo_queue_keeps_its_id_and_its_group(self, fifo: Fifo) -> None:
        dead = Fifo(fifo.sqs, "dead.fifo")
        policy = json.dumps({"deadLetterTargetArn": f"arn:aws:sqs:us-east-1:{ACCOUNT}:dead.fifo", "maxReceiveCount": 2})
        fifo.set(RedrivePolicy=policy)
        sent = fifo.send("foobar", "1", MessageAttributes={"a": text("v")})
        for expected in (["foobar"], ["foobar"], []):
            assert fifo.bodies(VisibilityTimeout=0) == expected
        (message,) = dead.receive(AttributeNames=["All"], MessageAttributeNames=["All"])
        assert (message["MessageId"], message["Body"]) == (sent["MessageId"], "foobar")
        assert message["MessageAttributes"] == {"a": text("v")}
        assert message["Attributes"]["MessageGroupId"] == "1"
        assert message["Attributes"]["MessageDeduplicationId"] == hashlib.sha256(b"foobar").hexdigest()
        assert message["Attributes"]["ApproximateReceiveCount"] == "3"

    def test_at_the_limit_of_messages_in_flight_no_more_come(
        self, broker: LocalBroker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(in_flight, "MOST", 2)
        with BackgroundServer(broker, self.server_settings) as server:
            fifo = Fifo(SqsClient(server.url, "json"))
            fifo.send_all("g1-m1", "g2-m1", "g3-m1")
            found = fifo.receive(2)
            assert fifo.receive() == []
            fifo.delete(found[0])
            assert fifo.bodies() == ["g3-m1"]


class SqsWithoutGroups(SqsMessageFixtures):
    def test_a_store_without_groups_has_no_fifo_queues(self, sqs: SqsClient) -> None:
        code, told = sqs.refusal("CreateQueue", QueueName=QUEUE, Attributes={"FifoQueue": "true"})
        assert code == "AWS.SimpleQueueService.UnsupportedOperation"
        assert "groups" in told
        assert bodies(sqs("ReceiveMessage", "orders")) == []
        assert "QueueUrls" in sqs("ListQueues")
        assert len(sqs("ListQueues")["QueueUrls"]) == 1
