"""Bearer tokens, as penstock.toml describes them. docs/service.md has the table.

    [[token]]
    name = "shop"
    secret = "…"             # or sha256 = "…", to keep the secret out of the file; while it changes, a list of two
    scopes = ["send", "read"]
    queues = ["orders", "mail-*"]
    expires = 2027-01-01T00:00:00Z
    max_rate = 100

The settings keep digests of secrets; no log and no error contains a secret.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any

from penstock.errors import BadSetting
from penstock.server.http.request_response import NO_LIMITS, Grant, Limits, Scope

LEAST_SECRET = 16
MOST_SECRETS = 2
DIALECTS = ("mqs", "mq-core", "penstock", "sqs")
TOKEN_SETTINGS = {
    "name": "what the log and the limits call it",
    "secret": "at least 16 characters; while you change it, a list of the old and the new one",
    "sha256": "instead of the secret, its digest in hexadecimal: printf %s SECRET \\| sha256sum",
    "scopes": "any of count, read, send, receive, admin; all if left out",
    "queues": "names of queues, * for any text; all if left out",
    "dialects": f"any of {', '.join(DIALECTS)}; all if left out",
    "expires": "a date with a time and an offset, such as 2027-01-01T00:00:00Z, from which the token is refused",
    **(LIMIT_SETTINGS := {limit.name: limit.metadata["help"] for limit in fields(Limits)}),
}
"""What a [[token]] table may have."""


@dataclass(frozen=True, slots=True)
class Token:
    grant: Grant
    expires: float | None = None
    """Seconds since 1970."""


def digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode(errors="surrogatepass")).digest()  # JSON can have what no UTF-8 can


def read_tokens(tables: Sequence[Any], source: str, single: str) -> tuple[Token, ...]:
    tokens = [_read_token(table, f"{source}: token {place + 1}") for place, table in enumerate(tables)]
    check_names([token.grant for token in tokens], source)
    if single:
        tokens.append(Token(Grant("token", frozenset(Scope), ("*",), keys=(_check_secret(single, "token"),))))
    return tuple(tokens)


def check_names(grants: Sequence[Grant], source: str) -> None:
    limits: dict[str, Limits] = {}
    for grant in grants:
        if limits.setdefault(grant.name, grant.limits) != grant.limits:
            raise BadSetting(f"{source}: tokens of the name {grant.name!r:.80} are counted together, but have different limits")


def _read_token(table: Any, source: str) -> Token:
    check_table(table, TOKEN_SETTINGS, source)
    keys = _read_secrets(table, source)
    return Token(read_grant(table, source, keys), read_expiry(table.get("expires"), source))


def check_table(table: Any, known: Mapping[str, str], source: str) -> None:
    if not isinstance(table, dict):
        raise BadSetting(f"{source} is not a table")
    for name in table:
        if name not in known:
            raise BadSetting(f"{source}: there is no setting {name!r}; there are {', '.join(sorted(known))}")


def read_grant(table: Mapping[str, Any], source: str, keys: tuple[bytes, ...], *, name: str = "", account: str = "") -> Grant:
    """What a table of the file grants. ``name``: if the table has none."""
    name = table.get("name", name)
    if not isinstance(name, str):
        raise BadSetting(f"{source}: name must be text")
    scopes = _read_words(table, "scopes", list(Scope), source)
    dialects = _read_words(table, "dialects", list(DIALECTS), source) if "dialects" in table else []
    limits = _read_limits(table, source)
    if limits is not NO_LIMITS and not name:
        raise BadSetting(f"{source}: a token with limits needs a name, by which its requests are counted")
    if Scope.READ in scopes:
        scopes.append(Scope.COUNT)
    queues = tuple(_read_texts(table, "queues", ["*"], source))
    return Grant(name, frozenset(map(Scope, scopes)), queues, limits, frozenset(dialects), keys, account)


def _read_texts(table: Mapping[str, Any], name: str, default: list[str], source: str) -> list[str]:
    values = table.get(name, default)
    if not isinstance(values, list) or not values or not all(isinstance(value, str) for value in values):
        raise BadSetting(f"{source}: {name} must be a list of texts")
    return list(values)


def _read_words(table: Mapping[str, Any], name: str, known: list[str], source: str) -> list[str]:
    words = _read_texts(table, name, known, source)
    unknown = [word for word in words if word not in known]
    if unknown:
        raise BadSetting(f"{source}: there is no {name.removesuffix('s')} {unknown[0]!r:.80}; there are {', '.join(known)}")
    return words


def _read_limits(table: Mapping[str, Any], source: str) -> Limits:
    given = {limit.name: table[limit.name] for limit in fields(Limits) if limit.name in table}
    for name, value in given.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 2**53:
            raise BadSetting(f"{source}: {name} is {value!r:.80}; it must be a number above 0")
        if not isinstance(value, int) and not name.endswith("rate"):
            raise BadSetting(f"{source}: {name} is {value!r:.80}; it must be a whole number")
    return Limits(**given) if given else NO_LIMITS


def read_expiry(expires: object, source: str) -> float | None:
    if expires is None:
        return None
    if not isinstance(expires, datetime) or expires.tzinfo is None:
        raise BadSetting(
            f"{source}: expires is {str(expires)!r:.80}; write a date, a time and an offset, such as 2027-01-01T00:00:00Z"
        )
    return expires.timestamp()


def _read_secrets(table: Mapping[str, Any], source: str) -> tuple[bytes, ...]:
    if ("secret" in table) == ("sha256" in table):
        raise BadSetting(f"{source}: give either secret or sha256")
    name = "secret" if "secret" in table else "sha256"
    check = _check_secret if name == "secret" else _check_digest
    return tuple(check(each, source) for each in one_or_two(table[name], source))


def one_or_two(given: Any, source: str) -> list[Any]:
    if isinstance(given, list) and not 1 <= len(given) <= MOST_SECRETS:
        raise BadSetting(f"{source}: there are {len(given)} secrets; a token has one, or {MOST_SECRETS} while it changes")
    return given if isinstance(given, list) else [given]


def _check_digest(told: object, source: str) -> bytes:
    try:
        known = bytes.fromhex(told) if isinstance(told, str) else b""
    except ValueError:
        known = b""
    if len(known) != hashlib.sha256().digest_size:
        raise BadSetting(f"{source}: sha256 must be 64 hexadecimal digits")
    return known


def _check_secret(secret: object, source: str) -> bytes:
    return digest(check_secret(secret, source))


def check_secret(secret: object, source: str) -> str:
    if not isinstance(secret, str) or len(secret) < LEAST_SECRET:
        raise BadSetting(f"{source}: a secret has at least {LEAST_SECRET} characters")
    return secret
