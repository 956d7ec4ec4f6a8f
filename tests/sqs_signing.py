"""Signs requests by AWS's description of Signature Version 4, apart from what is tested, and reads them as the server does."""

from __future__ import annotations

import calendar
import hashlib
import hmac
import time
from typing import Any
from urllib.parse import quote

from penstock.server.http.head import read_fields, read_line
from penstock.server.http.request_response import NOBODY, Request
from penstock.server.sqs_keys import SqsKey, read_sqs_keys

ID, SECRET, NEW = "AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", "another-secret-of-some-length"
TOKEN = "a-secret-of-some-length"
NOW = calendar.timegm((2026, 11, 18, 13, 5, 0))
"""About when the requests were recorded."""


def key(**more: Any) -> SqsKey:
    return read_sqs_keys([{"id": ID, "secret": SECRET, **more}], "test")[0]


def parse(lines: list[str]) -> Request:
    """A request as the server reads it."""
    line = read_line(lines[0].encode("latin-1"))
    fields = read_fields("".join(f"{each}\r\n" for each in lines[1:]).encode("latin-1"), line.version)
    return Request(line.method, line.segments, line.query, fields.headers, b"", 0, NOBODY, raw_path=line.raw_path)


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
