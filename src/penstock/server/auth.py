"""Access rights: bearer tokens, each with scopes for the queues whose names match its patterns.

    [[token]]
    name = "shop"
    secret = "…"             # or sha256 = "…", to keep the secret out of the file
    scopes = ["send", "read"]
    queues = ["orders", "mail-*"]

Secrets are kept as digests and compared in constant time; no log and no error contains them.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import lru_cache
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

from penstock.errors import BadSetting
from penstock.server.http.request_response import EVERYTHING, Grant, Refused, Scope

LEAST_SECRET = 16
LONGEST_HOST = 300
OWN_SITE = ("none", "same-origin")
"""What a browser says of a request that its user, or a page of this server, has made."""
KNOWN = {"name", "secret", "sha256", "scopes", "queues"}


@dataclass(frozen=True, slots=True)
class Token:
    grant: Grant
    digest: bytes = field(repr=False)


def digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()


class Guard:
    """Decides what a request may do. Without any token it may do everything, but only from this machine.

    A web page must not use a browser to get in. It could by a name of its own that leads here (DNS rebinding), so the Host must
    be known; and by a request to another site, of which browsers tell in Sec-Fetch-Site and Origin."""

    def __init__(self, tokens: Sequence[Token], host: str, hosts: str = "") -> None:
        """``hosts``: more names of this server, as patterns, with commas between them."""
        self._tokens = tokens
        self._host = host.strip("[]").lower()
        self._names = [name.strip().lower() for name in hosts.split(",") if name.strip()]
        self._is_known = lru_cache(maxsize=64)(self._find)
        if not tokens and not is_loopback(host):
            raise BadSetting(
                f"host {host!r} can be reached from other machines: that needs a token (PENSTOCK_TOKEN or [[token]])"
            )
        if not tokens and any(set(name) <= {"*", "?", "."} for name in self._names):
            raise BadSetting(f"hosts {hosts!r:.200} lets in every name, and so every web page: that needs a token")

    def grant(self, headers: Mapping[str, str]) -> Grant:
        self._check_page(headers)
        if not self._tokens:
            return EVERYTHING
        scheme, _, secret = headers.get("authorization", "").partition(" ")
        presented = digest(secret.strip())
        found = None
        for token in self._tokens:  # always compare all, so that the timing reveals nothing
            if hmac.compare_digest(token.digest, presented):
                found = token.grant
        if found is None or scheme.lower() != "bearer":
            raise Refused(
                401, "this server wants a bearer token that it knows", {"WWW-Authenticate": 'Bearer realm="penstock"'}
            )
        return found

    def _check_page(self, headers: Mapping[str, str]) -> None:
        host = headers.get("host", "localhost")
        if len(host) > LONGEST_HOST or not self._is_known(host):
            raise Refused(403, f"this server is not known as {host!r:.80}; its names are in the setting hosts")
        if headers.get("sec-fetch-site", "none") not in OWN_SITE:
            raise Refused(403, "no page of another site may send requests here")
        origin = headers.get("origin")
        if origin is not None and not self._tokens and origin.partition("://")[2] != host:
            raise Refused(403, "without a token, no other site's pages may send requests here")

    def _find(self, host: str) -> bool:
        """An address is always known: no name leads to it, so nobody can make a name lead elsewhere."""
        name = host_name(host)
        return (
            name == self._host or is_address(name) or name == "localhost" or any(fnmatchcase(name, own) for own in self._names)
        )


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


def read_tokens(tables: Sequence[Any], source: str, single: str) -> tuple[Token, ...]:
    tokens = [_read_token(table, f"{source}: token {place + 1}") for place, table in enumerate(tables)]
    if single:
        tokens.append(Token(Grant("token", frozenset(Scope), ("*",)), _check_secret(single, "token")))
    return tuple(tokens)


def _read_token(table: Any, source: str) -> Token:
    if not isinstance(table, dict):
        raise BadSetting(f"{source} is not a table")
    for name in table:
        if name not in KNOWN:
            raise BadSetting(f"{source}: there is no setting {name!r}; there are {', '.join(sorted(KNOWN))}")
    scopes, queues = table.get("scopes", list(Scope)), table.get("queues", ["*"])
    for name, values in (("scopes", scopes), ("queues", queues)):
        if not isinstance(values, list) or not values or not all(isinstance(value, str) for value in values):
            raise BadSetting(f"{source}: {name} must be a list of texts")
    unknown = [scope for scope in scopes if scope not in set(Scope)]
    if unknown:
        raise BadSetting(f"{source}: there is no scope {unknown[0]!r}; there are {', '.join(Scope)}")
    if ("secret" in table) == ("sha256" in table):
        raise BadSetting(f"{source}: give either secret or sha256")
    if "secret" in table:
        known = _check_secret(table["secret"], source)
    else:
        try:
            known = bytes.fromhex(table["sha256"])
        except (TypeError, ValueError):
            known = b""
        if len(known) != hashlib.sha256().digest_size:
            raise BadSetting(f"{source}: sha256 must be 64 hexadecimal digits")
    return Token(Grant(str(table.get("name", "")), frozenset(map(Scope, scopes)), tuple(queues)), known)


def _check_secret(secret: object, source: str) -> bytes:
    if not isinstance(secret, str) or len(secret) < LEAST_SECRET:
        raise BadSetting(f"{source}: a secret has at least {LEAST_SECRET} characters")
    return digest(secret)
