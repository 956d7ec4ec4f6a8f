"""Signatures of SQS requests: AWS Signature Version 4, in the header Authorization or in the query of a pre-signed URL.

    canonical request  =  method, path, query, the signed headers, SHA-256 of the body
    string to sign     =  date, scope (day/region/sqs/aws4_request), SHA-256 of the canonical request
    signature          =  HMAC with a key made of the secret, day, region and service

`Signatures.read` checks all that the head of a request tells, and the signature too if the head has the body's digest; so that
strangers are refused before they send a body. `SignedClaim.prove` does the rest when the body is there, before any handler.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import lru_cache
from urllib.parse import quote, unquote, unquote_to_bytes

from penstock.server.dialects.sqs.errors import SqsError
from penstock.server.dialects.sqs.replays import Replays
from penstock.server.http.request_response import Grant, Request
from penstock.server.sqs_keys import SqsKey

ALGORITHM = "AWS4-HMAC-SHA256"
SERVICE, TERMINATOR = "sqs", "aws4_request"
SKEW = 15 * 60
"""Seconds that a client's clock may be wrong."""
LONGEST_EXPIRY = 7 * 24 * 60 * 60
HEADER_PARTS = ("Credential", "Signature", "SignedHeaders")
QUERY_PARTS = ("Algorithm", "Credential", "Date", "Expires", "SignedHeaders", "Signature")
PAYLOAD = "x-amz-content-sha256"
ONCE = frozenset({"amz-sdk-invocation-id", "amz-sdk-request"})
"""Headers that differ for each request that an SDK sends. If both are signed, no two genuine requests have one signature."""
UNRESERVED = "-_.~"
DATE = re.compile(r"([0-9]{4})([0-9]{2})([0-9]{2})T([0-9]{2})([0-9]{2})([0-9]{2})Z")
REGION = re.compile(r"[a-z0-9-]{1,32}")
SIGNATURE = re.compile(r"[0-9a-f]{64}")
BLANKS = re.compile(r"[ \t]+")
MISMATCH = (
    "The request signature we calculated does not match the signature you provided. Check your AWS Secret Access Key and "
    "signing method. Consult the service documentation for details."
)
UNKNOWN = "The security token included in the request is invalid."
NO_KEYS = f"{UNKNOWN} This server knows no SQS keys ([[sqs_key]] in penstock.toml), only bearer tokens."


@dataclass(frozen=True, slots=True)
class Given:
    """What a request says of its own signature, in the header or in the query."""

    credential: str
    date: str
    signed: str
    signature: str
    expires: int | None = None
    """Seconds, of a pre-signed URL."""


@dataclass(frozen=True, slots=True)
class SignedClaim:
    """A request whose head is in order, by a key that is known."""

    key: SqsKey
    given: Given
    day: str
    region: str
    canonical: str
    """The canonical request, but for the digest of the body."""
    payload: str | None
    """The digest of the body that its sender claims."""


