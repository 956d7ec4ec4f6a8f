"""The dialect suite's chapter on SQS's protocols and queues. Every test with the fixture ``sqs`` runs in both protocols."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

import pytest

from penstock import Broker
from penstock.testing.clock import FakeClock
from penstock.testing.http import Http
from penstock.testing.sqs_client import ACCOUNT, PROTOCOLS, REGION, Fault, Sqs

SECOND = 1_000_000
COUNTERS = ("ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible", "ApproximateNumberOfMessagesDelayed")


def arn(name: str, region: str = REGION, account: str = ACCOUNT) -> str:
    return f"arn:aws:sqs:{region}:{account}:{name}"


def redrive(target: str, count: Any = 3) -> str:
    return json.dumps({"deadLetterTargetArn": target, "maxReceiveCount": count})


class SqsFixtures:
    @pytest.fixture(params=PROTOCOLS)
    def sqs(self, http: Http, request: pytest.FixtureRequest) -> Sqs:
        return Sqs(http, request.param)

    @pytest.fixture
    def queue(self, sqs: Sqs) -> str:
        """The URL of a new queue."""
        url: str = sqs("CreateQueue", QueueName="orders")["QueueUrl"]
        return url


def attributes(sqs: Sqs, queue: str, *names: str) -> dict[str, str]:
    found: dict[str, str] = sqs("GetQueueAttributes", QueueUrl=queue, AttributeNames=[*names] or ["All"]).get("Attributes", {})
    return found


def refused(sqs: Sqs, operation: str, **members: Any) -> Fault:
    with pytest.raises(Fault) as found:
        sqs(operation, **members)
    return found.value


class SqsQueues(SqsFixtures):
    # a queue's life

    def test_a_queue_has_the_url_of_its_account_at_the_host_that_the_client_has_used(self, http: Http, sqs: Sqs) -> None:
        url = sqs("CreateQueue", QueueName="orders")["QueueUrl"]
        assert url == f"http://{http.host}/{ACCOUNT}/orders"
        assert sqs("GetQueueUrl", QueueName="orders")["QueueUrl"] == url

    def test_a_queue_is_created_once_and_only_given_attributes_are_compared(self, sqs: Sqs) -> None:
        given = {"DelaySeconds": "1", "ReceiveMessageWaitTimeSeconds": "2", "SqsManagedSseEnabled": "false"}
        url = sqs("CreateQueue", QueueName="orders", Attributes=given)["QueueUrl"]
        assert sqs("CreateQueue", QueueName="orders")["QueueUrl"] == url
        assert sqs("CreateQueue", QueueName="orders", Attributes={"DelaySeconds": "1"})["QueueUrl"] == url
        assert sqs("CreateQueue", QueueName="orders", Attributes=given)["QueueUrl"] == url
        for name, value in {"DelaySeconds": "2", "MaximumMessageSize": "2048", "Policy": "{}"}.items():
            fault = refused(sqs, "CreateQueue", QueueName="orders", Attributes={name: value})
            assert (fault.code, fault.status) == ("QueueAlreadyExists", 400)
            assert fault.text == f"A queue already exists with the same name and a different value for attribute {name}"
            assert fault.shape in ("", "QueueNameExists")

    def test_the_longest_name(self, sqs: Sqs) -> None:
        assert sqs("CreateQueue", QueueName="a" * 80)["QueueUrl"].endswith("/" + "a" * 80)

    def test_a_deleted_queue_is_gone(self, sqs: Sqs, queue: str) -> None:
        sqs("DeleteQueue", QueueUrl=queue)
        for operation in ("DeleteQueue", "GetQueueAttributes", "PurgeQueue", "ListQueueTags", "ReceiveMessage"):
            fault = refused(sqs, operation, QueueUrl=queue)
            assert (fault.code, fault.status) == ("AWS.SimpleQueueService.NonExistentQueue", 400)
            version = " for this wsdl version" if sqs.protocol == "query" else ""
            assert fault.text == f"The specified queue does not exist{version}."
            assert fault.shape in ("", "QueueDoesNotExist")
        assert refused(sqs, "GetQueueUrl", QueueName="orders").code == "AWS.SimpleQueueService.NonExistentQueue"
        sqs("CreateQueue", QueueName="orders", Attributes={"DelaySeconds": "5"})

    def test_a_purge_empties_the_queue(self, sqs: Sqs, queue: str) -> None:
        for number in range(3):
            sqs("SendMessage", QueueUrl=queue, MessageBody=str(number))
        sqs("ReceiveMessage", QueueUrl=queue)
        sqs("PurgeQueue", QueueUrl=queue)
        assert set(attributes(sqs, queue, *COUNTERS).values()) == {"0"}

    # finding queues

    def test_queues_are_listed_by_prefix_and_in_pages(self, sqs: Sqs) -> None:
        for name in ("a-1", "a-2", "a-3", "b-1"):
            sqs("CreateQueue", QueueName=name)
        names = [url.rpartition("/")[2] for url in sqs("ListQueues")["QueueUrls"]]
        assert names[:4] == ["a-1", "a-2", "a-3", "b-1"]
        assert "NextToken" not in sqs("ListQueues", QueueNamePrefix="a-")
        seen: list[str] = []
        token: dict[str, str] = {}
        for _ in range(3):
            page = sqs("ListQueues", QueueNamePrefix="a-", MaxResults=1, **token)
            seen += page["QueueUrls"]
            token = {"NextToken": page["NextToken"]} if "NextToken" in page else {}
        assert [url[-3:] for url in seen] == ["a-1", "a-2", "a-3"] and not token
        assert sqs("ListQueues", QueueNamePrefix="a-4") == {}

    def test_regions_and_accounts_are_apart(self, http: Http, sqs: Sqs, queue: str, broker: Broker) -> None:
        europe = Sqs(http, sqs.protocol, region="eu-west-1")
        other = Sqs(http, sqs.protocol, key="123456789012")
        for client in (europe, other):
            assert "QueueUrls" not in client("ListQueues")
            assert refused(client, "GetQueueUrl", QueueName="orders").code == "AWS.SimpleQueueService.NonExistentQueue"
        there = europe("CreateQueue", QueueName="orders")["QueueUrl"]
        theirs = other("CreateQueue", QueueName="orders")["QueueUrl"]
        assert there == queue and theirs.endswith("/123456789012/orders")
        assert attributes(europe, there, "QueueArn") == {"QueueArn": arn("orders", "eu-west-1")}
        assert attributes(other, theirs, "QueueArn") == {"QueueArn": arn("orders", account="123456789012")}
        assert attributes(sqs, theirs, "QueueArn") == {"QueueArn": arn("orders", account="123456789012")}
        found = sqs("GetQueueUrl", QueueName="orders", QueueOwnerAWSAccountId="123456789012")
        assert found["QueueUrl"] == theirs
        assert {"orders", "orders@eu-west-1", "orders@us-east-1@123456789012"} <= set(broker.queues().names)
        assert sqs("ListQueues", QueueNamePrefix="orders")["QueueUrls"] == [queue]
        europe("DeleteQueue", QueueUrl=there)
        assert attributes(sqs, queue, "QueueArn") == {"QueueArn": arn("orders")}

    # attributes

    def test_a_new_queue_has_the_defaults(self, sqs: Sqs, queue: str, clock: FakeClock) -> None:
        now = str(clock() // SECOND)
        assert attributes(sqs, queue) == {
            "QueueArn": arn("orders"),
            "ApproximateNumberOfMessages": "0",
            "ApproximateNumberOfMessagesNotVisible": "0",
            "ApproximateNumberOfMessagesDelayed": "0",
            "CreatedTimestamp": now,
            "LastModifiedTimestamp": now,
            "VisibilityTimeout": "30",
            "MaximumMessageSize": "1048576",
            "MessageRetentionPeriod": "345600",
            "DelaySeconds": "0",
            "ReceiveMessageWaitTimeSeconds": "0",
            "SqsManagedSseEnabled": "true",
        }
        assert attributes(sqs, queue, "DelaySeconds", "RedrivePolicy") == {"DelaySeconds": "0"}
        assert sqs("GetQueueAttributes", QueueUrl=queue) == {}

    def test_changed_attributes_are_shown_and_the_time_of_the_change(self, sqs: Sqs, queue: str, clock: FakeClock) -> None:
        created = attributes(sqs, queue, "CreatedTimestamp")
        clock.advance(7)
        given = {
            "VisibilityTimeout": "0",
            "MaximumMessageSize": "1024",
            "MessageRetentionPeriod": "60",
            "DelaySeconds": "900",
            "ReceiveMessageWaitTimeSeconds": "20",
            "Policy": '{"Version": "2012-10-17"}',
            "SqsManagedSseEnabled": "false",
        }
        assert sqs("SetQueueAttributes", QueueUrl=queue, Attributes=given) == {}
        found = attributes(sqs, queue)
        assert given.items() <= found.items() and created.items() <= found.items()
        assert int(found["LastModifiedTimestamp"]) == int(found["CreatedTimestamp"]) + 7

    def test_the_counters_are_exact_after_each_call(self, sqs: Sqs, queue: str) -> None:
        def counts() -> tuple[str, ...]:
            found = attributes(sqs, queue, *COUNTERS)
            return tuple(found[name] for name in COUNTERS)

        sqs("SendMessage", QueueUrl=queue, MessageBody="1")
        sqs("SendMessage", QueueUrl=queue, MessageBody="2")
        sqs("SendMessage", QueueUrl=queue, MessageBody="3", DelaySeconds=5)
        assert counts() == ("2", "0", "1")
        (message,) = sqs("ReceiveMessage", QueueUrl=queue)["Messages"]
        assert counts() == ("1", "1", "1")
        sqs("DeleteMessage", QueueUrl=queue, ReceiptHandle=message["ReceiptHandle"])
        assert counts() == ("1", "0", "1")

    def test_encryption_is_kept_and_shown_and_there_is_one_kind_of_it(self, sqs: Sqs, queue: str) -> None:
        names = ("KmsMasterKeyId", "KmsDataKeyReusePeriodSeconds", "SqsManagedSseEnabled")
        sqs("SetQueueAttributes", QueueUrl=queue, Attributes={"KmsMasterKeyId": "key"})
        assert attributes(sqs, queue, *names) == dict(zip(names, ("key", "300", "false"), strict=True))
        sqs("SetQueueAttributes", QueueUrl=queue, Attributes={"KmsDataKeyReusePeriodSeconds": "6000"})
        assert attributes(sqs, queue, *names) == dict(zip(names, ("key", "6000", "false"), strict=True))
        fault = refused(sqs, "SetQueueAttributes", QueueUrl=queue, Attributes={"SqsManagedSseEnabled": "true"})
        assert fault.code == "InvalidAttributeName" and "one type of server-side encryption" in fault.text
        sqs("SetQueueAttributes", QueueUrl=queue, Attributes={"KmsMasterKeyId": "", "SqsManagedSseEnabled": "true"})
        assert attributes(sqs, queue, *names) == {"SqsManagedSseEnabled": "true"}

    def test_an_empty_text_removes_a_policy(self, sqs: Sqs, queue: str) -> None:
        dead = sqs("CreateQueue", QueueName="dead")["QueueUrl"]
        given = {
            "Policy": '{"Version": "2012-10-17"}',
            "RedrivePolicy": redrive(arn("dead")),
            "RedriveAllowPolicy": '{"redrivePermission":"denyAll"}',
        }
        sqs("SetQueueAttributes", QueueUrl=queue, Attributes=given)
        assert attributes(sqs, queue, *given).keys() == given.keys()
        sqs("SetQueueAttributes", QueueUrl=queue, Attributes=dict.fromkeys(given, ""))
        assert attributes(sqs, queue, *given) == {}
        assert sqs("ListDeadLetterSourceQueues", QueueUrl=dead) == {}

    def test_a_fifo_queue_is_one_with_groups_and_knows_its_messages_for_five_minutes(self, sqs: Sqs, broker: Broker) -> None:
        if not broker.store.groups:
            fault = refused(sqs, "CreateQueue", QueueName="orders.fifo", Attributes={"FifoQueue": "true"})
            assert fault.code == "AWS.SimpleQueueService.UnsupportedOperation"
            assert "cannot keep ordered groups" in fault.text
            return
        queue = sqs("CreateQueue", QueueName="orders.fifo", Attributes={"FifoQueue": "True"})["QueueUrl"]
        settings = broker["orders.fifo"].settings
        assert (settings.groups, settings.deduplicate) == (True, 300)
        given = {
            "FifoQueue": "true",
            "ContentBasedDeduplication": "false",
            "DeduplicationScope": "queue",
            "FifoThroughputLimit": "perQueue",
        }
        assert given.items() <= attributes(sqs, queue).items()
        high = {"DeduplicationScope": "messageGroup", "FifoThroughputLimit": "perMessageGroupId", "FifoQueue": "true"}
        sqs("SetQueueAttributes", QueueUrl=queue, Attributes={**high, "ContentBasedDeduplication": "true"})
        assert {**high, "ContentBasedDeduplication": "true"}.items() <= attributes(sqs, queue).items()
        assert sqs("CreateQueue", QueueName="orders.fifo", Attributes=high)["QueueUrl"] == queue

    # dead letter queues

    def test_the_count_of_a_redrive_policy_comes_back_as_a_number(self, sqs: Sqs, queue: str) -> None:
        sqs("CreateQueue", QueueName="dead")
        for count in (5, "5"):
            sqs("SetQueueAttributes", QueueUrl=queue, Attributes={"RedrivePolicy": redrive(arn("dead"), count)})
            shown = attributes(sqs, queue, "RedrivePolicy")["RedrivePolicy"]
            assert shown == f'{{"deadLetterTargetArn":"{arn("dead")}","maxReceiveCount":5}}'

    def test_the_sources_of_a_dead_letter_queue_are_listed_in_pages(self, sqs: Sqs) -> None:
        dead = sqs("CreateQueue", QueueName="dead")["QueueUrl"]
        urls = [
            sqs("CreateQueue", QueueName=name, Attributes={"RedrivePolicy": redrive(arn("dead"))})["QueueUrl"] for name in "abc"
        ]
        assert sqs("ListDeadLetterSourceQueues", QueueUrl=dead)["queueUrls"] == urls
        first = sqs("ListDeadLetterSourceQueues", QueueUrl=dead, MaxResults=2)
        assert first["queueUrls"] == urls[:2]
        rest = sqs("ListDeadLetterSourceQueues", QueueUrl=dead, MaxResults=2, NextToken=first["NextToken"])
        assert rest == {"queueUrls": urls[2:]}

    # tags and permissions

    def test_tags_are_kept_overwritten_and_removed(self, sqs: Sqs) -> None:
        queue = sqs("CreateQueue", QueueName="orders", tags={"a": "1", "é": ""})["QueueUrl"]
        assert sqs("ListQueueTags", QueueUrl=queue) == {"Tags": {"a": "1", "é": ""}}
        sqs("TagQueue", QueueUrl=queue, Tags={"a": "2", "A": "3"})
        assert sqs("ListQueueTags", QueueUrl=queue)["Tags"] == {"a": "2", "A": "3", "é": ""}
        sqs("UntagQueue", QueueUrl=queue, TagKeys=["a", "é", "none"])
        assert sqs("ListQueueTags", QueueUrl=queue)["Tags"] == {"A": "3"}
        sqs("UntagQueue", QueueUrl=queue, TagKeys=["A"])
        assert sqs("ListQueueTags", QueueUrl=queue) == {}

    def test_a_queue_has_50_tags_at_most(self, sqs: Sqs, queue: str) -> None:
        sqs("TagQueue", QueueUrl=queue, Tags={str(number): "x" for number in range(50)})
        sqs("TagQueue", QueueUrl=queue, Tags={"49": "y"})
        assert refused(sqs, "TagQueue", QueueUrl=queue, Tags={"50": "x"}).code == "InvalidParameterValue"
        assert len(sqs("ListQueueTags", QueueUrl=queue)["Tags"]) == 50
        assert refused(sqs, "TagQueue", QueueUrl=queue, Tags={"k" * 129: "x"}).code == "InvalidParameterValue"
        assert refused(sqs, "TagQueue", QueueUrl=queue, Tags={"1": "x" * 257}).code == "InvalidParameterValue"

    def test_permissions_edit_the_policy(self, sqs: Sqs, queue: str) -> None:
        def policy() -> Any:
            found = attributes(sqs, queue, "Policy")
            return json.loads(found["Policy"]) if found else None

        first = {"Label": "first", "AWSAccountIds": ["111111111111", "222222222222"], "Actions": ["ReceiveMessage"]}
        sqs("AddPermission", QueueUrl=queue, **first)
        root = "arn:aws:iam::111111111111:root"
        statement = {
            "Sid": "first",
            "Effect": "Allow",
            "Principal": {"AWS": [root, "arn:aws:iam::222222222222:root"]},
            "Action": "SQS:ReceiveMessage",
            "Resource": arn("orders"),
        }
        own = f"{arn('orders')}/SQSDefaultPolicy"
        assert policy() == {"Version": "2008-10-17", "Id": own, "Statement": [statement]}
        fault = refused(sqs, "AddPermission", QueueUrl=queue, **first)
        assert fault.text == "Value first for parameter Label is invalid. Reason: Already exists."
        actions = ["SendMessage", "*"]
        sqs("AddPermission", QueueUrl=queue, Label="second", AWSAccountIds=["111111111111"], Actions=actions)
        assert policy()["Statement"][1]["Principal"] == {"AWS": root}
        assert policy()["Statement"][1]["Action"] == ["SQS:SendMessage", "SQS:*"]
        sqs("RemovePermission", QueueUrl=queue, Label="first")
        assert [statement["Sid"] for statement in policy()["Statement"]] == ["second"]
        sqs("RemovePermission", QueueUrl=queue, Label="second")
        assert policy() is None
        fault = refused(sqs, "RemovePermission", QueueUrl=queue, Label="second")
        assert fault.text == "Value second for parameter Label is invalid. Reason: can't find label."

    # other dialects

    def test_a_queue_of_another_dialect_has_the_defaults_and_keeps_its_labels(
        self, http: Http, sqs: Sqs, broker: Broker
    ) -> None:
        http("PUT", "/queues/orders", {"retention_timeout": 3600, "visibility_timeout": 7, "message_delay": 2})
        http("PUT", "/queues/" + quote("orders not for SQS"), {"retention_timeout": 3600, "visibility_timeout": 7})
        (queue,) = sqs("ListQueues", QueueNamePrefix="orders")["QueueUrls"]
        shown = {
            "VisibilityTimeout": "7",
            "DelaySeconds": "2",
            "MessageRetentionPeriod": "3600",
            "MaximumMessageSize": "1048576",
        }
        assert shown.items() <= attributes(sqs, queue).items()
        sqs("TagQueue", QueueUrl=queue, Tags={"team": "blue"})
        sqs("SetQueueAttributes", QueueUrl=queue, Attributes={"ReceiveMessageWaitTimeSeconds": "3"})
        assert http("POST", "/queues/orders", {"retention_timeout": 60, "visibility_timeout": 8}).status == 200
        found = attributes(sqs, queue)
        assert (found["VisibilityTimeout"], found["ReceiveMessageWaitTimeSeconds"]) == ("8", "3")
        assert sqs("ListQueueTags", QueueUrl=queue) == {"Tags": {"team": "blue"}}
        assert broker["orders"].settings.retention == 60
        broker["orders"].update(labels={"sqs.MaximumMessageSize": "much", "sqs.CreatedTimestamp": "long ago"})
        found = attributes(sqs, queue)
        assert (found["MaximumMessageSize"], found["CreatedTimestamp"]) == ("1048576", "0")
