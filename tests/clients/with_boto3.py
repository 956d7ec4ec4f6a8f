"""boto3, whichever protocol its version speaks: JSON since 1.28, Query before."""

from __future__ import annotations

import hashlib
import json
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import boto3
from botocore.exceptions import ClientError
from expecting import ACCESS, PREFIX, URL, expect

HOUR = "3600"
AWKWARD = "line\r\nline\ttab <&>'\" 100% a+b é 😀 \x7f"


def client() -> Any:
    return boto3.session.Session().client("sqs", **ACCESS)


sqs = client()


def queue(name: str, **attributes: str) -> str:
    url = sqs.create_queue(QueueName=f"{PREFIX}{name}", Attributes={"VisibilityTimeout": HOUR, **attributes})["QueueUrl"]
    return str(url)


def receive(url: str, **wanted: Any) -> list[dict[str, Any]]:
    given = {"MaxNumberOfMessages": 10, "AttributeNames": ["All"], "MessageAttributeNames": ["All"], **wanted}
    return list(sqs.receive_message(QueueUrl=url, **given).get("Messages", []))


def bodies(messages: list[dict[str, Any]]) -> list[str]:
    return [message["Body"] for message in messages]


def attribute(url: str, name: str) -> str:
    return str(sqs.get_queue_attributes(QueueUrl=url, AttributeNames=[name])["Attributes"][name])


def refused(what: str, code: str, call: Any, **given: Any) -> ClientError:
    try:
        call(**given)
    except ClientError as error:
        expect(f"the code of {what}", error.response["Error"]["Code"], code)
        return error
    sys.exit(f"{what} was not refused")


def queues() -> None:
    url = queue("queues")
    expect("the URL", url, f"{URL}/000000000000/{PREFIX}queues")
    expect("a second creation", sqs.create_queue(QueueName=f"{PREFIX}queues")["QueueUrl"], url)
    expect("get_queue_url", sqs.get_queue_url(QueueName=f"{PREFIX}queues")["QueueUrl"], url)
    expect("list_queues", sqs.list_queues(QueueNamePrefix=f"{PREFIX}queues")["QueueUrls"], [url])
    expect("an empty list", sqs.list_queues(QueueNamePrefix=f"{PREFIX}nothing").get("QueueUrls"), None)
    other = {"QueueName": f"{PREFIX}queues", "Attributes": {"VisibilityTimeout": "1"}}
    refused("another value", "QueueAlreadyExists", sqs.create_queue, **other)
    missing = "AWS.SimpleQueueService.NonExistentQueue"
    error = refused("a queue that is not there", missing, sqs.get_queue_url, QueueName=f"{PREFIX}nothing")
    expect("the class of the error", isinstance(error, sqs.exceptions.QueueDoesNotExist))
    sqs.set_queue_attributes(QueueUrl=url, Attributes={"VisibilityTimeout": "7", "DelaySeconds": "1"})
    found = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    expect("what was set", (found["VisibilityTimeout"], found["DelaySeconds"]), ("7", "1"))
    expect("the ARN", found["QueueArn"], f"arn:aws:sqs:us-east-1:000000000000:{PREFIX}queues")
    sqs.tag_queue(QueueUrl=url, Tags={"team": "orders", "cost": "1 & 2"})
    sqs.untag_queue(QueueUrl=url, TagKeys=["team"])
    expect("tags", sqs.list_queue_tags(QueueUrl=url)["Tags"], {"cost": "1 & 2"})
    sqs.delete_queue(QueueUrl=url)
    refused("a deleted queue", missing, sqs.send_message, QueueUrl=url, MessageBody="x")


def pages() -> None:
    urls = sorted(queue(f"pages-{number}") for number in range(5))
    pages = sqs.get_paginator("list_queues").paginate(QueueNamePrefix=f"{PREFIX}pages-", PaginationConfig={"PageSize": 2})
    found = [page["QueueUrls"] for page in pages]
    expect("the sizes of the pages", [len(page) for page in found], [2, 2, 1])
    expect("all pages", sorted(url for page in found for url in page), urls)


