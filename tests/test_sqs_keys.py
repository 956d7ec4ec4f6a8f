"""Keys of SQS clients: in the file, what each may do, and how a server treats those that have none."""

from __future__ import annotations

import base64
import hashlib
import json
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import sqs_clients
from sqs_signing import ID, NEW, NOW, SECRET, TOKEN, key, parse, presigned, sign
from test_serve import serving

import penstock
from penstock import BadSetting
from penstock.server import BackgroundServer, ServerSettings, read_settings
from penstock.server.auth import Guard
from penstock.server.dialects.sqs.errors import SqsError
from penstock.server.dialects.sqs.shapes import OPERATIONS
from penstock.server.http.request_response import EVERYTHING, NOBODY, Grant, Refused, Scope
from penstock.server.sqs_keys import KEY_SETTINGS, SqsKey
from penstock.testing.http import Http, HttpAnswer

# keys in the file


def settings_of(tmp_path: Path, text: str) -> ServerSettings:
    file = tmp_path / "penstock.toml"
    file.write_text(text)
    return read_settings({"port": 0, "access_log": False}, {}, file)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (f"secret = '{SECRET}'", "id is ''; it must be 3 to 128 of A-Z"),
        (f"id = 'a/b'\nsecret = '{SECRET}'", "id is 'a/b'; it must be 3 to 128 of A-Z"),
        ("id = 'AKID'", "there is no secret"),
        ("id = 'AKID'\nsecret = 'short'", "at least 16 characters"),
        (f"id = 'AKID'\nsecret = ['{SECRET}', '{NEW}', '{SECRET}x']", "there are 3 secrets"),
        (f"id = 'AKID'\nsecret = '{SECRET}'\naccount = 123456789012", "account is 123456789012; it must be 12 digits, as text"),
        (f"id = 'AKID'\nsecret = '{SECRET}'\naccount = '12'", "account is '12'; it must be 12 digits"),
        (f"id = 'AKID'\nsecret = '{SECRET}'\nsha256 = 'x'", "there is no setting 'sha256'"),
        (f"id = 'AKID'\nsecret = '{SECRET}'\nscopes = ['fly']", "there is no scope 'fly'"),
        (f"id = 'AKID'\nsecret = '{SECRET}'\n[[sqs_key]]\nid = 'AKID'\nsecret = '{SECRET}'", "several keys with the id 'AKID'"),
        (
            f"id = 'AKID'\nname = 'x'\nsecret = '{SECRET}'\n[[token]]\nname = 'x'\nmax_rate = 5\nsecret = '{TOKEN}'",
            "of the name 'x' are counted together",
        ),
    ],
)
def test_a_bad_key_is_named_and_no_secret_told(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(BadSetting) as caught:
        settings_of(tmp_path, f"[[sqs_key]]\n{text}")
    assert words in str(caught.value)
    assert SECRET not in str(caught.value)


def test_a_key_says_what_it_may_do_and_never_shows_its_secret(tmp_path: Path) -> None:
    text = f"[[sqs_key]]\nid = '123456789012'\nsecret = ['{SECRET}', '{NEW}']\nscopes = ['send']\nqueues = ['mail-*']\n"
    settings = settings_of(tmp_path, f"{text}max_rate = 5")
    for shown in (repr(settings), str(settings), repr(settings.sqs_keys[0].grant)):
        assert SECRET not in shown
        assert NEW not in shown
    grant = settings.sqs_keys[0].grant
    assert (grant.name, grant.account, grant.limits.max_rate) == ("123456789012", "123456789012", 5)
    assert grant.allows(Scope.SEND, "mail-in")
    assert not grant.allows(Scope.SEND, "other")
    assert not grant.allows(Scope.RECEIVE, "mail-in")
    assert [len(each) for each in grant.keys] == [32, 32]


def test_every_setting_of_a_key_stands_in_the_table_of_the_docs() -> None:
    page = (Path(__file__).parent.parent / "docs/sqs.md").read_text()
    for name, help in KEY_SETTINGS.items():
        assert f"| `{name}` | {help} |" in page, f"| `{name}` | {help} |"


# who comes in


def test_without_tokens_and_keys_nothing_is_verified_but_a_page_stays_out() -> None:
    guard = Guard((), "localhost")
    assert guard.grant_signed(parse(sign(secret="whatever"))) is EVERYTHING
    assert guard.grant_signed(parse(["POST / HTTP/1.1", "Host: localhost"])) is EVERYTHING
    for line in ("Origin: https://evil.example", "Sec-Fetch-Site: cross-site", "Origin: null"):
        form = ["POST / HTTP/1.1", "Host: localhost", "Content-Type: application/x-www-form-urlencoded", line]
        with pytest.raises(Refused, match="site"):
            guard.grant_signed(parse(form))
    with pytest.raises(Refused, match="not known as"):
        guard.grant_signed(parse(["POST / HTTP/1.1", "Host: evil.example"]))


def test_with_a_key_no_dialect_lets_anybody_in_without_one() -> None:
    guard = Guard((), "0.0.0.0", sqs_keys=[key()], clock=lambda: NOW)
    for headers in ({}, {"authorization": f"Bearer {SECRET}"}, {"authorization": "Bearer "}):
        with pytest.raises(Refused, match="bearer token"):
            guard.grant(headers)
    request = parse(sign())
    assert guard.grant_signed(request) is NOBODY
    assert request.prove is not None
    assert request.prove(hashlib.sha256(b"{}").hexdigest()).name == ID
    with pytest.raises(SqsError, match="missing Authentication Token"):
        guard.grant_signed(parse(["POST / HTTP/1.1", "Host: localhost"]))
    with pytest.raises(BadSetting, match="no token any more"):
        guard.replace((), ())


def test_with_tokens_alone_a_client_of_sqs_needs_one() -> None:
    guard = Guard(ServerSettings(token=TOKEN).tokens, "localhost", clock=lambda: NOW)
    head = ["POST / HTTP/1.1", "Host: localhost"]
    assert guard.grant_signed(parse([*head, f"Authorization: Bearer {TOKEN}"])).name == "token"
    with pytest.raises(SqsError, match="wants a bearer token") as caught:
        guard.grant_signed(parse([*head, f"Authorization: Bearer {TOKEN}x"]))
    assert caught.value.code == "InvalidClientTokenId"
    with pytest.raises(SqsError, match="This server knows no SQS keys") as caught:
        guard.grant_signed(parse(sign()))
    assert caught.value.code == "InvalidClientTokenId"
    with pytest.raises(SqsError, match="missing Authentication Token"):
        guard.grant_signed(parse(head))


# a real server


@pytest.fixture
def served(tmp_path: Path) -> Iterator[BackgroundServer]:
    text = f"""
        [[sqs_key]]
        id = "{ID}"
        secret = "{SECRET}"
        [[sqs_key]]
        id = "AKIDSENDER"
        name = "sender"
        secret = "{NEW}"
        scopes = ["send"]
        queues = ["mail-*"]
        [[token]]
        secret = "{TOKEN}"
        """
    settings = settings_of(tmp_path, text)
    with penstock.open("memory:") as broker, BackgroundServer(broker, settings) as server:
        yield server


def call(server: BackgroundServer, operation: str, body: bytes = b"{}", **how: Any) -> HttpAnswer:
    """A signed request in JSON."""
    host = urlsplit(server.url).netloc
    headers = {"content-type": "application/x-amz-json-1.0"}
    lines = sign(body, target=f"AmazonSQS.{operation}", at=time.time(), host=host, headers=headers, scope=SCOPE, **how)
    return send(server, lines, body)


SCOPE = "us-east-1/sqs/aws4_request"


def send(server: BackgroundServer, lines: list[str], body: bytes) -> HttpAnswer:
    method, path, _ = lines[0].split(" ")
    return Http(server.url)(method, path, body, **dict(line.split(": ", 1) for line in lines[1:]))


def test_a_signed_request_is_served_and_an_altered_one_refused(served: BackgroundServer) -> None:
    created = call(served, "CreateQueue", b'{"QueueName": "mail-in"}')
    assert created.status == 200, created.body
    url = created.json["QueueUrl"]
    lines = sign(b"{}", at=time.time(), host=urlsplit(served.url).netloc, scope=SCOPE)
    answer = send(served, lines, b'{"QueueNamePrefix": "x"}')
    assert answer.status == 403
    assert answer.json["__type"] == "com.amazon.coral.service#InvalidSignatureException"
    assert answer.headers["x-amzn-query-error"] == "SignatureDoesNotMatch;Sender"
    assert answer.headers["content-type"] == "application/x-amz-json-1.0"
    assert answer.headers["x-amzn-requestid"]
    assert send(served, lines, b"{}").json["QueueUrls"] == [url]


def test_a_pre_signed_url_is_served(served: BackgroundServer) -> None:
    assert call(served, "CreateQueue", b'{"QueueName": "mail-in"}').status == 200
    lines = presigned(time.time(), host=urlsplit(served.url).netloc)
    for _ in range(2):
        assert b"<ListQueuesResult" in send(served, lines, b"").body
    answer = send(served, [lines[0].replace("ListQueues", "PurgeQueue"), *lines[1:]], b"")
    assert (answer.status, b"<Code>SignatureDoesNotMatch</Code>" in answer.body) == (403, True)


def test_a_refusal_is_told_in_the_protocol_of_the_request(served: BackgroundServer) -> None:
    form = {"Content_Type": "application/x-www-form-urlencoded"}
    answer = Http(served.url)("POST", "/", b"Action=ListQueues&Version=2012-11-05", **form)
    assert answer.status == 403
    assert b"<Code>MissingAuthenticationToken</Code>" in answer.body
    assert answer.headers["content-type"].startswith("text/xml")
    answer = Http(served.url)("POST", "/", b"{}", X_Amz_Target="AmazonSQS.ListQueues")
    assert answer.json["__type"] == "com.amazon.coral.service#MissingAuthenticationTokenException"
    assert answer.headers["x-amzn-query-error"] == "MissingAuthenticationToken;Sender"


def test_a_key_does_what_it_may_and_nothing_else(served: BackgroundServer) -> None:
    as_sender = {"id": "AKIDSENDER", "secret": NEW}
    for name in ("mail-in", "other"):
        assert call(served, "CreateQueue", json.dumps({"QueueName": name}).encode()).status == 200
    for operation, name in [("DeleteQueue", "mail-in"), ("PurgeQueue", "mail-in"), ("GetQueueAttributes", "other")]:
        body = json.dumps({"QueueUrl": f"{served.url}/000000000000/{name}"}).encode()
        answer = call(served, operation, body, **as_sender)
        assert (answer.status, answer.headers["x-amzn-query-error"]) == (403, "AccessDenied;Sender"), operation
        assert answer.json["__type"] == "com.amazon.coral.service#AccessDeniedException"
        assert (
            f"user/sender is not authorized to perform: sqs:{operation.lower()} on resource: arn:aws:sqs:"
            in answer.json["message"]
        )
    assert call(served, "CreateQueue", b'{"QueueName": "mail-out"}', **as_sender).status == 403
    for path in ("/queues", "/metrics", "/mail-in"):
        assert Http(served.url)("GET", path).status == 401
    as_token = {"Authorization": f"Bearer {TOKEN}", "X_Amz_Target": "AmazonSQS.ListQueues"}
    assert len(Http(served.url)("POST", "/", b"{}", **as_token).json["QueueUrls"]) == 2


QUEUE = {"QueueUrl": "http://any/000000000000/other"}
ENTRY = {"Id": "1", "ReceiptHandle": "x", "VisibilityTimeout": 1, "MessageBody": "x"}
ARN = "arn:aws:sqs:us-east-1:000000000000:other"
TASK = base64.b64encode(json.dumps({"taskId": "1", "sourceArn": ARN}).encode()).decode()
ON_ANOTHER: dict[str, dict[str, Any]] = {
    "CreateQueue": {"QueueName": "other"},
    "DeleteQueue": QUEUE,
    "GetQueueUrl": {"QueueName": "other"},
    "ListQueues": {},
    "GetQueueAttributes": QUEUE,
    "SetQueueAttributes": {**QUEUE, "Attributes": {"DelaySeconds": "1"}},
    "SendMessage": {**QUEUE, "MessageBody": "x"},
    "SendMessageBatch": {**QUEUE, "Entries": [ENTRY]},
    "ReceiveMessage": QUEUE,
    "DeleteMessage": {**QUEUE, "ReceiptHandle": "x"},
    "DeleteMessageBatch": {**QUEUE, "Entries": [ENTRY]},
    "ChangeMessageVisibility": {**QUEUE, "ReceiptHandle": "x", "VisibilityTimeout": 1},
    "ChangeMessageVisibilityBatch": {**QUEUE, "Entries": [ENTRY]},
    "PurgeQueue": QUEUE,
    "ListDeadLetterSourceQueues": QUEUE,
    "TagQueue": {**QUEUE, "Tags": {"a": "b"}},
    "UntagQueue": {**QUEUE, "TagKeys": ["a"]},
    "ListQueueTags": QUEUE,
    "AddPermission": {**QUEUE, "Label": "x", "AWSAccountIds": ["1"], "Actions": ["*"]},
    "RemovePermission": {**QUEUE, "Label": "x"},
    "StartMessageMoveTask": {"SourceArn": ARN},
    "ListMessageMoveTasks": {"SourceArn": ARN},
    "CancelMessageMoveTask": {"TaskHandle": TASK},
}
"""Each operation on a queue of somebody else."""
assert set(ON_ANOTHER) == set(OPERATIONS)


@pytest.mark.parametrize("operation", ON_ANOTHER)
def test_a_key_for_some_queues_reaches_no_others(tmp_path: Path, operation: str) -> None:
    settings = settings_of(tmp_path, f"[[sqs_key]]\nid = '{ID}'\nsecret = '{SECRET}'\nqueues = ['mail-*']")
    with penstock.open("memory:") as broker, BackgroundServer(broker, settings) as server:
        broker.create("mail-in")
        broker.create("other-dead")
        broker.create("other", redrive=penstock.Redrive("other-dead", 1)).send(b"x")
        before = (broker["other"].settings, broker["other"].stats().visible)
        answer = call(server, operation, json.dumps(ON_ANOTHER[operation]).encode())
        if operation == "ListQueues":
            assert answer.json["QueueUrls"] == [f"{server.url}/000000000000/mail-in"]
        else:
            error = answer.headers.get("x-amzn-query-error", "")
            assert (answer.status, error.partition(";")[0].split(".")[-1]) in REFUSALS, answer.body
            assert b"other-dead" not in answer.body
        assert (broker["other"].settings, broker["other"].stats().visible) == before


REFUSALS = [(403, "AccessDenied"), (400, "NonExistentQueue"), (404, "ResourceNotFoundException")]


@pytest.mark.parametrize("operation", sorted(set(ON_ANOTHER) - {"ListQueues"}))
def test_a_key_without_scopes_for_it_does_nothing(tmp_path: Path, operation: str) -> None:
    """It may send only, or receive only."""
    scope = "receive" if operation.startswith("SendMessage") else "send"
    settings = settings_of(tmp_path, f"[[sqs_key]]\nid = '{ID}'\nsecret = '{SECRET}'\nscopes = ['{scope}']")
    with penstock.open("memory:") as broker, BackgroundServer(broker, settings) as server:
        broker.create("dead")
        broker.create("other", redrive=penstock.Redrive("dead", 1)).send(b"x")
        before = (broker["other"].settings, broker["other"].stats().visible)
        answer = call(server, operation, json.dumps(ON_ANOTHER[operation]).encode())
        if operation == "GetQueueUrl":  # a sender must find its queue
            assert answer.status == 200
        else:
            assert (answer.status, answer.headers["x-amzn-query-error"]) == (403, "AccessDenied;Sender"), answer.body
        assert (broker["other"].settings, broker["other"].stats().visible) == before


def test_a_key_settles_only_what_it_has_received(tmp_path: Path) -> None:
    keys = "".join(f"[[sqs_key]]\nid = '{id}'\nsecret = '{SECRET}{id}'\nscopes = ['receive']\n" for id in ("one", "two"))
    with penstock.open("memory:") as broker, BackgroundServer(broker, settings_of(tmp_path, keys)) as server:
        queue = broker.create("orders")
        queue.send(b"x")
        one, two = ({"id": id, "secret": SECRET + id} for id in ("one", "two"))
        url = {"QueueUrl": f"{server.url}/000000000000/orders"}
        handle = call(server, "ReceiveMessage", json.dumps(url).encode(), **one).json["Messages"][0]["ReceiptHandle"]
        body = json.dumps({**url, "ReceiptHandle": handle}).encode()
        assert call(server, "DeleteMessage", body, **two).status in (403, 404)
        assert queue.stats().in_flight == 1
        assert call(server, "DeleteMessage", body, **one).status == 200
        assert queue.stats().messages == 0


def test_a_key_has_its_limits(tmp_path: Path) -> None:
    text = f"[[sqs_key]]\nid = '{ID}'\nsecret = '{SECRET}'\nmax_rate = 0.001\n[[token]]\nsecret = '{TOKEN}'"
    with penstock.open("memory:") as broker, BackgroundServer(broker, settings_of(tmp_path, text)) as server:
        assert call(server, "ListQueues").status == 200
        answer = call(server, "ListQueues")
        assert (answer.headers["x-amzn-query-error"], answer.headers["retry-after"]) == ("RequestThrottled;Sender", "1000")
        for _ in range(3):  # somebody without the secret uses nothing of it
            assert call(server, "ListQueues", secret=NEW).headers["x-amzn-query-error"] == "SignatureDoesNotMatch;Sender"


def test_a_stranger_is_refused_before_it_sends_a_body(served: BackgroundServer) -> None:
    host = urlsplit(served.url).netloc
    for lines in (
        sign(b"x", at=time.time(), host=host, id="AKIDOTHER"),
        sign(b"x", at=time.time() - 1000, host=host),
        sign(b"x", at=time.time(), host=host, secret=NEW, headers={"x-amz-content-sha256": "0" * 64}),
    ):
        assert b" 403 " in first_answer(served.url, [*lines, "Content-Length: 10000000", "Expect: 100-continue"])
    assert b" 100 " in first_answer(
        served.url, [*sign(b"x", at=time.time(), host=host), "Content-Length: 10", "Expect: 100-continue"]
    )


def first_answer(url: str, lines: list[str]) -> bytes:
    """What comes before the client has sent its body."""
    address = urlsplit(url)
    with socket.create_connection((address.hostname, address.port or 0), timeout=60) as client:
        client.sendall("\r\n".join([*lines, "", ""]).encode("latin-1"))
        return client.recv(100)


def test_strangers_leave_room_for_others(tmp_path: Path) -> None:
    """Somebody who knows an id, but not its secret, makes the server wait for bodies: for so many bytes and no more."""
    mebi = 1024 * 1024
    text = f"[server]\nmax_memory = {16 * mebi}\nmax_body = {2 * mebi}\n[[sqs_key]]\nid = '{ID}'\nsecret = '{SECRET}'"
    with penstock.open("memory:") as broker, BackgroundServer(broker, settings_of(tmp_path, text)) as server:
        address = urlsplit(server.url)
        head = [*sign(at=time.time(), host=address.netloc, secret=NEW), f"Content-Length: {2 * mebi}", "Expect: 100-continue"]
        head_bytes = "\r\n".join([*head, "", ""]).encode()
        strangers = [socket.create_connection((address.hostname, address.port or 0), timeout=60) for _ in range(3)]
        try:
            answers = []
            for stranger in strangers:
                stranger.sendall(head_bytes)
                answers.append(stranger.recv(1000).split(b"\r\n")[0])
            assert [answer.split(b" ")[1] for answer in answers] == [b"100", b"100", b"503"]
        finally:
            for stranger in strangers:
                stranger.close()
        until_served(server)


def until_served(server: BackgroundServer) -> None:
    """When the strangers have gone, a client that signs comes in."""
    deadline = time.monotonic() + 60
    while call(server, "ListQueues").status != 200:
        assert time.monotonic() < deadline


def test_after_sighup_the_keys_of_the_file_count(tmp_path: Path) -> None:
    file = tmp_path / "penstock.toml"
    file.write_text(f"[[sqs_key]]\nid = '{ID}'\nsecret = '{SECRET}'\n")
    with serving("memory:", "--config", str(file), "--access-log", "off") as (process, url):
        assert process.stderr

        def status(secret: str) -> int:
            lines = sign(at=time.time(), host=urlsplit(url).netloc, secret=secret)
            method, path, _ = lines[0].split(" ")
            return Http(url)(method, path, b"{}", **dict(line.split(": ", 1) for line in lines[1:])).status

        assert (status(SECRET), status(NEW)) == (200, 403)
        file.write_text(f"[[sqs_key]]\nid = '{ID}'\nsecret = '{NEW}'\n")
        process.send_signal(signal.SIGHUP)
        assert process.stderr.readline() == "penstock: after SIGHUP, there are 0 tokens and 1 SQS keys\n"
        assert (status(SECRET), status(NEW)) == (403, 200)
        file.write_text("")
        process.send_signal(signal.SIGHUP)
        assert process.stderr.readline().startswith("penstock: after SIGHUP, the old tokens stay: ")
        assert status(NEW) == 200


def test_a_form_of_another_sites_page_does_nothing() -> None:
    with penstock.open("memory:") as broker:
        settings = ServerSettings(port=0, access_log=False)
        with BackgroundServer(broker, settings) as server:
            http = Http(server.url)
            form = {"Content_Type": "application/x-www-form-urlencoded"}
            body = b"Action=CreateQueue&QueueName=bad&Version=2012-11-05"
            for page in ({"Origin": "https://evil.example"}, {"Sec_Fetch_Site": "cross-site"}, {"Host": "evil.example"}):
                assert http("POST", "/", body, **form, **page).status == 403
                assert http("GET", "/?" + body.decode(), **page).status == 403
                http = Http(server.url)
            assert not list(broker)
            assert http("POST", "/", body, **form).status == 200
            assert [queue.name for queue in broker] == ["bad"]


@pytest.mark.parametrize(
    ("interpreter", "program"),
    [
        pytest.param(sqs_clients.NEW, "with_boto3.py", id="boto3, JSON"),
        pytest.param(sqs_clients.OLD, "with_boto3.py", id="boto3 1.26, Query"),
        pytest.param(sqs_clients.NEW, "with_kombu.py", id="kombu"),
        pytest.param(sqs_clients.NODE, "with_javascript.mjs", id="client-sqs, sqs-consumer and sqs-producer"),
    ],
)
def test_a_real_client_with_its_key_finds_what_it_expects(interpreter: Path, program: str, tmp_path: Path) -> None:
    """Each signs with a library of its own, or in a way of its own."""
    sqs_clients.require_clients()
    its_own = SqsKey("test", ("test",), Grant("test", frozenset(Scope), ("*",), keys=(b"any",)))
    settings = ServerSettings(port=0, access_log=False, sqs_keys=(its_own,))
    with penstock.open(f"sqlite:///{tmp_path}/queue.db") as broker, BackgroundServer(broker, settings) as server:
        assert Http(server.url)("POST", "/", b"Action=ListQueues").status == 403
        sqs_clients.run(interpreter, program, server.url, tmp_path)
