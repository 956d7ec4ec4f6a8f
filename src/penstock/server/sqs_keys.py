"""Access keys of SQS clients, as penstock.toml describes them. docs/sqs.md has the table.

    [[sqs_key]]
    id = "AKIASHOP"
    secret = "…"             # while it changes, a list of two
    scopes = ["send", "receive"]
    queues = ["orders", "mail-*"]
    account = "123456789012"

A signature is made with the secret itself, not with a digest of it: the server has to know it. It is in no log and in no error.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from penstock.errors import BadSetting
from penstock.server.http.request_response import Grant
from penstock.server.tokens import (
    TOKEN_SETTINGS,
    check_secret,
    check_table,
    digest,
    one_or_two,
    read_expiry,
    read_grant,
)

ID = re.compile(r"[A-Za-z0-9_.-]{3,128}")
ACCOUNT = re.compile(r"[0-9]{12}")
KEY_SETTINGS: Mapping[str, str] = {
    "id": "the access key id: 3 to 128 of A-Z, a-z, 0-9, `_`, `.` and `-`; one of 12 digits is its account too",
    "account": "12 digits: the account of its queues; the setting sqs_account if left out",
    **{name: help for name, help in TOKEN_SETTINGS.items() if name not in ("sha256", "dialects")},
    "name": "what the log and the limits call it; its id if left out",
}
"""What a [[sqs_key]] table may have."""


@dataclass(frozen=True, slots=True)
class SqsKey:
    id: str
    secrets: tuple[str, ...] = field(repr=False, compare=False)
    """The newest last."""
    grant: Grant
    expires: float | None = None
    """Seconds since 1970."""


def read_sqs_keys(tables: Sequence[Any], source: str) -> tuple[SqsKey, ...]:
    keys = [_read_key(table, f"{source}: sqs_key {place + 1}") for place, table in enumerate(tables)]
    ids = [key.id for key in keys]
    for id in ids:
        if ids.count(id) > 1:
            raise BadSetting(f"{source}: there are several keys with the id {id!r}")
    return tuple(keys)


def _read_key(table: Any, source: str) -> SqsKey:
    check_table(table, KEY_SETTINGS, source)
    id, account = table.get("id", ""), table.get("account")
    if not isinstance(id, str) or not ID.fullmatch(id):
        raise BadSetting(f"{source}: id is {id!r:.80}; it must be {KEY_SETTINGS['id'].partition(': ')[2].partition(';')[0]}")
    if account is None:
        account = id if ACCOUNT.fullmatch(id) else ""
    elif not isinstance(account, str) or not ACCOUNT.fullmatch(account):
        raise BadSetting(f"{source}: account is {account!r:.80}; it must be 12 digits, as text")
    if "secret" not in table:
        raise BadSetting(f"{source}: there is no secret")
    secrets = tuple(check_secret(secret, source) for secret in one_or_two(table["secret"], source))
    grant = read_grant(table, source, tuple(map(digest, secrets)), name=id, account=account)
    return SqsKey(id, secrets, grant, read_expiry(table.get("expires"), source))
