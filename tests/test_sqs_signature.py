"""Signatures of SQS requests: whose are accepted, that no byte of one can be changed, and what a key may do.

`sqs_signed_requests.json` has requests as real clients sent them, signed with `SECRET`."""

from __future__ import annotations

import hashlib
import hmac
import json
import random
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from sqs_signing import ID, NEW, NOW, SECRET, key, parse, presigned, sign

from penstock.server.dialects.sqs import replays
from penstock.server.dialects.sqs.errors import SqsError
from penstock.server.dialects.sqs.signature import Signatures
from penstock.server.http.request_response import Grant, Refused
from penstock.server.sqs_keys import SqsKey, read_sqs_keys

RECORDED = json.loads((Path(__file__).parent / "sqs_signed_requests.json").read_text())
CLIENTS = {each["client"]: each for each in RECORDED}


def check(lines: list[str], body: bytes, now: float = NOW, known: Signatures | None = None) -> Grant:
    known = known or Signatures([key()], lambda: now)
    return known.prove(known.read(parse(lines)), hashlib.sha256(body).hexdigest())


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
