"""Signatures of SQS requests: whose are accepted, that no byte of one can be changed, and what a key may do.

`sqs_signed_requests.json` has requests as real clients sent them, signed with `SECRET`."""

from __future__ import annotations

import calendar
import hashlib
import hmac
import json
import random
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pytest
from test_serve import serving

import penstock
from penstock import BadSetting
from penstock.server import BackgroundServer, ServerSettings, read_settings
from penstock.server.auth import Guard
from penstock.server.dialects.sqs import replays
from penstock.server.dialects.sqs.errors import SqsError
from penstock.server.dialects.sqs.signature import Signatures
from penstock.server.http.head import read_fields, read_line
from penstock.server.http.request_response import EVERYTHING, NOBODY, Grant, Refused, Request, Scope
from penstock.server.sqs_keys import KEY_SETTINGS, SqsKey, read_sqs_keys
from penstock.testing.http import Http, HttpAnswer

ID, SECRET, NEW = "AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", "another-secret-of-some-length"
TOKEN = "a-secret-of-some-length"
RECORDED = json.loads((Path(__file__).parent / "sqs_signed_requests.json").read_text())
CLIENTS = {each["client"]: each for each in RECORDED}
NOW = calendar.timegm((2026, 11, 18, 13, 5, 0))
"""About when the requests were recorded."""


def key(**more: Any) -> SqsKey:
    return read_sqs_keys([{"id": ID, "secret": SECRET, **more}], "test")[0]


def parse(lines: list[str]) -> Request:
    """A request as the server reads it."""
    line = read_line(lines[0].encode("latin-1"))
    fields = read_fields("".join(f"{each}\r\n" for each in lines[1:]).encode("latin-1"), line.version)
    return Request(line.method, line.segments, line.query, fields.headers, b"", 0, NOBODY, raw_path=line.raw_path)


def check(lines: list[str], body: bytes, now: float = NOW, known: Signatures | None = None) -> Grant:
    known = known or Signatures([key()], lambda: now)
    return known.prove(known.read(parse(lines)), hashlib.sha256(body).hexdigest())


def sign(
    body: bytes = b"{}",
    *,
    path: str = "/",
    target: str = "AmazonSQS.ListQueues",
    at: float = NOW,
    secret: str = SECRET,
    id: str = ID,
    scope: str = "eu-west-1/sqs/aws4_request",
    headers: dict[str, str] | None = None,
    host: str = "localhost",
    method: str = "POST",
    unsigned: dict[str, str] | None = None,
) -> list[str]:
    """The head of a signed request. Written by AWS's description, apart from what is tested."""
    date = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(at))
    sent = {"host": host, "x-amz-date": date, **({"x-amz-target": target} if target else {}), **(headers or {})}
    names = ";".join(sorted(sent))
    lines = "".join(f"{name}:{sent[name].strip()}\n" for name in sorted(sent))
    place, _, query = path.partition("?")
    query = "&".join(sorted(query.split("&")))
    digest = sent.get("x-amz-content-sha256", hashlib.sha256(body).hexdigest())
    canonical = f"{method}\n{quote(place)}\n{query}\n{lines}\n{names}\n{digest}"
    scope = f"{date[:8]}/{scope}"
    text = f"AWS4-HMAC-SHA256\n{date}\n{scope}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
    made = f"AWS4{secret}".encode()
    for part in (*scope.split("/"), text):
        made = hmac.new(made, part.encode(), hashlib.sha256).digest()
    told = f"AWS4-HMAC-SHA256 Credential={id}/{scope}, SignedHeaders={names}, Signature={made.hex()}"
    fields = {**sent, **(unsigned or {}), "authorization": told}
    return [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items())]


def refusal(lines: list[str], body: bytes = b"{}", **how: Any) -> SqsError:
    with pytest.raises(SqsError) as caught:
        check(lines, body, **how)
    return caught.value


# whose signatures are accepted


@pytest.mark.parametrize("client", CLIENTS)
def test_a_request_that_a_real_client_has_signed_comes_in(client: str) -> None:
    recorded = CLIENTS[client]
    assert check(recorded["head"], recorded["body"].encode("latin-1")).name == ID


