"""The clients that are measured: plain requests in SQS's JSON protocol, boto3, and plain requests in the dialect mqs."""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from penstock.bench.brokers.sessions.base import LEASE
from penstock.bench.brokers.sessions.http_connection import HttpConnection, Unexpected
from penstock.bench.brokers.sessions.penstock_http import BOUNDARY, MULTIPART, PART, SETTINGS

BATCH = 10
"""The most that a call of SQS takes."""
KEY, REGION = "bench", "us-east-1"
HEADERS = (
    b"X-Amz-Target: AmazonSQS.%b\r\nContent-Type: application/x-amz-json-1.0\r\n"
    b"Authorization: AWS4-HMAC-SHA256 Credential=%b/20260101/%b/sqs/aws4_request, SignedHeaders=host, Signature=0\r\n"
)
"""Of a request whose signature nobody checks."""


class Session(ABC):
    """One connection to one queue. A session that blocks (``threaded``) is given a thread of its own."""

    threaded = False

    @abstractmethod
    async def create(self) -> None: ...

    @abstractmethod
    async def drop(self) -> None: ...

    @abstractmethod
    async def send(self, bodies: Sequence[str]) -> None: ...

    @abstractmethod
    async def receive(self) -> list[str]:
        """Receive up to ten messages without waiting; returns what `delete` needs."""

    @abstractmethod
    async def delete(self, handles: Sequence[str]) -> None: ...

    @abstractmethod
    async def close(self) -> None: ...


def entries(name: str, values: Sequence[str]) -> list[dict[str, str]]:
    return [{"Id": str(number), name: value} for number, value in enumerate(values)]


class JsonSession(Session):
    def __init__(self, connection: HttpConnection, queue: str) -> None:
        self._connection = connection
        self._queue = queue
        self._url = f"http://127.0.0.1/000000000000/{queue}"

    @classmethod
    async def open(cls, address: str, queue: str) -> JsonSession:
        return cls(await HttpConnection.open(address), queue)

    async def _ask(self, operation: bytes, **given: Any) -> dict[str, Any]:
        headers = HEADERS % (operation, KEY.encode(), REGION.encode())
        answer = await self._connection.ask(b"POST", b"/", 200, headers=headers, body=json.dumps(given).encode())
        found: dict[str, Any] = json.loads(answer.body or b"{}")
        if found.get("Failed"):
            raise Unexpected(f"{operation!r}: {found['Failed']!r:.300}")
        return found

    async def create(self) -> None:
        attributes = {"VisibilityTimeout": str(LEASE)}
        self._url = (await self._ask(b"CreateQueue", QueueName=self._queue, Attributes=attributes))["QueueUrl"]

    async def drop(self) -> None:
        await self._ask(b"DeleteQueue", QueueUrl=self._url)

    async def send(self, bodies: Sequence[str]) -> None:
        if len(bodies) == 1:
            await self._ask(b"SendMessage", QueueUrl=self._url, MessageBody=bodies[0])
        else:
            await self._ask(b"SendMessageBatch", QueueUrl=self._url, Entries=entries("MessageBody", bodies))

    async def receive(self) -> list[str]:
        found = await self._ask(b"ReceiveMessage", QueueUrl=self._url, MaxNumberOfMessages=BATCH)
        return [message["ReceiptHandle"] for message in found.get("Messages", ())]

    async def delete(self, handles: Sequence[str]) -> None:
        await self._ask(b"DeleteMessageBatch", QueueUrl=self._url, Entries=entries("ReceiptHandle", handles))

    async def close(self) -> None:
        await self._connection.close()


class BotoSession(Session):
    """boto3, a client for each thread."""

    threaded = True

    def __init__(self, client: Any, queue: str) -> None:
        self._client = client
        self._queue = queue
        self._url = f"{client.meta.endpoint_url}/000000000000/{queue}"

    @classmethod
    async def open(cls, address: str, queue: str) -> BotoSession:
        import boto3
        from botocore.config import Config

        config = Config(retries={"max_attempts": 0}, max_pool_connections=1)
        access = {"aws_access_key_id": KEY, "aws_secret_access_key": KEY, "region_name": REGION}
        return cls(boto3.client("sqs", endpoint_url=address, config=config, **access), queue)

    def _ask(self, operation: str, **given: Any) -> dict[str, Any]:
        from botocore.exceptions import ClientError

        try:
            found: dict[str, Any] = getattr(self._client, operation)(**given)
        except ClientError as error:
            raise Unexpected(str(error)) from None
        if found.get("Failed"):
            raise Unexpected(f"{operation}: {found['Failed']!r:.300}")
        return found

    async def create(self) -> None:
        attributes = {"VisibilityTimeout": str(LEASE)}
        self._url = self._ask("create_queue", QueueName=self._queue, Attributes=attributes)["QueueUrl"]

    async def drop(self) -> None:
        self._ask("delete_queue", QueueUrl=self._url)

    async def send(self, bodies: Sequence[str]) -> None:
        if len(bodies) == 1:
            self._ask("send_message", QueueUrl=self._url, MessageBody=bodies[0])
        else:
            self._ask("send_message_batch", QueueUrl=self._url, Entries=entries("MessageBody", bodies))

    async def receive(self) -> list[str]:
        found = self._ask("receive_message", QueueUrl=self._url, MaxNumberOfMessages=BATCH)
        return [message["ReceiptHandle"] for message in found.get("Messages", ())]

    async def delete(self, handles: Sequence[str]) -> None:
        self._ask("delete_message_batch", QueueUrl=self._url, Entries=entries("ReceiptHandle", handles))

    async def close(self) -> None:
        self._client.close()


class MqsSession(Session):
    """The same work in the dialect mqs, which deletes one message in each request."""

    def __init__(self, connection: HttpConnection, queue: str) -> None:
        self._connection = connection
        self._ask = connection.ask
        self._queue = queue.encode()

    @classmethod
    async def open(cls, address: str, queue: str) -> MqsSession:
        return cls(await HttpConnection.open(address), queue)

    async def create(self) -> None:
        await self._ask(b"PUT", b"/queues/" + self._queue, 201, body=SETTINGS)

    async def drop(self) -> None:
        await self._ask(b"DELETE", b"/queues/" + self._queue, 200)

    async def send(self, bodies: Sequence[str]) -> None:
        path = b"/messages/" + self._queue
        if len(bodies) == 1:
            await self._ask(b"POST", path, 201, body=bodies[0].encode())
        else:
            body = b"".join([*(PART % body.encode() for body in bodies), b"--", BOUNDARY, b"--\r\n"])
            await self._ask(b"POST", path, 201, headers=MULTIPART, body=body)

    async def receive(self) -> list[str]:
        answer = await self._ask(b"GET", b"/messages/" + self._queue, 200, 204, headers=b"X-MQS-MAX-MESSAGES: %d\r\n" % BATCH)
        if single := answer.headers.get(b"x-mqs-message-id"):
            return [single.decode()]
        return [found.decode() for found in re.findall(rb"X-MQS-MESSAGE-ID: (\S+)", answer.body)]

    async def delete(self, handles: Sequence[str]) -> None:
        for handle in handles:
            await self._ask(b"DELETE", b"/messages/" + handle.encode(), 204)

    async def close(self) -> None:
        await self._connection.close()
