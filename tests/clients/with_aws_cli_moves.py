"""The aws command line: tasks that move messages, to their end and cancelled."""

from __future__ import annotations

import json

from aws_cli import attribute, aws, create, done
from expecting import expect, until

dead, elsewhere = create("cli-dead"), create("cli-elsewhere")
source, target = attribute(dead, "QueueArn"), attribute(elsewhere, "QueueArn")
create("cli-alive", RedrivePolicy=json.dumps({"deadLetterTargetArn": source, "maxReceiveCount": "1"}))


def send(letters: int) -> None:
    entries = [{"Id": str(number), "MessageBody": f"dead {number}"} for number in range(letters)]
    aws("send-message-batch", "--queue-url", dead, "--entries", json.dumps(entries))


def status() -> str:
    return str(aws("list-message-move-tasks", "--source-arn", source)["Results"][0]["Status"])


send(3)
task = aws("start-message-move-task", "--source-arn", source, "--destination-arn", target)
expect("the task has a handle", bool(task["TaskHandle"]))
until("the end of the task", lambda: status() == "COMPLETED")
expect("moved", attribute(elsewhere, "ApproximateNumberOfMessages"), "3")
for _ in range(6):
    send(10)
rate = ("--max-number-of-messages-per-second", "1")
task = aws("start-message-move-task", "--source-arn", source, "--destination-arn", target, *rate)
stopped = aws("cancel-message-move-task", "--task-handle", task["TaskHandle"])
expect("fewer than all were moved", stopped["ApproximateNumberOfMessagesMoved"] < 60)
until("the end of the cancelled task", lambda: status() == "CANCELLED")
expect(
    "operations of move tasks",
    sorted(name for name in done if "move-task" in name),
    [
        "cancel-message-move-task",
        "list-message-move-tasks",
        "start-message-move-task",
    ],
)