@pytest.mark.parametrize("client", CLIENTS)
def test_another_secret_does_not_do(client: str) -> None:
    recorded = CLIENTS[client]
    known = Signatures([key(secret=NEW)], lambda: NOW)
    error = refusal(recorded["head"], recorded["body"].encode("latin-1"), known=known)
    assert (error.code, error.shape, error.status) == ("SignatureDoesNotMatch", "InvalidSignatureException", 403)


def test_a_signed_header_may_have_blanks_and_a_path_any_byte() -> None:
    lines = sign(headers={"x-amz-meta": "a b"}, path="/000000000000/a%20b:c%2Fd")
    check([line.replace("a b", "  a \t  b  ") if line.startswith("x-amz-meta") else line for line in lines], b"{}")


def test_a_date_header_stands_in_for_x_amz_date() -> None:
    lines = sign(headers={"date": "Wed, 18 Nov 2026 13:05:00 GMT"})
    date = next(line for line in lines if line.startswith("x-amz-date"))
    unsigned = [line for line in lines if line != date]
    assert "x-amz-date' is not in the request" in str(refusal(unsigned))
    names = "date;host;x-amz-target"
    text = f"POST\n/\n\ndate:Wed, 18 Nov 2026 13:05:00 GMT\nhost:localhost\nx-amz-target:AmazonSQS.ListQueues\n\n{names}\n"
    text += hashlib.sha256(b"{}").hexdigest()
    to_sign = (
        f"AWS4-HMAC-SHA256\n20261118T130500Z\n20261118/eu-west-1/sqs/aws4_request\n{hashlib.sha256(text.encode()).hexdigest()}"
    )
    made = f"AWS4{SECRET}".encode()
    for part in ("20261118", "eu-west-1", "sqs", "aws4_request", to_sign):
        made = hmac.new(made, part.encode(), hashlib.sha256).digest()
    told = f"AWS4-HMAC-SHA256 Credential={ID}/20261118/eu-west-1/sqs/aws4_request,SignedHeaders={names},Signature={made.hex()}"
    check([*(line for line in unsigned if not line.startswith("authorization")), f"authorization: {told}"], b"{}")


def test_while_a_secret_changes_both_sign() -> None:
    known = Signatures([key(secret=[SECRET, NEW])], lambda: NOW)
    for secret in (SECRET, NEW):
        assert check(sign(secret=secret), b"{}", known=known).name == ID
    assert refusal(sign(secret=SECRET + NEW), known=known).code == "SignatureDoesNotMatch"
    known.replace([key(secret=NEW)])
    assert refusal(sign(secret=SECRET), known=known).code == "SignatureDoesNotMatch"


# that nothing can be changed


def equal(old: str, new: str) -> bool:
    """Whether HTTP and AWS take two lines of a head for the same: names in any case, blanks around a value, the case of an
    encoded byte's digits."""
    if ":" not in old or old.startswith(("GET ", "POST ")):
        return old.replace("%2f", "%2F") == new.replace("%2f", "%2F")
    name, _, value = old.partition(":")
    other, _, changed = new.partition(":")
    return name.lower() == other.lower() and value.replace(",", " , ").split() == changed.replace(",", " , ").split()


@pytest.mark.parametrize("client", CLIENTS)
def test_no_byte_of_a_signed_request_can_be_changed(client: str) -> None:
    lines, body = CLIENTS[client]["head"], CLIENTS[client]["body"].encode("latin-1")
    known = Signatures([key()], lambda: NOW)
    signed = next((line for line in lines if line.lower().startswith("authorization")), lines[0])
    names = signed.partition("SignedHeaders=")[2].split(",")[0].split("&")[0].replace("%3B", ";").split(";")
    digest = hashlib.sha256(body).hexdigest()
    tried = 0
    for place, line in enumerate(lines):
        if place and line.partition(":")[0].lower() not in (*names, "authorization"):
            continue
        for at in range(len(line) if place else line.index(" HTTP")):
            for changed in (
                line[:at] + chr(ord(line[at]) ^ 1) + line[at + 1 :],
                line[:at] + ("A" if line[at] != "A" else "b") + line[at + 1 :],
                line[:at] + line[at + 1 :],
                line[:at] + line[at] + line[at:],
            ):
                if equal(line, changed):
                    continue
                tried += 1
                with pytest.raises(Refused):
                    known.prove(known.read(parse([*lines[:place], changed, *lines[place + 1 :]])), digest)
    claim = known.read(parse(lines))
    for at in range(len(body)):
        for wrong in (body[:at] + bytes([body[at] ^ 1]) + body[at + 1 :], body[:at] + body[at + 1 :]):
            with pytest.raises(SqsError, match=r"does not match|is not the one"):
                known.prove(claim, hashlib.sha256(wrong).hexdigest())
    assert tried > 500
    known.prove(claim, digest)  # and as it was, it comes in


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"scope": "eu-west-1/sns/aws4_request"}, "Credential should be scoped to correct service: 'sqs'."),
        ({"scope": "eu-west-1/sqs/aws5_request"}, "Credential should be scoped with a valid terminator"),
        ({"scope": "../sqs/aws4_request"}, "Credential should be scoped to a valid region, not '..'"),
    ],
)
def test_a_signature_for_something_else_is_refused(changed: dict[str, str], text: str) -> None:
    error = refusal(sign(**changed))  # type: ignore[arg-type]
    assert text in str(error)
    assert error.code == "SignatureDoesNotMatch"


