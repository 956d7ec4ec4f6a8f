"""Sessions: a person signs in with a token, and the browser has a cookie instead.

    started.expires.nonce.proof      seconds since 1970, seconds since 1970, 24 hexadecimal digits, 64 hexadecimal digits

The proof is a keyed digest of what is before it. Its key is made of two: one of the store, which all servers of the store
share, and the digest of the token's secret. So a session lasts through a restart and counts at every node and in every worker,
nothing has to be kept for it, and it ends when its token is removed or gets another secret. Somebody who reads the digests in a
file of settings cannot make one.

    labels of the queue `QUEUE`      penstock.private.key      the store's key
                                     penstock.private.ended    nonce:until … of the sessions that were signed out

No dialect shows labels that begin with `PRIVATE`.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from penstock.bridge.commits import Commits
from penstock.broker import LocalBroker
from penstock.message import PRIVATE
from penstock.server.audit import Audit
from penstock.server.auth import WANTS_TOKEN, Guard, check_origin
from penstock.server.http.request_response import Refused, Request
from penstock.server.page.attempts import WrongTokens
from penstock.server.settings import ServerSettings
from penstock.server.tokens import Token, digest

logger = logging.getLogger("penstock.server")

QUEUE = "penstock.sessions"
KEY, ENDED = f"{PRIVATE}key", f"{PRIVATE}ended"
IDLE = 30 * 60
"""Seconds that a session lasts without being renewed."""
LONGEST = 12 * 60 * 60
"""Seconds after which a person signs in again."""
LOOK_EVERY = 5.0
"""Seconds for which a server believes what it knows of the key and of sessions that were ended elsewhere."""
MOST_ENDED = 500
LONGEST_COOKIE = 200
CSRF_HEADER = "x-penstock-csrf"
SAFE = frozenset({"GET", "HEAD"})
DIALECT = "penstock"
"""What the page speaks."""


@dataclass(frozen=True, slots=True)
class PageSession:
    token: Token
    key: bytes
    started: int
    expires: int
    nonce: str

    @property
    def text(self) -> str:
        """The cookie."""
        told = f"{self.started}.{self.expires}.{self.nonce}"
        return f"{told}.{_prove(self.key, told)}"

    @property
    def csrf(self) -> str:
        """What a page of ours sends with each change. Pages of others cannot read it; it stays the same for a session."""
        return _prove(self.key, f"csrf {self.nonce}")

    @property
    def ends(self) -> int:
        """When it ends, however often it is renewed."""
        most = self.started + LONGEST
        return most if self.token.expires is None else min(most, int(self.token.expires))


class Sessions:
    """Makes and reads sessions. Owns what this process knows of the store's key and of the sessions that were ended."""

    def __init__(
        self,
        broker: LocalBroker,
        commits: Commits,
        guard: Guard,
        audit: Audit,
        settings: ServerSettings,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """``clock``: seconds since 1970."""
        self._broker = broker
        self._commits = commits
        self._guard = guard
        self._audit = audit
        self._clock = clock
        self._tls = bool(settings.tls_cert)
        # Browsers send a cookie to all ports of a host, and there may be another server at one of them. With the prefix they
        # take it from this very host only, and not from one whose name ends like it.
        self._name = f"{'__Host-' if self._tls else ''}penstock_session_{settings.port}"
        self._attempts = WrongTokens()
        self._key: bytes | None = None
        self._ended: dict[str, int] = {}
        self._known_until = float("-inf")
        """When to look at the store again."""
        self._looking: asyncio.Task[None] | None = None

    # what a request brings

    def read(self, request: Request) -> Token | None:
        """The token of the session that a request belongs to; None if it has no cookie of ours. Raises `Refused` if the session
        has ended, or if another page may have made the request."""
        text = self._cookie(request.headers)
        if text is None:
            return None
        self.look()
        if self._key is None and self._looking is not None:
            raise Refused(503, "the key of the sessions is being read; try again", {"Retry-After": "1"})
        session = self._parse(text)
        if session is None:
            raise Refused(401, "this session has ended; sign in again", WANTS_TOKEN)
        check_origin(request.headers)
        if request.method not in SAFE:
            self.check_csrf(session, request)
        request.still = partial(self._counts, session)
        return session.token

    async def find(self, request: Request) -> PageSession | None:
        """The session of a request, if it has one that counts."""
        text = self._cookie(request.headers)
        if text is None:
            return None
        if self._clock() >= self._known_until:
            await self._commits.run(self._read, promise=False)
        return self._parse(text)

    def check_csrf(self, session: PageSession, request: Request) -> None:
        if not hmac.compare_digest(request.headers.get(CSRF_HEADER, "").encode(), session.csrf.encode()):
            raise Refused(403, "this change lacks the proof that a page of this server asks for it (X-Penstock-CSRF)")

    def _cookie(self, headers: Mapping[str, str]) -> str | None:
        """Of two with our name, one was set by somebody else; then neither counts."""
        pairs = (pair.strip().partition("=") for pair in headers.get("cookie", "").split(";"))
        found = {value for name, _, value in pairs if name == self._name}
        return None if not found else found.pop() if len(found) == 1 else ""

    def _parse(self, text: str) -> PageSession | None:
        parts = text.split(".") if len(text) <= LONGEST_COOKIE and text.isascii() else []
        if self._key is None or len(parts) != 4 or not all(part.isdecimal() and len(part) < 15 for part in parts[:2]):
            return None
        told, proof = text.rpartition(".")[0], parts[3]
        found = None
        for token in self._guard.tokens:
            for known in token.grant.keys:
                key = _join(self._key, known)
                if hmac.compare_digest(_prove(key, told), proof):
                    found = PageSession(token, key, int(parts[0]), int(parts[1]), parts[2])
        return found if found is not None and found.expires > self._clock() and self._counts(found) else None

    def _counts(self, session: PageSession) -> bool:
        """Whether a session still counts, but for when it was used last: its token is known, and may do the same."""
        self.look()
        now = self._clock()
        is_known = any(
            hmac.compare_digest(_join(self._key, known), session.key) and token == session.token
            for token in self._guard.tokens
            for known in token.grant.keys
            if self._key is not None
        )
        return is_known and session.nonce not in self._ended and session.ends > now

    # signing in and out

    async def sign_in(self, request: Request, secret: str) -> PageSession:
        address = str(getattr(request.client, "address", ""))
        self._attempts.check(address)
        try:
            token = self._guard.find_token(secret)
        except Refused:
            self._attempts.count(address)
            self._audit.note("", "wrong token", address=address)
            raise
        if token.grant.dialects and DIALECT not in token.grant.dialects:
            raise Refused(403, f"this token may not use the dialect {DIALECT}, which the page speaks")
        await self._commits.run(self._make_key)
        assert self._key is not None
        started = int(self._clock())
        key = _join(self._key, next(known for known in token.grant.keys if hmac.compare_digest(known, digest(secret))))
        return self.renew(PageSession(token, key, started, 0, secrets.token_hex(12)))

    def renew(self, session: PageSession) -> PageSession:
        return replace(session, expires=min(int(self._clock()) + IDLE, session.ends))

    async def end(self, session: PageSession) -> None:
        await self._commits.run(partial(self._note_end, session))

    def cookie(self, request: Request, session: PageSession) -> str:
        return self._set(request, session.text, session.expires - int(self._clock()))

    def no_cookie(self, request: Request) -> str:
        return self._set(request, "", 0)

    def _set(self, request: Request, text: str, seconds: int) -> str:
        secure = self._tls or request.headers.get("x-forwarded-proto") == "https"
        how = f"Path=/; HttpOnly; SameSite=Strict; Max-Age={max(0, seconds)}{'; Secure' if secure else ''}"
        return f"{self._name}={text}; {how}"

    # what the store knows

    def look(self) -> None:
        """Look at the store again, if that was long ago; nobody waits for it."""
        if self._clock() >= self._known_until and (self._looking is None or self._looking.done()):
            self._looking = asyncio.get_running_loop().create_task(self._look())

    async def _look(self) -> None:
        error = await self._commits.begin(self._read, LOOK_EVERY)
        if error is not None:
            logger.debug("could not read the key of the sessions: %s", error)
        self._looking = None

    def _read(self) -> None:
        """In a thread of commits."""
        settings = self._broker.store.load(QUEUE)
        self._take({} if settings is None else settings.labels)

    def _take(self, labels: Mapping[str, str]) -> None:
        self._key = bytes.fromhex(labels[KEY]) if KEY in labels else None
        pairs = (each.partition(":") for each in labels.get(ENDED, "").split())
        self._ended = {nonce: int(until) for nonce, _, until in pairs}
        self._known_until = self._clock() + LOOK_EVERY

    def _make_key(self) -> None:
        """In a thread of commits: read the key, and first make one if there is none."""
        store = self._broker.store
        if store.load(QUEUE) is None:
            self._broker.create(QUEUE, exist_ok=True)
        with store.batch():
            store.reserve(QUEUE)
            home = self._broker.queue(QUEUE)
            labels = home.settings.labels
            if KEY not in labels:
                labels = home.update(labels={KEY: secrets.token_hex(32)}).labels
        self._take(labels)

    def _note_end(self, session: PageSession) -> None:
        """In a thread of commits. What has ended by itself need not be known, and the oldest make room."""
        store, now = self._broker.store, self._clock()
        with store.batch():
            store.reserve(QUEUE)
            self._read()
            ended = {nonce: until for nonce, until in self._ended.items() if until > now}
            ended[session.nonce] = session.ends
            text = " ".join(f"{nonce}:{until}" for nonce, until in list(ended.items())[-MOST_ENDED:])
            self._take(self._broker.queue(QUEUE).update(labels={ENDED: text}).labels)


def _join(store: bytes | None, token: bytes) -> bytes:
    return hashlib.blake2b(token, key=store or b"", digest_size=32, person=b"penstock token").digest()


def _prove(key: bytes, told: str) -> str:
    return hashlib.blake2b(told.encode(), key=key, digest_size=32, person=b"penstock session").hexdigest()