def messages() -> None:
    url = queue("messages")
    given: dict[str, Any] = {
        "text": {"DataType": "String", "StringValue": AWKWARD},
        "number": {"DataType": "Number.int", "StringValue": "42"},
        "bytes": {"DataType": "Binary", "BinaryValue": bytes(range(256))},
    }
    sent = sqs.send_message(QueueUrl=url, MessageBody=AWKWARD, MessageAttributes=given)
    expect("the MD5 of the body", sent["MD5OfMessageBody"], hashlib.md5(AWKWARD.encode()).hexdigest())
    (message,) = receive(url)
    expect("the body", message["Body"], AWKWARD)
    expect("the id", message["MessageId"], sent["MessageId"])
    expect("the attributes", message["MessageAttributes"], given)
    expect("their MD5", message["MD5OfMessageAttributes"], sent["MD5OfMessageAttributes"])
    expect("the count", message["Attributes"]["ApproximateReceiveCount"], "1")
    expect("in flight", attribute(url, "ApproximateNumberOfMessagesNotVisible"), "1")
    sqs.change_message_visibility(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"], VisibilityTimeout=0)
    (again,) = receive(url, MessageAttributeNames=["num.*", "number"])
    expect("the count of the second", again["Attributes"]["ApproximateReceiveCount"], "2")
    expect("the attributes asked for", again["MessageAttributes"], {"number": given["number"]})
    sqs.delete_message(QueueUrl=url, ReceiptHandle=again["ReceiptHandle"])
    expect("nothing is left", attribute(url, "ApproximateNumberOfMessagesNotVisible"), "0")
    refused("a wrong receipt", "ReceiptHandleIsInvalid", sqs.delete_message, QueueUrl=url, ReceiptHandle="wrong")


def batches() -> None:
    url = queue("batches")
    entries = [{"Id": str(number), "MessageBody": f"m{number}"} for number in range(9)]
    answer = sqs.send_message_batch(QueueUrl=url, Entries=[*entries, {"Id": "bad", "MessageBody": "x", "DelaySeconds": 901}])
    expect("the successful", sorted(one["Id"] for one in answer["Successful"]), [str(number) for number in range(9)])
    expect("the failed", [(one["Id"], one["SenderFault"]) for one in answer["Failed"]], [("bad", True)])
    got: list[dict[str, Any]] = []
    while len(got) < 9:
        got += receive(url)
    expect("the bodies", sorted(bodies(got)), [f"m{number}" for number in range(9)])
    handles = [{"Id": str(number), "ReceiptHandle": message["ReceiptHandle"]} for number, message in enumerate(got)]
    hidden = [{**handle, "VisibilityTimeout": 60} for handle in handles]
    changed = sqs.change_message_visibility_batch(QueueUrl=url, Entries=hidden)
    expect("the changed", (len(changed["Successful"]), changed.get("Failed")), (9, None))
    deleted = sqs.delete_message_batch(QueueUrl=url, Entries=[*handles, {"Id": "bad", "ReceiptHandle": "wrong"}])
    expect("the deleted", (len(deleted["Successful"]), [one["Id"] for one in deleted["Failed"]]), (9, ["bad"]))
    twice = {"QueueUrl": url, "Entries": [entries[0], entries[0]]}
    refused("an id that comes twice", "AWS.SimpleQueueService.BatchEntryIdsNotDistinct", sqs.send_message_batch, **twice)


def large() -> None:
    url = queue("large")
    body = "é%&<" * (1024 * 1024 // 5)
    sqs.send_message(QueueUrl=url, MessageBody=body)
    expect("a message of 1 MiB", bodies(receive(url)) == [body])


def waiting() -> None:
    url = queue("waiting")
    with ThreadPoolExecutor(1) as pool:
        poll = pool.submit(client().receive_message, QueueUrl=url, WaitTimeSeconds=20)
        sqs.send_message(QueueUrl=url, MessageBody="awaited", DelaySeconds=1)
        expect("a long poll", bodies(poll.result().get("Messages", [])), ["awaited"])


def fifo() -> None:
    url = queue("ordered.fifo", FifoQueue="true", ContentBasedDeduplication="true")
    for number in range(4):
        for _ in range(2):  # the second is a duplicate
            sqs.send_message(QueueUrl=url, MessageBody=f"a{number}", MessageGroupId="a")
    sqs.send_message(QueueUrl=url, MessageBody="b0", MessageGroupId="b", MessageDeduplicationId="1")
    first = receive(url, MaxNumberOfMessages=1)
    expect("the oldest", bodies(first), ["a0"])
    expect("the group is locked", bodies(receive(url)), ["b0"])
    rest: list[dict[str, Any]] = []
    held = first
    while held:
        for message in held:
            sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
        rest += (held := receive(url))
    expect("the rest in order", bodies(rest), ["a1", "a2", "a3"])
    numbers = [message["Attributes"]["SequenceNumber"] for message in first + rest]
    expect("sequence numbers rise", numbers, sorted(set(numbers)))
    expect("the group", {message["Attributes"]["MessageGroupId"] for message in rest}, {"a"})


def dead_letters() -> None:
    dead = queue("dead")
    policy = {"deadLetterTargetArn": attribute(dead, "QueueArn"), "maxReceiveCount": 1}
    url = queue("alive", RedrivePolicy=json.dumps(policy))
    id = sqs.send_message(QueueUrl=url, MessageBody="poison")["MessageId"]
    (message,) = receive(url)
    sqs.change_message_visibility(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"], VisibilityTimeout=0)
    expect("the source is empty", receive(url), [])
    (buried,) = receive(dead, WaitTimeSeconds=5)
    expect("the id of the dead letter", buried["MessageId"], id)
    expect("its source", buried["Attributes"]["DeadLetterQueueSourceArn"], attribute(url, "QueueArn"))
    expect("the sources", sqs.list_dead_letter_source_queues(QueueUrl=dead)["queueUrls"], [url])


def consumers() -> None:
    """Several clients send, and several receive, at once; each message comes once."""
    url = queue("consumers")

    def produce(worker: int) -> None:
        mine = client()
        for batch in range(5):
            entries = [{"Id": str(each), "MessageBody": f"{worker}-{batch}-{each}"} for each in range(10)]
            expect("a batch", len(mine.send_message_batch(QueueUrl=url, Entries=entries)["Successful"]), 10)

    def consume(_: int) -> list[str]:
        mine, found = client(), []
        while True:
            got = mine.receive_message(QueueUrl=url, MaxNumberOfMessages=10, WaitTimeSeconds=2).get("Messages", [])
            if not got and attribute(url, "ApproximateNumberOfMessages") == "0" and all(job.done() for job in producing):
                return found
            handles = [{"Id": str(each), "ReceiptHandle": message["ReceiptHandle"]} for each, message in enumerate(got)]
            if handles:
                expect("deleted", len(mine.delete_message_batch(QueueUrl=url, Entries=handles)["Successful"]), len(handles))
            found += bodies(got)

    with ThreadPoolExecutor(8) as pool:
        producing = [pool.submit(produce, worker) for worker in range(4)]
        found = [body for each in pool.map(consume, range(4)) for body in each]
        for job in producing:
            job.result()
    expect("each message once", sorted(found), sorted(f"{w}-{b}-{e}" for w in range(4) for b in range(5) for e in range(10)))
    expect("nothing is left", attribute(url, "ApproximateNumberOfMessagesNotVisible"), "0")


def resources() -> None:
    """The older way to use boto3: objects instead of calls."""
    sqs.create_queue(QueueName=f"{PREFIX}resource")
    found = boto3.resource("sqs", **ACCESS).get_queue_by_name(QueueName=f"{PREFIX}resource")
    found.send_message(MessageBody="hello", MessageAttributes={"n": {"DataType": "Number", "StringValue": "1"}})
    (message,) = found.receive_messages(MessageAttributeNames=["All"], WaitTimeSeconds=5)
    expect("the message", (message.body, message.message_attributes["n"]["StringValue"]), ("hello", "1"))
    message.delete()
    found.purge()
    found.delete()


if __name__ == "__main__":
    for part in (queues, pages, messages, batches, large, waiting, fifo, dead_letters, consumers, resources):
        print(part.__name__, flush=True)
        part()
