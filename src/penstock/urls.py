"""URLs of stores in errors and logs, without their passwords."""

from __future__ import annotations

import re

from penstock.errors import BadURL

_USER = re.compile(r"(?<=://)[^/?#]*@")
_SECRET = re.compile(r"([?&]\w*password=)[^&]*")
_PATH = re.compile(r"\w+:///")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://?")
_UP_TO_LAST_AT = re.compile(r".*(?:@|%40)", re.DOTALL)


def without_password(url: str) -> str:
    """The URL of a store to recognise it by: a password may change."""
    return _SECRET.sub(r"\1…", _USER.sub("", url))


def shown(url: str) -> str:
    """A URL as errors show it. It may be malformed, such as by a password with a slash, so all up to the last @ is left out."""
    if not _PATH.match(url):
        scheme = _SCHEME.match(url)
        url = _UP_TO_LAST_AT.sub(scheme[0] if scheme else "…@", url)
    return f"{without_password(url)!r:.200}"


def unreadable(url: str, error: object) -> BadURL:
    """The error for a URL that a parser refused. The parser's own words may show a part of a password."""
    why = error if shown(url) == f"{url!r:.200}" else "is its password percent-encoded, such as %2F for a slash?"
    return BadURL(f"URL {shown(url)} cannot be read: {why}")
