"""Many clients that send whatever they like, for a few seconds (PENSTOCK_LONG=1: five minutes): no traceback in the log, memory
within its limit, nothing stuck, and nothing that was answered is lost."""

from __future__ import annotations

import os
import random
import re
import socket
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Thread

from test_serve import serving
from test_server_wire import MALFORMED

import penstock
from penstock.testing.http import Http
from penstock.testing.serving import dial, until

SECONDS = 300 if os.environ.get("PENSTOCK_LONG") else 3
SEED = int(os.environ.get("PENSTOCK_SEED") or random.SystemRandom().randrange(10**6))
MEBI = 1024 * 1024
BUDGET = 48 * MEBI
CLIENTS = 4
HEAD = b"HTTP/1.1\r\nHost: localhost\r\n"


SQS = [
    b'SendMessage {"QueueUrl": "q", "MessageBody": "", "MessageAttributes": {"a": {"DataType": "Number", "StringValue": "1"}}}',
    b'SendMessageBatch {"QueueUrl": "q", "Entries": [{"Id": "1", "MessageBody": "x"}, {"Id": "2", "MessageBody": "y"}]}',
    b'ReceiveMessage {"QueueUrl": "q", "MaxNumberOfMessages": 10, "WaitTimeSeconds": 2, "AttributeNames": ["All"]}',
    b'DeleteMessageBatch {"QueueUrl": "q", "Entries": [{"Id": "1", "ReceiptHandle": "x"}]}',
    b'CreateQueue {"QueueName": "s.fifo", "Attributes": {"FifoQueue": "true", "RedrivePolicy": "{}"}, "tags": {"a": "b"}}',
    b'GetQueueAttributes {"QueueUrl": "q", "AttributeNames": ["All"]}',
    b"Action=SendMessage&QueueUrl=q&MessageBody=x&MessageAttribute.1.Name=a&MessageAttribute.1.Value.DataType=Binary"
    b"&MessageAttribute.1.Value.BinaryValue=AA==&Version=2012-11-05",
    b"Action=SetQueueAttributes&QueueUrl=q&Attribute.1.Name=VisibilityTimeout&Attribute.1.Value=1",
]


def sqs(chance: random.Random) -> bytes:
    """A request in one of SQS's protocols, perhaps with a signature."""
    operation, _, body = chance.choice(SQS).partition(b" ")
    kind = b"X-Amz-Target: AmazonSQS.%b" % operation if body else b"Content-Type: application/x-www-form-urlencoded"
    body = body or operation
    signed = b"Authorization: AWS4-HMAC-SHA256 Credential=a/20261118/b/sqs/aws4_request, SignedHeaders=host, Signature=0\r\n"
    kind += b"\r\n" + chance.choice([b"", signed])
    return b"POST / %b%bContent-Length: %d\r\n\r\n%b" % (HEAD, kind, len(body), body)


def good(chance: random.Random) -> bytes:
    if chance.random() < 0.4:
        return sqs(chance)
    size = chance.choice([0, 1, 10, 100, 1000, 1000, 100_000, 1_500_000])
    number = b"%d" % chance.choice([1, 2, 16, 999])
    return chance.choice(
        [
            b"POST /messages/q %bContent-Length: %d\r\n\r\n%b" % (HEAD, size, b"x" * size),
            b"POST /q/messages %bContent-Length: %d\r\nExpect: 100-continue\r\n\r\n%b" % (HEAD, size, b"x" * size),
            b"GET /messages/q %bX-MQS-MAX-MESSAGES: %b\r\n\r\n" % (HEAD, number),
            b"GET /messages/q %bX-MQS-MAX-WAIT-TIME: 2\r\n\r\n" % HEAD,
            b"GET /messages/empty %bX-MQS-MAX-WAIT-TIME: 2\r\n\r\n" % HEAD,
            b"GET /health %b\r\n" % HEAD,
            b"GET /metrics %b\r\n" % HEAD,
            b"GET /queues/%b %b\r\n" % (b"n" * chance.randrange(900), HEAD),
            b"POST /penstock/queues/q/receive %bContent-Length: 29\r\n\r\n" % HEAD + b'{"arguments": {"limit": 100}}',
            b"POST /penstock/queues/q/purge %bContent-Length: 17\r\n\r\n" % HEAD + b'{"arguments": {}}',
            b"HEAD /queues %bConnection: %b\r\n\r\n" % (HEAD, chance.choice([b"close", b"keep-alive", b"upgrade"])),
        ]
    )


