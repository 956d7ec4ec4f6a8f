"""What SQS says of every value that a queue cannot have, and the settings of the dialect."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from penstock.broker import LocalBroker
from penstock.server import BackgroundServer
from penstock.server.http.request_response import Grant, Limits, Scope
from penstock.server.tokens import Token, digest
from penstock.testing.clock import FakeClock
from penstock.testing.http import SETTINGS, Http, HttpAnswer, ServerFixtures
from penstock.testing.servers import PostgresqlServer
from penstock.testing.sqs import SqsFixtures, SqsQueues, arn, attributes, redrive, refused
from penstock.testing.sqs_client import ACCOUNT, FORM, Fault, Sqs

BAD_ATTRIBUTES = [
    (name, value)
    for name, values in {
        "VisibilityTimeout": ("-1", "43201", "", " 2", "1.5", "x"),
        "DelaySeconds": ("-1", "901", "", "٣"),
        "MessageRetentionPeriod": ("59", "1209601", ""),
        "MaximumMessageSize": ("1023", "1048577", ""),
        "ReceiveMessageWaitTimeSeconds": ("-1", "21", ""),
        "KmsDataKeyReusePeriodSeconds": ("59", "86401"),
        "SqsManagedSseEnabled": ("yes", ""),
        "Policy": ("[]", "{", "1"),
        "RedrivePolicy": ("{", "[]", " ", "1"),
        "RedriveAllowPolicy": ("{", "[]", "{}", '{"redrivePermission":"dummy"}', '{"redrivePermission":"allowAll","x":1}'),
    }.items()
    for value in values
]


class TestRules(SqsFixtures, ServerFixtures):
    @pytest.fixture
    def url(self) -> str:
        return "memory:"

    @pytest.mark.parametrize("name", ["", "a b", "a.b", "é", "a" * 81, "a/b", "orders.fifo"])
    def test_a_name_that_sqs_does_not_allow_is_refused(self, sqs: Sqs, name: str) -> None:
        assert refused(sqs, "CreateQueue", QueueName=name).code == "InvalidParameterValue"
        assert "QueueUrls" not in sqs("ListQueues")

    @pytest.mark.parametrize("members", [{"MaxResults": 0}, {"MaxResults": 1001}, {"MaxResults": 1, "NextToken": "é"}])
    def test_a_page_that_does_not_exist_is_refused(self, sqs: Sqs, members: dict[str, Any]) -> None:
        assert refused(sqs, "ListQueues", **members).code == "InvalidParameterValue"

    def test_a_queue_is_found_by_any_url_that_ends_like_its_own_and_by_its_bare_name(self, sqs: Sqs, queue: str) -> None:
        for url in (
            f"https://proxy.example/{ACCOUNT}/orders",
            "orders",
            f"/{ACCOUNT}/orders",
            f"http://x/queue/{ACCOUNT}/orders",
        ):
            assert attributes(sqs, url, "QueueArn") == {"QueueArn": arn("orders")}
        for url in ("http://x", "http://x/", "http://[", "x" * 5000, f"http://x/{ACCOUNT}/a@b", f"http://x/{ACCOUNT}/other"):
            assert refused(sqs, "GetQueueAttributes", QueueUrl=url).code == "AWS.SimpleQueueService.NonExistentQueue"

    @pytest.mark.parametrize(("name", "value"), BAD_ATTRIBUTES)
    def test_a_value_outside_its_limits_changes_nothing(self, sqs: Sqs, queue: str, name: str, value: str) -> None:
        before = attributes(sqs, queue)
        if name in ("Policy", "RedrivePolicy", "RedriveAllowPolicy") and not value:
            return
        for operation, named in (("SetQueueAttributes", {"QueueUrl": queue}), ("CreateQueue", {"QueueName": "new"})):
            fault = refused(sqs, operation, **named, Attributes={"VisibilityTimeout": "1", name: value})
            assert (fault.code, fault.status) == ("InvalidAttributeValue", 400)
            assert fault.text.startswith(f"Invalid value for the parameter {name}.")
        assert attributes(sqs, queue) == before
        assert sqs("ListQueues")["QueueUrls"] == [queue]

    @pytest.mark.parametrize("name", ["Colour", "", "QueueArn", "CreatedTimestamp", "ApproximateNumberOfMessages", "All"])
    def test_an_attribute_that_cannot_be_set_is_unknown(self, sqs: Sqs, queue: str, name: str) -> None:
        fault = refused(sqs, "SetQueueAttributes", QueueUrl=queue, Attributes={name: "1"})
        assert (fault.code, fault.text) == ("InvalidAttributeName", f"Unknown Attribute {name}.")

    def test_blanks_around_the_name_of_an_attribute_do_not_count(self, sqs: Sqs, queue: str) -> None:
        for _ in range(2):
            new = sqs("CreateQueue", QueueName="new", Attributes={"VisibilityTimeout ": "7"})["QueueUrl"]
        assert attributes(sqs, new, "VisibilityTimeout") == {"VisibilityTimeout": "7"}
        sqs("SetQueueAttributes", QueueUrl=queue, Attributes={" DelaySeconds": "9"})
        assert attributes(sqs, queue, "DelaySeconds") == {"DelaySeconds": "9"}

    def test_an_unknown_attribute_cannot_be_asked_for(self, sqs: Sqs, queue: str) -> None:
        fault = refused(sqs, "GetQueueAttributes", QueueUrl=queue, AttributeNames=["All", "Colour"])
        assert (fault.code, fault.text) == ("InvalidAttributeName", "Unknown Attribute Colour.")

    def test_a_standard_queue_has_none_of_a_fifo_queues_attributes(self, sqs: Sqs, queue: str) -> None:
        for name in ("FifoQueue", "ContentBasedDeduplication"):
            for operation, named in (("SetQueueAttributes", {"QueueUrl": queue}), ("CreateQueue", {"QueueName": "new"})):
                fault = refused(sqs, operation, **named, Attributes={name: "false"})
                assert (fault.code, fault.text) == ("InvalidAttributeName", f"Unknown Attribute {name}.")
        for name, value in {"DeduplicationScope": "queue", "FifoThroughputLimit": "perQueue"}.items():
            fault = refused(sqs, "SetQueueAttributes", QueueUrl=queue, Attributes={name: value})
            assert (fault.code, fault.text) == (
                "InvalidAttributeName",
                f"You can specify the {name} only when FifoQueue is set to true.",
            )

    @pytest.mark.parametrize(
        ("policy", "reason"),
        [
            ('{"deadLetterTargetArn":"x"}', "Redrive policy does not contain mandatory attribute: maxReceiveCount."),
            ('{"maxReceiveCount":3}', "Redrive policy does not contain mandatory attribute: deadLetterTargetArn."),
            (redrive("dummy", 42), "Invalid value for deadLetterTargetArn."),
            (redrive("arn:aws:sns:us-east-1:000000000000:x"), "Only SQS queues are valid resources for deadLetterTargetArn."),
            (redrive(arn("missing")), "Dead letter target does not exist."),
            (redrive(arn("bad name")), "Dead letter target does not exist."),
            (redrive(arn("dead.fifo")), "Dead-letter queue must be same type of queue as the source.."),
            (redrive(arn("dead", account="123456789012")), "Dead-letter target owner should be same as the source."),
            (redrive(arn("dead", "eu-west-1")), "Dead-letter target should be in the same region as the source."),
            (redrive(arn("dead"), 0), "Invalid value for maxReceiveCount: 0, valid values are from 1 to 1000 both inclusive."),
            (redrive(arn("dead"), 1001), "Invalid value for maxReceiveCount: 1001, valid values"),
            (redrive(arn("dead"), "many"), "Invalid value for maxReceiveCount: many, valid values"),
            (redrive(arn("dead"), True), "Invalid value for maxReceiveCount: True, valid values"),
            (redrive(arn("dead"))[:-1] + ', "x": 1}', "Only following attributes are supported"),
        ],
    )
    def test_a_redrive_policy_that_cannot_be_kept_is_refused(self, sqs: Sqs, queue: str, policy: str, reason: str) -> None:
        sqs("CreateQueue", QueueName="dead")
        for operation, named in (("SetQueueAttributes", {"QueueUrl": queue}), ("CreateQueue", {"QueueName": "new"})):
            fault = refused(sqs, operation, **named, Attributes={"RedrivePolicy": policy})
            assert (fault.code, fault.status) == ("InvalidParameterValue", 400)
            assert fault.text.startswith(f"Value {policy} for parameter RedrivePolicy is invalid. Reason: {reason}")
        assert attributes(sqs, queue, "RedrivePolicy") == {}

    @pytest.mark.parametrize(
        ("allow", "allowed"),
        [
            ({"redrivePermission": "allowAll"}, True),
            ({"redrivePermission": "denyAll"}, False),
            ({"redrivePermission": "byQueue", "sourceQueueArns": [arn("orders")]}, True),
            ({"redrivePermission": "byQueue", "sourceQueueArns": [arn("others")]}, False),
        ],
    )
    def test_a_dead_letter_queue_says_which_queues_may_use_it(
        self, sqs: Sqs, queue: str, allow: dict[str, Any], allowed: bool
    ) -> None:
        sqs("CreateQueue", QueueName="dead", Attributes={"RedriveAllowPolicy": json.dumps(allow)})
        given = {"RedrivePolicy": redrive(arn("dead"))}
        if allowed:
            sqs("SetQueueAttributes", QueueUrl=queue, Attributes=given)
        else:
            assert refused(sqs, "SetQueueAttributes", QueueUrl=queue, Attributes=given).code == "InvalidParameterValue"
        assert bool(attributes(sqs, queue, "RedrivePolicy")) == allowed

    @pytest.mark.parametrize(
        "allow",
        [
            {"redrivePermission": "byQueue"},
            {"redrivePermission": "byQueue", "sourceQueueArns": []},
            {"redrivePermission": "byQueue", "sourceQueueArns": [arn(str(number)) for number in range(11)]},
            {"redrivePermission": "allowAll", "sourceQueueArns": [arn("x")]},
        ],
    )
    def test_a_redrive_allow_policy_must_make_sense(self, sqs: Sqs, queue: str, allow: dict[str, Any]) -> None:
        fault = refused(sqs, "SetQueueAttributes", QueueUrl=queue, Attributes={"RedriveAllowPolicy": json.dumps(allow)})
        assert fault.code == "InvalidParameterValue"
        assert "can't create the redrive allow policy" in fault.text

    @pytest.mark.parametrize(
        ("members", "code"),
        [
            ({"Label": "a b"}, "InvalidParameterValue"),
            ({"AWSAccountIds": ["12"]}, "InvalidParameterValue"),
            ({"AWSAccountIds": []}, "InvalidParameterValue"),
            ({"Actions": ["DeleteQueue"]}, "InvalidParameterValue"),
            ({"Actions": ["SendMessage"] * 8}, "OverLimit"),
            ({"Actions": []}, "MissingParameter"),
        ],
    )
    def test_a_permission_that_cannot_be_given_is_refused(
        self, sqs: Sqs, queue: str, members: dict[str, Any], code: str
    ) -> None:
        given = {"Label": "l", "AWSAccountIds": ["111111111111"], "Actions": ["SendMessage"], **members}
        assert refused(sqs, "AddPermission", QueueUrl=queue, **given).code == code
        assert attributes(sqs, queue, "Policy") == {}

    # FIFO queues

    @pytest.mark.parametrize(
        ("name", "given"),
        [
            ("orders", {"FifoQueue": "true"}),
            ("or.ders.fifo", {"FifoQueue": "true"}),
            (".fifo", {"FifoQueue": "true"}),
            ("a" * 76 + ".fifo", {"FifoQueue": "true"}),
            ("orders.fifo", {}),
            ("orders.fifo", {"FifoQueue": "false"}),
        ],
    )
    def test_the_name_of_a_fifo_queue_and_no_other_ends_with_fifo(self, sqs: Sqs, name: str, given: dict[str, str]) -> None:
        assert refused(sqs, "CreateQueue", QueueName=name, Attributes=given).code == "InvalidParameterValue"
        assert sqs("CreateQueue", QueueName="a" * 75 + ".fifo", Attributes={"FifoQueue": "true"})["QueueUrl"]

    def test_a_queue_stays_of_its_kind(self, sqs: Sqs, queue: str) -> None:
        fifo = sqs("CreateQueue", QueueName="orders.fifo", Attributes={"FifoQueue": "true"})["QueueUrl"]
        fault = refused(sqs, "SetQueueAttributes", QueueUrl=fifo, Attributes={"FifoQueue": "false"})
        assert fault.code == "InvalidAttributeValue"
        assert fault.text == "Invalid value for the parameter FifoQueue. Reason: Modifying queue type is not supported."
        assert (
            refused(sqs, "SetQueueAttributes", QueueUrl=queue, Attributes={"FifoQueue": "true"}).code == "InvalidAttributeName"
        )
        fault = refused(sqs, "CreateQueue", QueueName="orders.fifo", Attributes={"FifoQueue": "true", "DelaySeconds": "1"})
        assert fault.code == "QueueAlreadyExists"
        sqs("CreateQueue", QueueName="dead")
        for given in (
            {"RedrivePolicy": redrive(arn("dead"))},
            {"DeduplicationScope": "all"},
            {"FifoThroughputLimit": "perMessageGroupId"},
            {"ContentBasedDeduplication": "maybe"},
        ):
            assert refused(sqs, "SetQueueAttributes", QueueUrl=fifo, Attributes=given).code.startswith("Invalid")

    # the dialect's settings

    def test_the_waits_of_sqs_are_kept_if_the_server_is_told_to(self, broker: LocalBroker, clock: FakeClock) -> None:
        with BackgroundServer(broker, replace(SETTINGS, sqs_waits=True)) as server:
            sqs = Sqs(Http(server.url), "json")
            queue = sqs("CreateQueue", QueueName="orders")["QueueUrl"]
            sqs("PurgeQueue", QueueUrl=queue)
            clock.advance(59)
            fault = refused(sqs, "PurgeQueue", QueueUrl=queue)
            assert (fault.code, fault.status) == ("AWS.SimpleQueueService.PurgeQueueInProgress", 403)
            assert fault.text == "Only one PurgeQueue operation on orders is allowed every 60 seconds."
            clock.advance(1)
            sqs("PurgeQueue", QueueUrl=queue)
            sqs("DeleteQueue", QueueUrl=queue)
            clock.advance(59)
            fault = refused(sqs, "CreateQueue", QueueName="orders")
            assert (fault.code, fault.status) == ("AWS.SimpleQueueService.QueueDeletedRecently", 400)
            assert fault.text.startswith("You must wait 60 seconds after deleting a queue")
            clock.advance(1)
            sqs("CreateQueue", QueueName="orders")

    def test_account_region_and_address_are_settings(self, broker: LocalBroker) -> None:
        settings = replace(
            SETTINGS, sqs_account="123456789012", sqs_region="eu-west-1", sqs_url="https://sqs.{region}.example.com/q/"
        )
        with BackgroundServer(broker, settings) as server:
            sqs = Sqs(Http(server.url), "json", region="eu-west-1")
            queue = sqs("CreateQueue", QueueName="orders")["QueueUrl"]
            assert queue == "https://sqs.eu-west-1.example.com/q/123456789012/orders"
            assert attributes(sqs, queue, "QueueArn") == {"QueueArn": arn("orders", "eu-west-1", "123456789012")}
            america = Sqs(Http(server.url), "json")
            assert attributes(america, queue, "QueueArn") == {"QueueArn": arn("orders", "eu-west-1", "123456789012")}
            assert broker.queues().names == ["orders"]

    def test_a_refusal_by_another_part_of_the_server_is_an_error_of_sqs(self, broker: LocalBroker) -> None:
        token = Token(Grant("reader", frozenset({Scope.COUNT}), ("orders",), Limits(max_rate=0.001), keys=(digest("secret"),)))
        with BackgroundServer(broker, replace(SETTINGS, tokens=(token,), max_body=2048)) as server:
            for protocol, content in (("json", "application/x-amz-json-1.0"), ("query", FORM)):
                head = {"Authorization": "Bearer secret", "Content_Type": content}
                target = {"X_Amz_Target": "AmazonSQS.ListQueues"} if protocol == "json" else {}
                sqs = Sqs(Http(server.url), protocol)

                def ask(body: bytes, **more: str) -> Fault:
                    return sqs.fault(Http(server.url)("POST", "/", body, **{**head, **target, **more}))  # noqa: B023

                assert ask(b"x" * 3000).status == 413
                assert ask(b"", Authorization="Bearer wrong").status in (401, 403)
                assert ask(b"", Host="elsewhere.example").status in (400, 403, 421)
        with BackgroundServer(broker, replace(SETTINGS, tokens=(token,))) as server:
            http = Http(server.url, {"Authorization": "Bearer secret"})
            statuses = [http("POST", "/", b"{}", X_Amz_Target="AmazonSQS.ListQueues") for _ in range(2)]
            assert [answer.status for answer in statuses] == [200, 429]
            assert Sqs(http, "json").fault(statuses[1]).code == "RequestThrottled"

    def test_a_token_sees_only_its_queues(self, broker: LocalBroker) -> None:
        broker.create("dead")
        broker.create("orders", redrive=("dead", 3))
        token = Token(Grant("shop", frozenset({Scope.COUNT, Scope.SEND}), ("orders",), keys=(digest("secret"),)))
        with BackgroundServer(broker, replace(SETTINGS, tokens=(token,))) as server:
            http = Http(server.url, {"Authorization": "Bearer secret"})

            def ask(operation: str, **members: Any) -> HttpAnswer:
                return http("POST", "/", members, X_Amz_Target=f"AmazonSQS.{operation}")

            assert [url[-6:] for url in ask("ListQueues").json["QueueUrls"]] == ["orders"]
            found = ask("GetQueueAttributes", QueueUrl="orders", AttributeNames=["All"]).json["Attributes"]
            assert "RedrivePolicy" not in found
            for operation, members in (
                ("GetQueueAttributes", {"QueueUrl": "dead"}),
                ("PurgeQueue", {"QueueUrl": "orders"}),
                ("CreateQueue", {"QueueName": "orders"}),
                ("CreateQueue", {"QueueName": "other"}),
                ("ReceiveMessage", {"QueueUrl": "orders"}),
                ("TagQueue", {"QueueUrl": "orders", "Tags": {"a": "b"}}),
            ):
                answer = ask(operation, **members)
                assert (answer.status, Sqs(http, "json").fault(answer).code) == (403, "AccessDenied")
            assert Sqs(http, "json").fault(ask("GetQueueUrl", QueueName="dead")).code.endswith("NonExistentQueue")
            assert ask("GetQueueUrl", QueueName="orders").status == 200


class TestQueuesOnPostgresql(SqsQueues, ServerFixtures):
    @pytest.fixture
    def url(self, postgresql: PostgresqlServer) -> str:
        return postgresql.new_url()
