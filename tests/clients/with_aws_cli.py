"""The aws command line: all operations but those of move tasks."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from aws_cli import attribute, aws, create, done
from expecting import PREFIX, URL, expect, until

ACCOUNT = "000000000000"


def receive(url: str) -> list[dict[str, Any]]:
    found = aws("receive-message", "--queue-url", url, "--max-number-of-messages", "10", "--wait-time-seconds", "1")
    return list(found.get("Messages", []))


def command() -> None:
    """The program itself, once."""
    program = Path(sys.executable).with_name("aws")
    call = [program, "sqs", "create-queue", "--queue-name", f"{PREFIX}command", "--endpoint-url", URL]
    ran = subprocess.run(call, capture_output=True, text=True, check=False)
    expect(f"the program's end ({ran.stderr})", ran.returncode, 0)
    expect("its answer", json.loads(ran.stdout)["QueueUrl"], f"{URL}/{ACCOUNT}/{PREFIX}command")


def queues() -> None:
    url = create("cli", VisibilityTimeout="60")
    expect("get-queue-url", aws("get-queue-url", "--queue-name", f"{PREFIX}cli")["QueueUrl"], url)
    expect("list-queues", aws("list-queues", "--queue-name-prefix", f"{PREFIX}cli")["QueueUrls"], [url])
    aws("set-queue-attributes", "--queue-url", url, "--attributes", "VisibilityTimeout=3600")
    expect("what was set", attribute(url, "VisibilityTimeout"), "3600")
    aws("tag-queue", "--queue-url", url, "--tags", "team=orders,stage=test")
    aws("untag-queue", "--queue-url", url, "--tag-keys", "stage")
    expect("list-queue-tags", aws("list-queue-tags", "--queue-url", url)["Tags"], {"team": "orders"})
    grant = ("--aws-account-ids", "111122223333", "--actions", "SendMessage")
    aws("add-permission", "--queue-url", url, "--label", "grant", *grant)
    (statement,) = json.loads(attribute(url, "Policy"))["Statement"]
    expect("the policy", (statement["Sid"], statement["Effect"]), ("grant", "Allow"))
    aws("remove-permission", "--queue-url", url, "--label", "grant")


def messages() -> None:
    url = f"{URL}/{ACCOUNT}/{PREFIX}cli"
    given = {"kind": {"DataType": "String", "StringValue": "order"}}
    aws("send-message", "--queue-url", url, "--message-body", "one", "--message-attributes", json.dumps(given))
    (message,) = receive(url)
    expect("the body", message["Body"], "one")
    handle = ("--queue-url", url, "--receipt-handle", message["ReceiptHandle"])
    aws("change-message-visibility", *handle, "--visibility-timeout", "60")
    aws("delete-message", *handle)
    entries = [{"Id": str(number), "MessageBody": f"m{number}"} for number in range(3)]
    sent = aws("send-message-batch", "--queue-url", url, "--entries", json.dumps(entries))
    expect("the batch", len(sent["Successful"]), 3)
    got: list[dict[str, Any]] = []
    until("all messages of the batch", lambda: got.extend(receive(url)) or len(got) == 3)
    handles = [{"Id": str(each), "ReceiptHandle": message["ReceiptHandle"]} for each, message in enumerate(got)]
    hidden = [{**handle, "VisibilityTimeout": 60} for handle in handles]
    changed = aws("change-message-visibility-batch", "--queue-url", url, "--entries", json.dumps(hidden))
    expect("the changed", len(changed["Successful"]), 3)
    deleted = aws("delete-message-batch", "--queue-url", url, "--entries", json.dumps(handles))
    expect("the deleted", len(deleted["Successful"]), 3)
    aws("send-message", "--queue-url", url, "--message-body", "rest")
    aws("purge-queue", "--queue-url", url)
    expect("a purged queue", attribute(url, "ApproximateNumberOfMessages"), "0")


def dead_letters() -> None:
    dead = create("cli-dead")
    policy = {"deadLetterTargetArn": attribute(dead, "QueueArn"), "maxReceiveCount": "1"}
    alive = create("cli-alive", RedrivePolicy=json.dumps(policy))
    expect("the sources", aws("list-dead-letter-source-queues", "--queue-url", dead)["queueUrls"], [alive])
    aws("delete-queue", "--queue-url", alive)


if __name__ == "__main__":
    for part in (command, queues, messages, dead_letters):
        print(part.__name__, flush=True)
        part()
    expect("operations", len(done), 20)