def chunks(chance: random.Random) -> bytes:
    count, size = chance.choice([(3, 7), (9, 90), (2000, 2), (20, 65536), (120_000, 1)])
    return b"POST /messages/q %bTransfer-Encoding: chunked\r\n\r\n" % HEAD + b"%x\r\n%b\r\n" % (size, b"y" * size) * count


def mutated(chance: random.Random) -> bytes:
    data = bytearray(good(chance)[:3000])
    for _ in range(chance.randrange(1, 6)):
        at = chance.randrange(len(data) or 1)
        data[at : at + chance.choice([0, 1, 1, 5])] = chance.choice(
            [b"", b"\r\n", b"\0", b"\xff", b":", b" ", b"0", b"HTTP/1.1", data[at : at + 9]]
        )
    return bytes(data)


PIECES: list[Callable[[random.Random], bytes]] = [
    good,
    good,
    good,
    mutated,
    lambda chance: chance.choice(list(MALFORMED.values())),
    lambda chance: chance.randbytes(chance.choice([1, 50, 5000])),
    lambda chance: good(chance)[: chance.randrange(300)],
    lambda chance: b"".join(good(chance)[:200] for _ in range(50)),
    chunks,
    lambda chance: b"GET /health %b\r\n" % HEAD * chance.choice([2, 50, 2000]),
    lambda chance: b"GET /x %bX: " % HEAD + b"x" * chance.choice([5000, 500_000]),
]


def play(url: str, seed: str, end: float) -> None:
    chance = random.Random(seed)
    while time.monotonic() < end:
        with suppress(OSError), dial(url) as client:
            client.settimeout(1)
            if chance.random() < 0.3:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            for _ in range(chance.randrange(1, 6)):
                data = chance.choice(PIECES)(chance)
                cut = chance.randrange(len(data) + 1)
                for piece in (data[:cut], data[cut:]) if chance.random() < 0.5 else (data,):
                    client.sendall(piece)
                    if chance.random() < 0.2:
                        time.sleep(chance.random() / 20)
                what = chance.random()
                if what < 0.5:
                    with suppress(TimeoutError):
                        client.settimeout(chance.choice([0.01, 0.2]))
                        client.recv(chance.choice([1, 65536]))
                    client.settimeout(1)
                elif what < 0.6:
                    client.shutdown(socket.SHUT_WR)
                elif what < 0.7:
                    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    break
            if chance.random() < 0.05:
                time.sleep(chance.random())


def memory(pid: int) -> int:
    """The most that the process has had so far."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found
    return int(found[1]) * 1024


def metric(url: str, name: str) -> float:
    try:
        text = Http(url)("GET", "/metrics").body.decode()
    except OSError:  # on a busy machine, this client too can be too slow
        return float("inf")
    found = re.search(rf"^penstock_{name} (\S+)$", text, re.MULTILINE)
    return float(found[1]) if found else float("inf")


def test_clients_that_send_anything_break_nothing(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/queue.db"
    with penstock.open(store) as broker:
        for name in ("q", "empty", "kept"):
            broker.create(name, visibility=1)
    flags = ["--max-memory", str(BUDGET), "--read-timeout", "1", "--idle-timeout", "2", "--request-timeout", "5"]
    with serving(store, *flags, "--access-log", "off") as (process, url):
        lines: list[str] = []
        reader = Thread(target=lambda: lines.extend(process.stderr or []))
        reader.start()
        end = time.monotonic() + SECONDS
        players = [Thread(target=play, args=(url, f"{SEED}-{number}", end)) for number in range(CLIENTS)]
        for player in players:
            player.start()
        http, heard = Http(url), 0
        while time.monotonic() < end:  # a client that behaves is served all the while
            with suppress(OSError):
                answer = http("POST", "/messages/kept", b"x")
                assert answer.status in (201, 503), answer
                heard += answer.status == 201
        for player in players:
            player.join()
        until(lambda: metric(url, "connections") <= 2)
        until(lambda: metric(url, "held_bytes") < 32768)  # this request and its connection
        until(lambda: metric(url, "resting_polls") == 0)
        until(lambda: metric(url, "pending_operations") <= 1)
        assert memory(process.pid) < BUDGET + 64 * MEBI, f"seed {SEED}"
        process.terminate()
        assert process.wait(60) == 0
        reader.join()
        assert not lines, "".join([f"seed {SEED}\n", *lines[:30]])
    with penstock.open(store) as broker:
        assert broker["kept"].stats().messages >= heard
