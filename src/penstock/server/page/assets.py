"""The files of the page, as a browser gets them. They are part of the package, and read once, when the server starts."""

from __future__ import annotations

import hashlib
from importlib.resources import files
from typing import NamedTuple

from penstock.server.http.request_response import Response

TYPES = {
    "css": "text/css; charset=utf-8",
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
"""Only files with these endings are served."""
INDEX = "index.html"
VIEWS = (
    "/",
    "/dashboard",
    "/dashboard/",
    "/dashboard/queues/{queue}",
    "/dashboard/queues/{queue}/messages",
    "/dashboard/queues/{queue}/messages/{id}",
    "/dashboard/dead-letters",
    "/dashboard/dead-letters/{queue}",
    "/dashboard/jobs",
    "/dashboard/schedules",
    "/dashboard/pipelines",
    "/dashboard/server",
    "/dashboard/sign-in",
)
POLICY = {
    "default-src": "'none'",
    "script-src": "'self'",
    "style-src": "'self'",
    "img-src": "'self' data: blob:",
    "connect-src": "'self'",
    "form-action": "'self'",
    "base-uri": "'none'",
    "frame-ancestors": "'none'",
}
"""What a browser may load and run here: our own files only, and no script or style within a page."""
HEADERS = {
    "Content-Security-Policy": "; ".join(f"{name} {sources}" for name, sources in POLICY.items()),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
}
"""With no-cache a browser keeps a file, but asks each time whether it is still the same: a new version is seen at once."""


class Asset(NamedTuple):
    body: bytes
    headers: dict[str, str]


class Assets:
    """Owns the files of the page."""

    def __init__(self) -> None:
        folder = files("penstock.server.page").joinpath("assets")
        self._assets = {
            each.name: _read(each.read_bytes(), each.name.rpartition(".")[2])
            for each in folder.iterdir()
            if each.name.rpartition(".")[2] in TYPES
        }

    @property
    def names(self) -> list[str]:
        return sorted(self._assets)

    def answer(self, name: str, known: str = "") -> Response | None:
        """The file, or only that it is the same if the browser has it: ``known`` are the tags of what it has. None if there is
        no such file."""
        asset = self._assets.get(name)
        if asset is None:
            return None
        tags = [tag.strip().removeprefix("W/") for tag in known.split(",")]
        same = asset.headers["ETag"] in tags
        return Response(304 if same else 200, dict(asset.headers), b"" if same else asset.body)


def _read(body: bytes, ending: str) -> Asset:
    tag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
    return Asset(body, {"Content-Type": TYPES[ending], "ETag": tag, **HEADERS})