class Signatures:
    """Owns the keys, what is made of them, and the signatures that were seen. Used in the event loop only."""

    def __init__(self, keys: Sequence[SqsKey], clock: Callable[[], float] = time.time) -> None:
        """``clock``: seconds since 1970."""
        self._keys = {key.id: key for key in keys}
        self._clock = clock
        self._replays = Replays()
        self._derive = lru_cache(maxsize=64)(derive)

    def replace(self, keys: Sequence[SqsKey]) -> None:
        """Know these keys from now on. Signatures that were seen stay seen."""
        self._keys = {key.id: key for key in keys}
        self._derive.cache_clear()  # it holds old secrets

    def read(self, request: Request) -> SignedClaim:
        """Check what the head of a request tells, or raise `SqsError`."""
        given = _read_query(request) if "X-Amz-Algorithm=" in request.query else _read_header(request)
        now = self._clock()
        self._check_time(given, now)
        names = given.signed.split(";")
        _check_signed(names, request.headers)
        id, day, region = _read_credential(given)
        key = self._keys.get(id)  # the answer tells whether an id is known, so there is nothing to hide in its time
        if key is None:
            raise SqsError("UnrecognizedClientException", UNKNOWN if self._keys else NO_KEYS)
        if key.expires is not None and key.expires <= now:
            raise SqsError("ExpiredTokenException", "The security token included in the request is expired")
        canonical = "\n".join(
            [
                request.method,
                quote(request.raw_path, safe="/" + UNRESERVED),
                _canonical_query(request.query),
                *(f"{name}:{BLANKS.sub(' ', request.headers[name]).strip()}" for name in names),
                "",
                given.signed,
                "",
            ]
        )
        claim = SignedClaim(key, given, day, region, canonical, request.headers.get(PAYLOAD))
        if claim.payload is not None:
            self._compare(claim, claim.payload)
        return claim

    def prove(self, claim: SignedClaim, digest: str) -> Grant:
        """What the sender may do, now that the body with this SHA-256 is there."""
        if claim.payload is None:
            self._compare(claim, digest)
        elif not hmac.compare_digest(claim.payload.encode("latin-1"), digest.encode()):
            raise SqsError("InvalidSignatureException", f"The body is not the one whose digest {PAYLOAD} tells.")
        given = claim.given
        if given.expires is None:  # a pre-signed URL may be used again until it expires
            once = ONCE.issubset(given.signed.split(";"))
            if self._replays.is_replay(bytes.fromhex(given.signature), self._clock(), once=once):
                raise SqsError("InvalidSignatureException", "This request was sent before: sign it anew to send it again.")
        return claim.key.grant

    def _compare(self, claim: SignedClaim, payload: str) -> None:
        told = hashlib.sha256((claim.canonical + payload).encode("latin-1")).hexdigest()
        scope = f"{claim.day}/{claim.region}/{SERVICE}/{TERMINATOR}"
        text = f"{ALGORITHM}\n{claim.given.date}\n{scope}\n{told}".encode()
        matches = False
        for secret in claim.key.secrets:  # always both, so that the time does not tell which of them it was
            signing_key = self._derive(secret, claim.day, claim.region)
            expected = hmac.digest(signing_key, text, "sha256").hex()
            matches |= hmac.compare_digest(expected, claim.given.signature)
        if not matches:
            raise SqsError("InvalidSignatureException", MISMATCH)

    def _check_time(self, given: Given, now: float) -> None:
        parts = DATE.fullmatch(given.date)
        try:
            signed_at = datetime(*map(int, parts.groups() if parts else ()), tzinfo=UTC).timestamp()  # type: ignore[arg-type, misc]
        except (TypeError, ValueError):
            text = f"Date must be in ISO-8601 'basic format'. Got '{given.date:.40}'. See http://en.wikipedia.org/wiki/ISO_8601"
            raise SqsError("IncompleteSignatureException", text) from None
        valid = SKEW if given.expires is None else given.expires
        what = f"{SKEW // 60} min." if given.expires is None else f"{valid} s"
        if signed_at < now - valid:
            text = f"{given.date} is now earlier than {_text(now - valid)} ({_text(now)} - {what})"
            raise SqsError("InvalidSignatureException", f"Signature expired: {text}")
        if signed_at > now + SKEW:
            text = f"{given.date} is still later than {_text(now + SKEW)} ({_text(now)} + {SKEW // 60} min.)"
            raise SqsError("InvalidSignatureException", f"Signature not yet current: {text}")


def derive(secret: str, day: str, region: str) -> bytes:
    key = f"AWS4{secret}".encode()
    for part in (day, region, SERVICE, TERMINATOR):
        key = hmac.digest(key, part.encode(), "sha256")
    return key


def _text(instant: float) -> str:
    return time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(instant))


def _read_header(request: Request) -> Given:
    header = request.headers.get("authorization", "")
    algorithm, _, rest = header.partition(" ")
    if not header:
        raise SqsError("MissingAuthenticationTokenException", "Request is missing Authentication Token")
    if algorithm != ALGORITHM:
        text = f"Unsupported AWS 'algorithm': '{algorithm:.40}' (only {ALGORITHM} for now). "
        raise SqsError("IncompleteSignatureException", text)
    values: dict[str, str] = {}
    for part in rest.split(","):
        name, equals, value = part.strip(" \t").partition("=")
        if not equals or name in values or name not in HEADER_PARTS:
            text = f"'{name:.40}' not a valid key=value pair (missing equal-sign, unknown, or twice) in Authorization header."
            raise SqsError("IncompleteSignatureException", text)
        values[name] = value
    date = request.headers.get("x-amz-date") or _of_date(request.headers.get("date", ""))
    missing = [f"Authorization header requires '{name}' parameter. " for name in HEADER_PARTS if not values.get(name)]
    if not date:
        missing.append("Authorization header requires existence of either a 'X-Amz-Date' or a 'Date' header. ")
    if missing:
        raise SqsError("IncompleteSignatureException", "".join(missing).strip())
    return Given(values["Credential"], date, values["SignedHeaders"], values["Signature"])