def test_the_day_of_the_scope_is_that_of_the_date() -> None:
    lines = [line.replace("/20261118/", "/20261117/") for line in sign()]
    assert "does not match YYYYMMDD from ISO-8601 version of date from HTTP: '20261117' != '20261118'" in str(refusal(lines))


def test_a_header_of_amazon_that_is_not_signed_is_refused() -> None:
    """Else somebody in between could change what a request does."""
    for name in ("x-amz-target", "x-amz-content-sha256", "X-Amz-Anything"):
        lines = [*sign(target=""), f"{name}: AmazonSQS.DeleteQueue"]
        assert f"The header '{name.lower()}' must be a 'SignedHeader'" in str(refusal(lines))


def test_the_host_must_be_signed() -> None:
    lines = [line.replace("SignedHeaders=host;", "SignedHeaders=") for line in sign()]
    assert "'Host' or ':authority' must be a 'SignedHeader'" in str(refusal(lines))


@pytest.mark.parametrize("told", ["UNSIGNED-PAYLOAD", "STREAMING-AWS4-HMAC-SHA256-PAYLOAD", "", "0" * 64])
def test_a_body_is_always_signed(told: str) -> None:
    lines = sign(headers={"x-amz-content-sha256": told})
    assert "The body is not the one whose digest" in str(refusal(lines))
    changed = [f"{line}\xfc" if line.startswith("x-amz-content") else line for line in lines]
    assert "does not match" in str(refusal(changed))


def test_a_digest_in_the_head_is_checked_before_the_body_comes() -> None:
    digest = hashlib.sha256(b"{}").hexdigest()
    good = sign(headers={"x-amz-content-sha256": digest})
    known = Signatures([key()], lambda: NOW)
    claim = known.read(parse(good))
    with pytest.raises(SqsError, match="does not match"):
        known.read(parse(sign(headers={"x-amz-content-sha256": digest}, secret=NEW)))
    with pytest.raises(SqsError, match="The body is not the one"):
        known.prove(claim, hashlib.sha256(b"{ }").hexdigest())
    assert known.prove(claim, digest).name == ID


def presigned(now: float, expires: int = 600, host: str = "localhost") -> list[str]:
    """As botocore makes it, for another time."""
    date = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now))
    scope = f"{date[:8]}/eu-west-1/sqs/aws4_request"
    query = {
        "Action": "ListQueues",
        "X-Amz-Algorithm": "AWS4-HMAC-SHA256",
        "X-Amz-Credential": f"{ID}/{scope}",
        "X-Amz-Date": date,
        "X-Amz-Expires": str(expires),
        "X-Amz-SignedHeaders": "host",
    }
    told = "&".join(f"{name}={quote(value, safe='')}" for name, value in query.items())
    canonical = f"GET\n/\n{told}\nhost:{host}\n\nhost\n{hashlib.sha256(b'').hexdigest()}"
    text = f"AWS4-HMAC-SHA256\n{date}\n{scope}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
    made = f"AWS4{SECRET}".encode()
    for part in (*scope.split("/"), text):
        made = hmac.new(made, part.encode(), hashlib.sha256).digest()
    return [f"GET /?{told}&X-Amz-Signature={made.hex()} HTTP/1.1", f"Host: {host}"]


# time


@pytest.mark.parametrize("off", [-900, -899, 0, 899, 900])
def test_a_clock_may_be_wrong_by_a_quarter_of_an_hour(off: int) -> None:
    assert check(sign(at=NOW + off), b"{}")


