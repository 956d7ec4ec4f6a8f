"""aiobotocore: many calls at once on one event loop, and a long poll that its caller gives up."""

from __future__ import annotations

import asyncio
from typing import Any

from aiobotocore.session import get_session
from expecting import ACCESS, PREFIX, expect


async def check(sqs: Any) -> None:
    url = (await sqs.create_queue(QueueName=f"{PREFIX}aio", Attributes={"VisibilityTimeout": "3600"}))["QueueUrl"]
    sent = await asyncio.gather(*(sqs.send_message(QueueUrl=url, MessageBody=f"m{number}") for number in range(50)))
    expect("different ids", len({answer["MessageId"] for answer in sent}), 50)

    async def consume() -> list[str]:
        found = []
        while got := (await sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10)).get("Messages"):
            handles = [{"Id": str(each), "ReceiptHandle": message["ReceiptHandle"]} for each, message in enumerate(got)]
            answer = await sqs.delete_message_batch(QueueUrl=url, Entries=handles)
            expect("deleted", len(answer["Successful"]), len(handles))
            found += [message["Body"] for message in got]
        return found

    found = [body for each in await asyncio.gather(*(consume() for _ in range(4))) for body in each]
    expect("each message once", sorted(found), sorted(f"m{number}" for number in range(50)))
    await hang_up(sqs, url)


async def hang_up(sqs: Any, url: str) -> None:
    """A poll whose caller has gone takes no message with it."""
    for _ in range(3):
        poll = asyncio.create_task(sqs.receive_message(QueueUrl=url, WaitTimeSeconds=20))
        await asyncio.sleep(0.5)  # long enough for the request to be on its way; it may come later as well
        poll.cancel()
        await asyncio.gather(poll, return_exceptions=True)
    await sqs.send_message(QueueUrl=url, MessageBody="kept")
    got = (await sqs.receive_message(QueueUrl=url, WaitTimeSeconds=20))["Messages"]
    expect("the message after polls that hung up", [message["Body"] for message in got], ["kept"])


async def main() -> None:
    async with get_session().create_client("sqs", **ACCESS) as sqs:
        await check(sqs)


asyncio.run(main())
