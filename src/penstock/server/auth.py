"""Access rights: which requests come in, and what each may do. `penstock.server.tokens` reads the tokens."""

from __future__ import annotations

import hmac
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import lru_cache, partial
from ipaddress import ip_address
from typing import Protocol
from urllib.parse import urlsplit

from penstock.errors import (
    BadInput,
    BadSetting,
    OutcomeUnknown,
    PenstockError,
    SegmentLost,
    StoreBusy,
    StoreClosed,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreUnreachable,
)
from penstock.server.dialects.sqs.errors import SqsError
from penstock.server.dialects.sqs.signature import Signatures
from penstock.server.http.request_response import EVERYTHING, NOBODY, Grant, Refused, Request, Scope
from penstock.server.sqs_keys import SqsKey
from penstock.server.tokens import Token, digest

LONGEST_HOST = 300
NOBODYS = re.compile(r"localhost|[a-z0-9.-]+\.localhost|(sqs\.[a-z0-9-]+|([a-z0-9-]+\.)?queue)\.amazonaws\.com(\.cn)?")
"""Names that no page can have: those below localhost never leave a machine, and those of Amazon SQS, by which its clients may
call a server that stands in for it, are Amazon's."""
OWN_SITE = ("none", "same-origin")
"""What a browser says of a request that its user, or a page of this server, has made."""
WANTS_TOKEN = {"WWW-Authenticate": 'Bearer realm="penstock"'}
LOOKING = frozenset({Scope.COUNT, Scope.READ})
"""What a page may do that is read-only."""


FAILURES: tuple[tuple[type[StoreError], str], ...] = (
    (StoreBusy, "the store is busy; try again soon"),
    (StoreFull, "the store has no space left"),
    (SegmentLost, "a staged segment of the batch is missing or incomplete; nothing was published"),
    (StoreReadOnly, "the store is read-only"),
    (StoreCorrupt, "the store is damaged"),
    (StoreUnreachable, "the store cannot be reached"),
    (OutcomeUnknown, "it is not known whether this was done"),
    (StoreClosed, "the store was closed"),
    (StoreError, "the store failed"),
)
"""What a client is told that may not know where the store is; the log says the rest."""


def told_to(grant: Grant, error: PenstockError, store: object) -> PenstockError:
    """The error as this client may see it. Paths and addresses are for those who may change all queues."""
    if grant.allows_all(Scope.ADMIN):
        return error
    for kind, text in FAILURES:
        if isinstance(error, kind):
            return type(error)(text)
    place = str(store)
    if isinstance(error, BadInput) and place in str(error):
        return type(error)(str(error).replace(place, "the store"))
    return error


class SignedIn(Protocol):
    """Who has signed in on the page."""

    def read(self, request: Request) -> Token | None:
        """The token of the session that a request belongs to; None if it belongs to none. Raises `Refused` if the session has
        ended, or if a page of another site may have made the request."""