def test_a_request_of_another_time_is_refused() -> None:
    old, early = refusal(sign(at=NOW - 901)), refusal(sign(at=NOW + 901))
    assert str(old) == "Signature expired: 20261118T124959Z is now earlier than 20261118T125000Z (20261118T130500Z - 15 min.)"
    assert str(early) == (
        "Signature not yet current: 20261118T132001Z is still later than 20261118T132000Z (20261118T130500Z + 15 min.)"
    )
    assert (old.code, early.code, old.status) == ("SignatureDoesNotMatch", "SignatureDoesNotMatch", 403)


def test_a_pre_signed_url_ends_when_it_says() -> None:
    for age, expires in [(0, 1), (600, 600), (604_800, 604_800), (-900, 1)]:
        assert check(presigned(NOW - age, expires), b"")
    for age, expires in [(2, 1), (601, 600), (604_801, 604_800)]:
        assert str(refusal(presigned(NOW - age, expires), b"")).startswith("Signature expired: ")
    assert str(refusal(presigned(NOW + 901), b"")).startswith("Signature not yet current: ")
    for expires in (0, 604_801, -1):
        assert "it must be between 1 and 604800 seconds" in str(refusal(presigned(NOW, expires), b""))


def test_a_pre_signed_url_has_one_signature_and_no_header_beside_it() -> None:
    lines = presigned(NOW)
    assert "Found both" in str(refusal([*lines, "Authorization: AWS4-HMAC-SHA256 x=y"], b""))
    twice = lines[0].replace("?", "?X-Amz-Signature=0&")
    assert "'X-Amz-Signature' twice" in str(refusal([twice, *lines[1:]], b""))
    for name in ("Credential", "Date", "Expires", "SignedHeaders", "Signature"):
        without = lines[0].replace(f"X-Amz-{name}=", f"X-Amz-No{name}=")
        assert f"must include 'X-Amz-{name}'" in str(refusal([without, *lines[1:]], b""))


# replays


def test_a_recorded_request_cannot_be_sent_again() -> None:
    """Within a minute, requests with one signature may be several: no SDK for Python signs anything that tells them apart."""
    now = float(NOW)
    known = Signatures([key()], lambda: now)
    lines = CLIENTS["boto3 1.43 SendMessage"]["head"]
    body = CLIENTS["boto3 1.43 SendMessage"]["body"].encode("latin-1")
    for now in (NOW, NOW + 1, NOW + replays.ALIKE):  # noqa: B007
        check(lines, body, known=known)
    for now in (NOW + replays.ALIKE + 0.1, NOW + 700):  # noqa: B007
        error = refusal(lines, body, known=known)
        assert str(error) == "This request was sent before: sign it anew to send it again."
        assert (error.code, error.status) == ("SignatureDoesNotMatch", 403)


def test_what_an_sdk_signs_with_the_number_of_its_attempt_comes_once() -> None:
    recorded = CLIENTS["@aws-sdk/client-sqs 3.1163 SendMessage"]
    known = Signatures([key()], lambda: NOW)
    check(recorded["head"], recorded["body"].encode("latin-1"), known=known)
    assert "sent before" in str(refusal(recorded["head"], recorded["body"].encode("latin-1"), known=known))


def test_what_was_refused_is_not_remembered() -> None:
    known = Signatures([key()], lambda: NOW)
    once = {"amz-sdk-invocation-id": "1", "amz-sdk-request": "attempt=1"}
    lines = sign(headers=once)
    assert "does not match" in str(refusal(lines, b"{ }", known=known))
    check(lines, b"{}", known=known)


def test_a_pre_signed_url_may_be_used_again() -> None:
    now = float(NOW)
    known = Signatures([key()], lambda: now)
    for now in (NOW, NOW + 100, NOW + 599):  # noqa: B007
        check(presigned(NOW), b"", known=known)


def test_the_memory_of_signatures_has_a_fixed_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replays, "PLACES", 64)
    seen = replays.Replays()
    chance = random.Random(1)
    for _ in range(1000):
        signature = chance.randbytes(32)
        assert not seen.is_replay(signature, 1.0, once=True)
        assert seen.is_replay(signature, 2.0, once=True)
    assert len(seen._prints) == len(seen._seen_at) == 64


# what is refused, and how


