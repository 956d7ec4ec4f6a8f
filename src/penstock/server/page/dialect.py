"""The page's own addresses: / for a browser, and /dashboard….

    GET /  /dashboard/…            index.html: every view has an address, and the browser finds the view
    GET /dashboard/assets/NAME     its files
    GET /dashboard/api             the description of all paths
    GET POST DELETE /dashboard/session     who is signed in; sign in with {"token": …}; sign out

The views get their data where all programs get it, under /penstock.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import penstock
from penstock.errors import BadInput, PenstockError
from penstock.server.auth import Guard
from penstock.server.dialects.base import Core, Dialect, Route
from penstock.server.dialects.operators import describe_paths
from penstock.server.http.request_response import (
    NOBODY,
    Grant,
    Refused,
    Request,
    Response,
    answer_json,
    read_json,
)
from penstock.server.page.assets import INDEX, VIEWS, Assets
from penstock.server.page.sessions import PageSession, Sessions

SESSION = "session"
LONGEST_SIGN_IN = 8 * 1024
"""Bytes of a request with a token."""
PRIVATE = {"Cache-Control": "no-store"}


def prefers_html(accept: str) -> bool:
    """Whether a client asks for HTML by name, and for nothing else rather, as browsers do. Programs ask for JSON or for
    anything."""
    wanted = dict(_read_choice(choice) for choice in accept.split(","))
    html = wanted.get("text/html", 0.0)
    return html > 0 and html >= max(wanted.values())


def _read_choice(choice: str) -> tuple[str, float]:
    kind, *parameters = choice.split(";")
    quality = next((text.strip()[2:] for text in parameters if text.strip().startswith("q=")), "1")
    try:
        return kind.strip().lower(), float(quality)
    except ValueError:
        return kind.strip().lower(), 0.0


class PageDialect(Dialect):
    name = "page"
    reserved = frozenset({"dashboard"})
    errors: ClassVar = [(BadInput, 400), (PenstockError, 503)]

    def __init__(self, core: Core, guard: Guard, sessions: Sessions) -> None:
        super().__init__(core)
        self._guard = guard
        self._sessions = sessions
        self._assets = Assets()

    def routes(self) -> Sequence[Route]:
        return [
            *(Route("GET", path, None, self.view) for path in VIEWS),
            Route("GET", "/dashboard/assets/{name}", None, self.asset),
            Route("GET", "/dashboard/api", None, self.api),
            Route("GET", "/dashboard/session", None, self.session),
            Route("POST", "/dashboard/session", None, self.sign_in),
            Route("DELETE", "/dashboard/session", None, self.sign_out),
        ]

    @staticmethod
    def claims(request: Request) -> bool:
        """Whether a request for / comes from a browser that shows a page."""
        return request.segments == ("",) and request.method == "GET" and prefers_html(request.headers.get("accept", ""))

    def start(self) -> None:
        if self._guard.tokens:
            self._sessions.look()

    def authorize(self, guard: Guard, request: Request) -> Grant:
        """Anybody may have the files of the page, which know nothing of the queues."""
        match request.segments:
            case (_, "api"):
                return guard.grant_own(request)
            case (_, "session" | "assets", *_):
                guard.check_visitor(request)
            case _:
                guard.check_visitor(request, follows_link=True)
        return NOBODY

    def keep(self, request: Request) -> int:
        return LONGEST_SIGN_IN if request.segments[1:] == (SESSION,) and request.method == "POST" else 0

    async def view(self, request: Request, **_: str) -> Response:
        return self._file(request, INDEX)

    async def asset(self, request: Request, name: str) -> Response:
        return self._file(request, name)

    def _file(self, request: Request, name: str) -> Response:
        answer = self._assets.answer(name, request.headers.get("if-none-match", ""))
        if answer is None:
            raise Refused(404, f"the page has no file {name!r:.80}")
        return answer

    async def api(self, request: Request) -> Response:
        return describe_paths(self.settings.max_wait)

    # signing in

    async def session(self, request: Request) -> Response:
        """Who is signed in. If somebody is, this also renews the cookie, up to the end of the longest session."""
        if self._guard.is_open:
            return answer_json(200, self._show(self._guard.grant_own(request), None), PRIVATE)
        found = await self._sessions.find(request)
        if found is None:
            return answer_json(200, self._show(None, None), PRIVATE)
        renewed = self._sessions.renew(found)
        return self._answer(request, renewed)

    async def sign_in(self, request: Request) -> Response:
        if request.length > LONGEST_SIGN_IN:
            raise Refused(413, f"a request to sign in has at most {LONGEST_SIGN_IN} bytes")
        given = read_json(request.body)
        match given:
            case {"token": str(secret)} if len(given) == 1:
                pass
            case _:
                raise BadInput('the body must be {"token": "…"}')
        if self._guard.is_open:
            raise BadInput("this server has no tokens: there is no need to sign in")
        session = await self._sessions.sign_in(request, secret)
        request.grant, request.deed = session.token.grant, "sign in"
        return self._answer(request, session)

    async def sign_out(self, request: Request) -> Response:
        found = None if self._guard.is_open else await self._sessions.find(request)
        if found is not None:
            self._sessions.check_csrf(found, request)
            await self._sessions.end(found)
            request.grant, request.deed = found.token.grant, "sign out"
        return Response(204, {"Set-Cookie": self._sessions.no_cookie(request), **PRIVATE})

    def _answer(self, request: Request, session: PageSession) -> Response:
        cookie = {"Set-Cookie": self._sessions.cookie(request, session)}
        return answer_json(200, self._show(self._guard.narrow(session.token.grant), session), {**cookie, **PRIVATE})

    def _show(self, grant: Grant | None, session: PageSession | None) -> dict[str, Any]:
        """What the page needs to know. A visitor that is not signed in learns only that it has to be."""
        if grant is None:
            return {"signed_in": False, "tokens": True}
        return {
            "signed_in": True,
            "tokens": session is not None,
            "name": grant.name,
            "scopes": sorted(grant.scopes),
            "queues": list(grant.queues),
            "read_only": self.settings.page == "read-only",
            "csrf": None if session is None else session.csrf,
            "expires_at": None if session is None else session.expires * 1_000_000,
            "version": penstock.__version__,
        }