class Guard:
    """Decides what a request may do. Without any token or key it may do everything, but only from this machine.

    A web page must not use a browser to get in. It could by a name of its own that leads here (DNS rebinding), so the Host must
    be known; and by a request to another site, of which browsers tell in Sec-Fetch-Site and Origin."""

    def __init__(
        self,
        tokens: Sequence[Token],
        host: str,
        hosts: str = "",
        *,
        sqs_keys: Sequence[SqsKey] = (),
        tls: bool = False,
        page: str = "off",
        clock: Callable[[], float] = time.time,
    ) -> None:
        """``hosts``: more names of this server, as patterns, with commas between them. With ``tls`` any name is known: browsers
        compare it with the certificate. ``page``: as in the settings. ``clock``: seconds since 1970."""
        self.signed_in: SignedIn | None = None
        """If the server has a page."""
        self._page = page
        self._any_name = tls
        self._tokens = tokens
        self._sqs_keys = sqs_keys
        self._signatures = Signatures(sqs_keys, clock)
        self._clock = clock
        self._host = host.strip("[]").lower()
        self._names = [name.strip().lower() for name in hosts.split(",") if name.strip()]
        self._is_known = lru_cache(maxsize=64)(self._find)
        if self.is_open and not is_loopback(host):
            raise BadSetting(
                f"host {host!r} can be reached from other machines: that needs a token (PENSTOCK_TOKEN or [[token]])"
            )
        if self.is_open and any(set(name) <= {"*", "?", "."} for name in self._names):
            raise BadSetting(f"hosts {hosts!r:.200} lets in every name, and so every web page: that needs a token")

    @property
    def is_open(self) -> bool:
        """Whether there is no token and no key."""
        return not self._tokens and not self._sqs_keys

    @property
    def tokens(self) -> Sequence[Token]:
        return self._tokens

    def grant(self, headers: Mapping[str, str]) -> Grant:
        self._check_page(headers)
        return EVERYTHING if self.is_open else self._by_token(headers)

    def grant_own(self, request: Request) -> Grant:
        """Of a request in a dialect that the page speaks: its sender has a token, or has signed in with one. A cookie counts
        nowhere else, because browsers send it by themselves, and in other dialects a GET may take a message."""
        headers = request.headers
        self._check_page(headers)
        if self.is_open:
            return self.narrow(EVERYTHING) if headers.get("sec-fetch-site") == "same-origin" else EVERYTHING
        if self.signed_in is not None and "authorization" not in headers:
            token = self.signed_in.read(request)
            if token is not None:
                return self.narrow(token.grant)
        token = self._token_of(headers)
        request.still = partial(self._counts, token, headers)
        return token.grant

    def narrow(self, grant: Grant) -> Grant:
        """What a page may do for somebody who has this grant."""
        return replace(grant, scopes=grant.scopes & LOOKING) if self._page == "read-only" else grant

    def check_visitor(self, request: Request, *, follows_link: bool = False) -> None:
        """Let anybody come to the page who may not be signed in. ``follows_link``: also from a page of another site, as long as
        the browser shows ours in place of that."""
        headers = request.headers
        shown = (headers.get("sec-fetch-mode"), headers.get("sec-fetch-dest")) == ("navigate", "document")
        self._check_page(headers, own=not (follows_link and shown and request.method == "GET"))
        check_origin(headers)

    def grant_signed(self, request: Request) -> Grant:
        """Of a request in the SQS dialect, which has a signature or a token. If it is `NOBODY`, `Request.prove` tells the grant
        when the body is there."""
        headers = request.headers
        self._check_page(headers)
        if self.is_open:
            return EVERYTHING
        if headers.get("authorization", "")[:7].lower() == "bearer ":
            try:
                return self._by_token(headers)
            except Refused as refusal:
                raise SqsError("UnrecognizedClientException", str(refusal)) from None
        request.prove = partial(self._signatures.prove, self._signatures.read(request))
        return NOBODY

    def _by_token(self, headers: Mapping[str, str]) -> Grant:
        return self._token_of(headers).grant

    def _token_of(self, headers: Mapping[str, str]) -> Token:
        scheme, _, secret = headers.get("authorization", "").partition(" ")
        return self.find_token(secret.strip() if scheme.lower() == "bearer" else "")

    def find_token(self, secret: str) -> Token:
        """The token with this secret; `Refused` if there is none, or if it has expired."""
        presented = digest(secret)
        found = None
        for token in self._tokens:  # always compare all, so that the timing reveals nothing
            for known in token.grant.keys:
                if hmac.compare_digest(known, presented):
                    found = token
        if found is None:
            raise Refused(401, "this server wants a bearer token that it knows", WANTS_TOKEN)
        if found.expires is not None and found.expires <= self._clock():
            raise Refused(401, "this token has expired", WANTS_TOKEN)
        return found

    def _counts(self, token: Token, headers: Mapping[str, str]) -> bool:
        """Whether a token that was found still counts: its secret is known, and may do the same."""
        try:
            return self._token_of(headers) == token
        except Refused:
            return False

    def replace(self, tokens: Sequence[Token], sqs_keys: Sequence[SqsKey] = ()) -> None:
        """Know these tokens and keys from now on. Requests that have begun are finished."""
        if not self.is_open and not tokens and not sqs_keys:
            raise BadSetting("there is no token any more; to serve without tokens, start the server again")
        self._tokens, self._sqs_keys = tokens, sqs_keys
        self._signatures.replace(sqs_keys)

    def _check_page(self, headers: Mapping[str, str], *, own: bool = True) -> None:
        """``own``: a page of another site must not have made the request."""
        host = headers.get("host", "localhost")
        if not self._any_name and (len(host) > LONGEST_HOST or not self._is_known(host)):
            raise Refused(403, f"this server is not known as {host!r:.80}; its names are in the setting hosts")
        if own and headers.get("sec-fetch-site", "none") not in OWN_SITE:
            raise Refused(403, "no page of another site may send requests here")
        if self.is_open:
            check_origin(headers)

    def _find(self, host: str) -> bool:
        """An address is always known: no name leads to it, so nobody can make a name lead elsewhere."""
        name = host_name(host)
        return (
            name == self._host
            or is_address(name)
            or NOBODYS.fullmatch(name) is not None
            or any(fnmatchcase(name, own) for own in self._names)
        )


def check_origin(headers: Mapping[str, str]) -> None:
    """For a request without a token of its own: a page that has made it must be ours."""
    origin = headers.get("origin")
    if origin is not None and origin.partition("://")[2] != headers.get("host", "localhost"):
        raise Refused(403, "without a token, no other site's pages may send requests here")


def host_name(host: str) -> str:
    """The name in a Host header; empty if it cannot be parsed."""
    try:
        return (urlsplit(f"//{host}").hostname or "").lower()
    except ValueError:
        return ""


def is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def is_loopback(host: str) -> bool:
    if host.lower() == "localhost":
        return True
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