@pytest.mark.parametrize(
    ("header", "code", "text"),
    [
        ("", "MissingAuthenticationToken", "Request is missing Authentication Token"),
        ("Basic eDp5", "IncompleteSignature", "Unsupported AWS 'algorithm': 'Basic'"),
        ("AWS4-HMAC-SHA1 x=y", "IncompleteSignature", "Unsupported AWS 'algorithm': 'AWS4-HMAC-SHA1'"),
        ("AWS4-HMAC-SHA256", "IncompleteSignature", "not a valid key=value pair"),
        ("AWS4-HMAC-SHA256 Credential", "IncompleteSignature", "'Credential' not a valid key=value pair"),
        ("AWS4-HMAC-SHA256 Credential=a, Credential=b", "IncompleteSignature", "'Credential' not a valid key=value pair"),
        (
            "AWS4-HMAC-SHA256 Credential=a",
            "IncompleteSignature",
            "requires 'Signature' parameter. Authorization header requires",
        ),
        ("AWS4-HMAC-SHA256 Credential=a, SignedHeaders=host;x-amz-date, Signature=0", "IncompleteSignature", "exactly 5 slash"),
    ],
)
def test_a_malformed_header_is_named(header: str, code: str, text: str) -> None:
    lines = [
        "POST / HTTP/1.1",
        "Host: localhost",
        "X-Amz-Date: 20261118T130500Z",
        *([f"Authorization: {header}"] if header else []),
    ]
    error = refusal(lines)
    assert error.code == code
    assert text in str(error)


@pytest.mark.parametrize(
    "date", ["", "yesterday", "20261318T130500Z", "2026-11-18T13:05:00Z", "٢٠٢٦١١١٨T130500Z", "20261118T130500"]
)
def test_a_date_has_one_format(date: str) -> None:
    lines = [f"x-amz-date: {date}".encode().decode("latin-1") if line.startswith("x-amz-date") else line for line in sign()]
    error = refusal(lines)
    assert error.code == "IncompleteSignature"
    assert "Date must be in ISO-8601 'basic format'" in str(error) or "'X-Amz-Date' or a 'Date' header" in str(error)


def test_an_unknown_id_and_an_expired_key_are_refused() -> None:
    error = refusal(sign(id="AKIDOTHER"))
    assert (error.code, error.shape, error.status) == ("InvalidClientTokenId", "UnrecognizedClientException", 403)
    expires = read_sqs_keys([{"id": ID, "secret": SECRET}], "x")[0]
    known = Signatures([SqsKey(ID, (SECRET,), expires.grant, float(NOW))], lambda: NOW)
    assert refusal(sign(), known=known).code == "ExpiredToken"


def test_whatever_the_header_says_it_is_refused_in_the_same_way() -> None:
    """Pieces of good headers in any order: no error of Python's own, and nobody comes in."""
    chance = random.Random(SEED)
    good = sign()[-1].partition(": ")[2]
    pieces = [
        *good.replace(",", " , ").replace("=", " = ").split(" "),
        good,
        "=",
        ",",
        "/",
        ";",
        "\xff",
        "\t",
        "%",
        "",
        "0" * 64,
    ]
    known = Signatures([key()], lambda: NOW)
    for _ in range(3000):
        header = "".join(chance.choice(pieces) + chance.choice(["", "", " "]) for _ in range(chance.randrange(1, 14)))
        if equal(f":{good}", f":{header}"):
            continue
        lines = [*sign()[:-1], f"Authorization: {header}"]
        with pytest.raises(Refused):
            check(lines, b"{}", known=known)
        query = chance.choice(["X-Amz-Algorithm=AWS4-HMAC-SHA256&", "X-Amz-Algorithm=&", ""]) + quote(header, safe="&=")
        with pytest.raises(Refused):
            check([f"GET /?{query} HTTP/1.1", "Host: localhost"], b"", known=known)


SEED = 19


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
    assert call(served, "CreateQueue", b'{"QueueName": "mail-out"}', **as_sender).status == 403
    for path in ("/queues", "/metrics", "/mail-in"):
        assert Http(served.url)("GET", path).status == 401
    as_token = {"Authorization": f"Bearer {TOKEN}", "X_Amz_Target": "AmazonSQS.ListQueues"}
    assert len(Http(served.url)("POST", "/", b"{}", **as_token).json["QueueUrls"]) == 2


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