def _of_date(header: str) -> str:
    """A Date header in the format of X-Amz-Date; as it is if it cannot be read, or has that format already."""
    try:
        told = parsedate_to_datetime(header)
        return (told if told.tzinfo else told.replace(tzinfo=UTC)).astimezone(UTC).strftime("%Y%m%dT%H%M%SZ")
    except (ValueError, OverflowError):
        return header


def _read_query(request: Request) -> Given:
    if request.headers.get("authorization"):
        text = "Found both 'X-Amz-Algorithm' as a query-string param and 'Authorization' as HTTP header."
        raise SqsError("InvalidSignatureException", text)
    values: dict[str, str] = {}
    for name, value in _parse_query(request.query):
        key, text = unquote(name), unquote(value)
        if key.startswith("X-Amz-") and key in values:
            raise SqsError("IncompleteSignatureException", f"AWS query-string parameters must not include '{key:.40}' twice.")
        values[key] = text
    missing = [name for name in QUERY_PARTS if not values.get(f"X-Amz-{name}")]
    if missing:
        text = "".join(f"AWS query-string parameters must include 'X-Amz-{name}'. " for name in missing)
        raise SqsError("IncompleteSignatureException", text + "Re-examine the query-string parameters.")
    if values["X-Amz-Algorithm"] != ALGORITHM:
        text = f"Unsupported AWS 'algorithm': '{values['X-Amz-Algorithm']:.40}' (only {ALGORITHM} for now). "
        raise SqsError("IncompleteSignatureException", text)
    expires = values["X-Amz-Expires"]
    if not re.fullmatch("[0-9]{1,6}", expires) or not 1 <= int(expires) <= LONGEST_EXPIRY:
        text = f"X-Amz-Expires is '{expires:.40}'; it must be between 1 and {LONGEST_EXPIRY} seconds, a week"
        raise SqsError("IncompleteSignatureException", text)
    _, credential, date, _, signed, signature = (values[f"X-Amz-{name}"] for name in QUERY_PARTS)
    return Given(credential, date, signed, signature, int(expires))


def _read_credential(given: Given) -> tuple[str, str, str]:
    """The key's id, the day and the region."""
    parts = given.credential.split("/")
    if len(parts) != 5:
        of = "keyid/date/region/service/term"
        text = f"Credential must have exactly 5 slash-delimited elements, e.g. {of}, got '{given.credential:.80}'"
        raise SqsError("IncompleteSignatureException", text)
    id, day, region, service, terminator = parts
    wrong = ""
    if not REGION.fullmatch(region):
        wrong += f"Credential should be scoped to a valid region, not '{region:.40}'. "
    if service != SERVICE:
        wrong += f"Credential should be scoped to correct service: '{SERVICE}'. "
    if terminator != TERMINATOR:
        wrong += f"Credential should be scoped with a valid terminator: '{TERMINATOR}', not '{terminator:.40}'. "
    if day != given.date[:8]:
        of = f"'{day:.40}' != '{given.date[:8]}', from '{given.date}'"
        wrong += f"Date in Credential scope does not match YYYYMMDD from ISO-8601 version of date from HTTP: {of}."
    if wrong:
        raise SqsError("InvalidSignatureException", wrong.strip())
    if not SIGNATURE.fullmatch(given.signature):
        raise SqsError("InvalidSignatureException", MISMATCH)
    return id, day, region


def _check_signed(names: list[str], headers: Mapping[str, str]) -> None:
    if "host" not in names:
        text = "'Host' or ':authority' must be a 'SignedHeader' in the AWS Authorization."
        raise SqsError("InvalidSignatureException", text)
    for name in names:
        if name not in headers:
            raise SqsError("InvalidSignatureException", f"The signed header '{name:.80}' is not in the request.")
    for name in headers:
        if name.startswith("x-amz-") and name not in names:
            raise SqsError("InvalidSignatureException", f"The header '{name:.80}' must be a 'SignedHeader'.")


def _parse_query(query: str) -> list[tuple[str, str]]:
    pairs = [part.partition("=") for part in query.split("&")]
    return [(_encode(name), _encode(value)) for name, _, value in pairs]


def _encode(text: str) -> str:
    """However the sender has encoded it; a plus is a blank, as whoever reads the parameters takes it."""
    return quote(unquote_to_bytes(text.replace("+", " ")), safe=UNRESERVED)


def _canonical_query(query: str) -> str:
    if not query:
        return ""
    pairs = sorted(pair for pair in _parse_query(query) if pair[0] != "X-Amz-Signature")
    return "&".join(f"{name}={value}" for name, value in pairs)
