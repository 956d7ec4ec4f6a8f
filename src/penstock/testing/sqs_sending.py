"""The SQS suite's chapter on sending: messages and their attributes, every limit with AWS's words, and batches."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import pytest

from penstock import Broker
from penstock.server import BackgroundServer
from penstock.testing.http import Http, ServerFixtures
from penstock.testing.sqs_client import ACCOUNT, PROTOCOLS, Fault, Sqs

MEBI = 1024 * 1024
INVALID = "InvalidParameterValue"
NAME_RULE = (
    "Message (user) attributes name can only contain upper and lower score characters, digits, periods, hyphens and "
    "underscores. "
)
RESERVED = (
    "You can't use message attribute names beginning with 'AWS.' or 'Amazon.'. These strings are reserved for internal use. "
    "Additionally, they cannot start or end with '.'."
)
TYPE_RULE = (
    "The type of message (user) attribute 'a' is invalid. You must use only the following supported type prefixes: Binary, "
    "Number, String."
)
ID_RULE = "can only include alphanumeric and punctuation characters. 1 to 128 in length."
ENTRY_RULE = (
    "A batch entry id can only contain alphanumeric characters, hyphens and underscores. It can be at most 80 letters long."
)


def text(value: str, kind: str = "String") -> dict[str, Any]:
    return {"DataType": kind, "StringValue": value}


def blob(value: bytes, kind: str = "Binary") -> dict[str, Any]:
    return {"DataType": kind, "BinaryValue": value}


def md5(body: str) -> str:
    return hashlib.md5(body.encode(), usedforsecurity=False).hexdigest()


class SqsClient:
    """`Sqs` on a connection of its own, with queues by their names."""

    def __init__(self, url: str, protocol: str, headers: dict[str, str] | None = None, **sender: str) -> None:
        self._sqs = Sqs(Http(url, headers), protocol, **sender)
        self.protocol = protocol

    def __call__(self, operation: str, queue: str | None = None, **members: Any) -> dict[str, Any]:
        named = {} if queue is None else {"QueueUrl": f"http://localhost/{ACCOUNT}/{queue}"}
        return self._sqs(operation, **named, **members)

    def refusal(self, operation: str, queue: str | None = None, **members: Any) -> tuple[str, str]:
        """The code and the text of the error that this operation is refused with."""
        with pytest.raises(Fault) as found:
            self(operation, queue, **members)
        return found.value.code, found.value.text


class SqsMessageFixtures(ServerFixtures):
    @pytest.fixture(params=PROTOCOLS)
    def protocol(self, request: pytest.FixtureRequest) -> str:
        return str(request.param)

    @pytest.fixture
    def sqs(self, server: BackgroundServer, protocol: str) -> Iterator[SqsClient]:
        client = SqsClient(server.url, protocol)
        client("CreateQueue", QueueName="orders")
        yield client


class SqsSending(SqsMessageFixtures):
    @pytest.mark.parametrize("body", ["x", "\t\n\r", "a\r\nb", '{"a": "&quot;<>\'"}', "é\ud7ff\ue000\ufffd𐀀\U0010ffff"])
    def test_a_message_arrives_as_it_was_sent(self, sqs: SqsClient, body: str) -> None:
        sent = sqs("SendMessage", "orders", MessageBody=body)
        assert sent.keys() == {"MessageId", "MD5OfMessageBody"}
        assert sent["MD5OfMessageBody"] == md5(body)
        (message,) = sqs("ReceiveMessage", "orders")["Messages"]
        assert message.keys() == {"MessageId", "ReceiptHandle", "MD5OfBody", "Body"}
        assert (message["MessageId"], message["MD5OfBody"], message["Body"]) == (sent["MessageId"], md5(body), body)

    @pytest.mark.parametrize("character", ["\0", "\x08", "\x0b", "\x1f", "\ufffe", "\uffff"])
    def test_a_character_that_xml_has_not_is_refused(self, sqs: SqsClient, broker: Broker, character: str) -> None:
        code, told = sqs.refusal("SendMessage", "orders", MessageBody=f"ab{character}")
        assert code == "InvalidMessageContents"
        assert f"'#x{ord(character):X}'" in told
        assert broker["orders"].stats().messages == 0

    def test_half_of_a_pair_of_surrogates_is_refused(self, server: BackgroundServer) -> None:
        sqs = SqsClient(server.url, "json")
        sqs("CreateQueue", QueueName="orders")
        assert sqs.refusal("SendMessage", "orders", MessageBody="a\ud800")[0] == "InvalidMessageContents"

    def test_a_message_needs_a_body(self, sqs: SqsClient) -> None:
        expected = ("MissingParameter", "The request must contain the parameter MessageBody.")
        assert sqs.refusal("SendMessage", "orders", MessageBody="") == expected
        assert sqs.refusal("SendMessage", "orders") == expected

    @pytest.mark.parametrize("operation", ["SendMessage", "SendMessageBatch", "ReceiveMessage", "DeleteMessage"])
    def test_no_such_queue_is_told_first(self, sqs: SqsClient, operation: str) -> None:
        more: dict[str, Any] = {
            "SendMessage": {"MessageBody": "\0"},
            "SendMessageBatch": {"Entries": [{"Id": "!", "MessageBody": "x"}]},
            "ReceiveMessage": {"MaxNumberOfMessages": 11},
            "DeleteMessage": {"ReceiptHandle": "x"},
        }
        assert sqs.refusal(operation, "missing", **more[operation])[0] == "AWS.SimpleQueueService.NonExistentQueue"

    def test_a_mebibyte_is_the_limit_of_body_names_types_and_values(self, sqs: SqsClient, broker: Broker) -> None:
        attributes = {"k": text("x"), "b": blob(b"\0" * 10)}
        room = MEBI - len("kStringx") - len("bBinary") - 10
        sqs("SendMessage", "orders", MessageBody="é" * (room // 2) + "x" * (room % 2), MessageAttributes=attributes)
        (message,) = sqs("ReceiveMessage", "orders", MessageAttributeNames=["All"])["Messages"]
        assert (len(message["Body"].encode()), message["MessageAttributes"]) == (room, attributes)
        expected = (INVALID, f"One or more parameters are invalid. Reason: Message must be shorter than {MEBI} bytes.")
        assert sqs.refusal("SendMessage", "orders", MessageBody="x" * (room + 1), MessageAttributes=attributes) == expected
        assert broker["orders"].stats().messages == 1

    def test_attributes_alone_may_take_the_mebibyte(self, sqs: SqsClient) -> None:
        value = "x" * (MEBI - len("kString") - 1)
        sqs("SendMessage", "orders", MessageBody="y", MessageAttributes={"k": text(value)})
        (message,) = sqs("ReceiveMessage", "orders", MessageAttributeNames=["k"])["Messages"]
        assert message["MessageAttributes"] == {"k": text(value)}

    def test_a_queue_can_have_a_lower_limit_which_counts_at_once(self, sqs: SqsClient) -> None:
        sqs("SendMessage", "orders", MessageBody="x" * 1025)
        sqs("SetQueueAttributes", "orders", Attributes={"MaximumMessageSize": "1024"})
        expected = (INVALID, "One or more parameters are invalid. Reason: Message must be shorter than 1024 bytes.")
        assert sqs.refusal("SendMessage", "orders", MessageBody="x" * 1025) == expected
        sqs("SendMessage", "orders", MessageBody="x" * 1024)
        sqs("DeleteQueue", "orders")
        sqs("CreateQueue", QueueName="orders")
        sqs("SendMessage", "orders", MessageBody="x" * 1025)

    def test_a_delay_hides_a_message(self, sqs: SqsClient, clock: Any) -> None:
        sqs("SetQueueAttributes", "orders", Attributes={"DelaySeconds": "5"})
        sqs("SendMessage", "orders", MessageBody="at once", DelaySeconds=0)
        sqs("SendMessage", "orders", MessageBody="as the queue says")
        sqs("SendMessage", "orders", MessageBody="as the sender says", DelaySeconds=900)
        found = []
        for seconds in (0, 5, 895):
            clock.advance(seconds)
            messages = sqs("ReceiveMessage", "orders", VisibilityTimeout=43200).get("Messages", [])
            found.append([message["Body"] for message in messages])
        assert found == [["at once"], ["as the queue says"], ["as the sender says"]]

    @pytest.mark.parametrize("seconds", [-1, 901])
    def test_a_delay_beyond_its_range_is_refused(self, sqs: SqsClient, seconds: int) -> None:
        expected = f"Value {seconds} for parameter DelaySeconds is invalid. Reason: DelaySeconds must be >= 0 and <= 900."
        assert sqs.refusal("SendMessage", "orders", MessageBody="x", DelaySeconds=seconds) == (INVALID, expected)

    # attributes

    def test_attributes_and_their_types_arrive_as_they_were_sent(self, sqs: SqsClient) -> None:
        attributes = {
            "text": text("ä\r\n<&>"),
            "number": text("0042.50", "Number"),
            "whole.number": text("-1e3", "Number.java.lang.Integer"),
            "bytes": blob(bytes(range(256))),
            "picture_1-2": blob(b"\x89PNG", "Binary.png"),
            "attr.1øßä": text("x", "String.é"),
        }
        sent = sqs("SendMessage", "orders", MessageBody="x", MessageAttributes=attributes)
        (message,) = sqs("ReceiveMessage", "orders", MessageAttributeNames=["All"])["Messages"]
        assert message["MessageAttributes"] == attributes
        assert message["MD5OfMessageAttributes"] == sent["MD5OfMessageAttributes"]

    @pytest.mark.parametrize(
        ("attributes", "digest"),
        [
            ({"Help.Me": text("Me"), "Hello": text("There"), "General": text("Kenobi")}, "4c360f3fdafd970e05fae2f149d997f5"),
            ({"timestamp": text("1493147359900", "Number")}, "235c5c510d26fb653d073faed50ae77c"),
            ({"UserId": text("1234567890123456789012", "Number.bigint")}, "797ab158d73dcb5242dedc4412c8e855"),
            (
                {"attr1": blob(b"traceparent\x1e00-774062d6c37081a5a0b9b5b88e30627c-2d2482211f6489da-01")},
                "8cbe4db156db8a94db8b801b7addb984",
            ),
        ],
    )
    def test_the_digest_of_attributes_is_aws_s(self, sqs: SqsClient, attributes: dict[str, Any], digest: str) -> None:
        sent = sqs("SendMessage", "orders", MessageBody="x", MessageAttributes=attributes)
        assert sent["MD5OfMessageAttributes"] == digest

    def test_a_trace_is_a_system_attribute_with_a_digest_of_its_own(self, sqs: SqsClient) -> None:
        trace = "Root=1-5759e988-bd862e3fe1be46a994272793;Parent=53995c3f42cd8ad8;Sampled=1"
        mine = {"timestamp": text("1493147359900", "Number")}
        sent = sqs(
            "SendMessage",
            "orders",
            MessageBody="x",
            MessageAttributes=mine,
            MessageSystemAttributes={"AWSTraceHeader": text(trace)},
        )
        assert sent["MD5OfMessageSystemAttributes"] == "5ae4d5d7636402d80f4eb6d213245a88"
        assert sent["MD5OfMessageAttributes"] == "235c5c510d26fb653d073faed50ae77c"
        wanted = {"MessageSystemAttributeNames": ["AWSTraceHeader"], "MessageAttributeNames": ["All"]}
        (message,) = sqs("ReceiveMessage", "orders", **wanted)["Messages"]
        assert (message["Attributes"], message["MessageAttributes"]) == ({"AWSTraceHeader": trace}, mine)

    def test_a_trace_may_come_in_the_head_of_the_request(self, server: BackgroundServer, sqs: SqsClient, protocol: str) -> None:
        traced = SqsClient(server.url, protocol, {"X-Amzn-Trace-Id": "Root=1-3152b799"})
        assert "MD5OfMessageSystemAttributes" not in traced("SendMessage", "orders", MessageBody="x")
        (message,) = sqs("ReceiveMessage", "orders", AttributeNames=["AWSTraceHeader"])["Messages"]
        assert message["Attributes"] == {"AWSTraceHeader": "Root=1-3152b799"}

    def test_a_sender_has_no_other_system_attribute(self, sqs: SqsClient) -> None:
        given = {"SenderId": text("me")}
        expected = (INVALID, "Message system attribute name 'SenderId' is invalid.")
        assert sqs.refusal("SendMessage", "orders", MessageBody="x", MessageSystemAttributes=given) == expected

    @pytest.mark.parametrize(
        ("name", "expected"),
        [
            ("aWs.x", RESERVED),
            ("AMAZON.x", RESERVED),
            (".x", RESERVED),
            ("x.", RESERVED),
            ("a b", NAME_RULE),
            ("a!", NAME_RULE),
            ("§", NAME_RULE),
            ("L" * 257, "Message (user) attribute name must be shorter than 256 bytes."),
        ],
    )
    def test_a_bad_name_of_an_attribute_is_refused(self, sqs: SqsClient, broker: Broker, name: str, expected: str) -> None:
        told = sqs.refusal("SendMessage", "orders", MessageBody="x", MessageAttributes={name: text("v")})
        assert told == (INVALID, expected)
        assert broker["orders"].stats().messages == 0

    @pytest.mark.parametrize(
        ("value", "expected"),
        [
            (text(""), "Message (user) attribute 'a' must contain a non-empty value of type 'String'."),
            (blob(b""), "Message (user) attribute 'a' must contain a non-empty value of type 'Binary'."),
            (text("v", "Binary"), "Message (user) attribute 'a' must contain a non-empty value of type 'Binary'."),
            (text("v", "Invalid"), TYPE_RULE),
            (text("v", "string"), TYPE_RULE),
            (text("v", "Stringy"), TYPE_RULE),
            (text("v", "String." + "x" * 250), "Message (user) attribute type must be shorter than 256 bytes."),
            (text("four", "Number"), "Can't cast the value of message (user) attribute 'a' to a number."),
            (text("٣", "Number"), "Can't cast the value of message (user) attribute 'a' to a number."),
        ],
    )
    def test_a_bad_value_of_an_attribute_is_refused(self, sqs: SqsClient, value: dict[str, Any], expected: str) -> None:
        assert sqs.refusal("SendMessage", "orders", MessageBody="x", MessageAttributes={"a": value}) == (INVALID, expected)

    def test_a_control_character_in_an_attribute_is_refused(self, sqs: SqsClient) -> None:
        given = {"a": text("x\x08")}
        code, told = sqs.refusal("SendMessage", "orders", MessageBody="x", MessageAttributes=given)
        assert code == INVALID
        assert "#x8" in told

    def test_ten_attributes_are_the_limit(self, sqs: SqsClient) -> None:
        sqs("SendMessage", "orders", MessageBody="x", MessageAttributes={f"a{number}": text("v") for number in range(10)})
        eleven = {f"a{number}": text("v") for number in range(11)}
        expected = (INVALID, "Number of message attributes [11] exceeds the allowed maximum [10].")
        assert sqs.refusal("SendMessage", "orders", MessageBody="x", MessageAttributes=eleven) == expected

    # groups in standard queues

    @pytest.mark.parametrize("group", ["a", "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~", "x" * 128, ".", "/"])
    def test_a_group_in_a_standard_queue_is_kept_and_blocks_nothing(self, sqs: SqsClient, group: str) -> None:
        for body in "ab":
            assert "SequenceNumber" not in sqs("SendMessage", "orders", MessageBody=body, MessageGroupId=group)
        messages = sqs("ReceiveMessage", "orders", MaxNumberOfMessages=10, AttributeNames=["All"])["Messages"]
        assert sorted(message["Body"] for message in messages) == ["a", "b"]
        assert {message["Attributes"]["MessageGroupId"] for message in messages} == {group}
        assert "SequenceNumber" not in messages[0]["Attributes"]

    def test_an_error_shows_only_the_beginning_of_a_long_value(self, sqs: SqsClient) -> None:
        long = "x" * MEBI
        for operation, members in {
            "SendMessage": {"MessageBody": "x", "MessageGroupId": long},
            "DeleteMessage": {"ReceiptHandle": long},
            "ReceiveMessage": {"ReceiveRequestAttemptId": long},
        }.items():
            assert len(sqs.refusal(operation, "orders", **members)[1]) < 5000

    @pytest.mark.parametrize("group", ["", "x" * 129, "a b", "é", "a\tb"])
    def test_a_bad_group_is_refused(self, sqs: SqsClient, group: str) -> None:
        expected = f"Value {group} for parameter MessageGroupId is invalid. Reason: MessageGroupId {ID_RULE}"
        assert sqs.refusal("SendMessage", "orders", MessageBody="x", MessageGroupId=group) == (INVALID, expected)

    def test_a_standard_queue_takes_no_deduplication_id(self, sqs: SqsClient) -> None:
        reason = "The request include parameter that is not valid for this queue type."
        expected = (INVALID, f"Value d for parameter MessageDeduplicationId is invalid. Reason: {reason}")
        assert sqs.refusal("SendMessage", "orders", MessageBody="x", MessageDeduplicationId="d") == expected


class SqsBatches(SqsMessageFixtures):
    def test_a_batch_arrives_in_one_commit(self, sqs: SqsClient, server: BackgroundServer) -> None:
        attributes = {"a": text("v")}
        entries: list[dict[str, Any]] = [{"Id": f"m-{number}", "MessageBody": f"body {number}"} for number in range(10)]
        entries[3]["MessageAttributes"] = attributes
        sent = sqs("SendMessageBatch", "orders", Entries=entries)
        assert "Failed" not in sent
        assert [one["Id"] for one in sent["Successful"]] == [entry["Id"] for entry in entries]
        assert [one["MD5OfMessageBody"] for one in sent["Successful"]] == [md5(entry["MessageBody"]) for entry in entries]
        found = sqs("ReceiveMessage", "orders", MaxNumberOfMessages=10, MessageAttributeNames=["All"])["Messages"]
        assert {one["MessageId"]: one["Body"] for one in found} == {
            one["MessageId"]: entry["MessageBody"] for one, entry in zip(sent["Successful"], entries, strict=True)
        }
        assert [one["Body"] for one in found if "MessageAttributes" in one] == ["body 3"]

    def test_an_entry_that_is_refused_fails_alone(self, sqs: SqsClient) -> None:
        sqs("SetQueueAttributes", "orders", Attributes={"MaximumMessageSize": "1024"})
        entries = [
            {"Id": "good", "MessageBody": "x" * 1024},
            {"Id": "contents", "MessageBody": "\x01"},
            {"Id": "size", "MessageBody": "x" * 1025},
            {"Id": "delay", "MessageBody": "x", "DelaySeconds": 901},
            {"Id": "attribute", "MessageBody": "x", "MessageAttributes": {"a": text("")}},
            {"Id": "empty", "MessageBody": ""},
        ]
        done = sqs("SendMessageBatch", "orders", Entries=entries)
        assert [one["Id"] for one in done["Successful"]] == ["good"]
        failed = {one["Id"]: one for one in done["Failed"]}
        assert {id: one["Code"] for id, one in failed.items()} == {
            "contents": "InvalidMessageContents",
            "size": INVALID,
            "delay": INVALID,
            "attribute": INVALID,
            "empty": "EmptyValue",
        }
        assert all(one["SenderFault"] is True for one in failed.values())
        size = "One or more parameters cannot be validated. Reason: Message must be shorter than 1024 bytes."
        assert failed["size"]["Message"] == size
        assert [one["Body"][0] for one in sqs("ReceiveMessage", "orders", MaxNumberOfMessages=10)["Messages"]] == ["x"]

    @pytest.mark.parametrize(
        ("entries", "code", "told"),
        [
            ([], "EmptyBatchRequest", "There should be at least one SendMessageBatchRequestEntry in the request."),
            (
                [{"Id": str(number), "MessageBody": "x"} for number in range(11)],
                "TooManyEntriesInBatchRequest",
                "Maximum number of entries per request are 10. You have sent 11.",
            ),
            (
                [{"Id": "a", "MessageBody": "x"}, {"Id": "a", "MessageBody": "y"}],
                "BatchEntryIdsNotDistinct",
                "Id a repeated.",
            ),
            ([{"Id": "a:b", "MessageBody": "x"}], "InvalidBatchEntryId", ENTRY_RULE),
            ([{"Id": "", "MessageBody": "x"}], "InvalidBatchEntryId", ENTRY_RULE),
            ([{"Id": "a" * 81, "MessageBody": "x"}], "InvalidBatchEntryId", ENTRY_RULE),
            (
                [
                    {"Id": "a", "MessageBody": "x" * (MEBI - 9), "MessageAttributes": {"k": text("xy")}},
                    {"Id": "b", "MessageBody": "y"},
                ],
                "BatchRequestTooLong",
                f"Batch requests cannot be longer than {MEBI} bytes. You have sent {MEBI + 1} bytes.",
            ),
        ],
        ids=["none", "eleven", "twice", "colon", "empty", "long", "size"],
    )
    def test_what_is_wrong_with_a_batch_as_a_whole_refuses_all_of_it(
        self, sqs: SqsClient, broker: Broker, entries: list[dict[str, Any]], code: str, told: str
    ) -> None:
        assert sqs.refusal("SendMessageBatch", "orders", Entries=entries) == (f"AWS.SimpleQueueService.{code}", told)
        assert broker["orders"].stats().messages == 0

    @pytest.mark.parametrize("operation", ["DeleteMessageBatch", "ChangeMessageVisibilityBatch"])
    def test_the_other_batches_have_the_same_rules(self, sqs: SqsClient, operation: str) -> None:
        def entry(id: str) -> dict[str, Any]:
            return {"Id": id, "ReceiptHandle": "x", **({"VisibilityTimeout": 1} if operation.startswith("Change") else {})}

        code, told = sqs.refusal(operation, "orders", Entries=[])
        assert (code, told) == (
            "AWS.SimpleQueueService.EmptyBatchRequest",
            f"There should be at least one {operation}RequestEntry in the request.",
        )
        eleven = [entry(str(number)) for number in range(11)]
        assert sqs.refusal(operation, "orders", Entries=eleven)[0].endswith("TooManyEntriesInBatchRequest")
        assert sqs.refusal(operation, "orders", Entries=[entry("a"), entry("a")])[1] == "Id a repeated."
        assert sqs.refusal(operation, "orders", Entries=[entry("a b")])[1] == ENTRY_RULE
        (failed,) = sqs(operation, "orders", Entries=[entry("a")])["Failed"]
        expected = 'The input receipt handle "x" is not a valid receipt handle.'
        assert failed == {"Id": "a", "Code": "ReceiptHandleIsInvalid", "Message": expected, "SenderFault": True}
