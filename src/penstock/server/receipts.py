"""Receipts over HTTP: with tokens, each carries a proof that it was given to the token that presents it.

    delivery over HTTP  =  delivery · 2^64 + 64 bits of a keyed digest of (queue, id, delivery)

The number of a delivery is the instant of its claim, which another client could guess. The key is the digest of the token's
secret, so that the proof holds on every server that knows the token, and after a restart, and nothing has to be kept.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from copy import copy
from typing import Any

from penstock.message import FOREVER, Message, Receipt
from penstock.server.http.request_response import Grant, Refused, Scope

BITS = 64


def seal(grant: Grant, messages: Sequence[Message]) -> Sequence[Message]:
    """Received messages as the client gets them."""
    if not grant.keys:
        return messages
    sealed = []
    for message in messages:
        message = copy(message)
        message.delivery = message.delivery << BITS | proof(grant.keys[-1], message.queue, message.id, message.delivery)
        sealed.append(message)
    return sealed


def unseal(grant: Grant, queue: str, given: Any) -> Any:
    """The receipts for what a client wants to settle: one message, receipt or id, or a list. (The core checks a receipt, but
    trusts a message.) A client that may not change the queue must have received the messages with its own token."""
    if isinstance(given, list):
        return [unseal(grant, queue, one) for one in given]
    receipt = given.receipt if isinstance(given, Message) else given
    if not grant.keys:
        return receipt
    delivery = receipt.delivery if isinstance(receipt, Receipt) else None
    plain = delivery >> BITS if type(delivery) is int and delivery > FOREVER else delivery
    if not grant.allows(Scope.ADMIN, queue) and not _is_proven(grant, receipt, plain):
        raise Refused(403, "this token may only settle messages that it has received, by their receipts")
    return receipt if plain == delivery else Receipt(receipt.queue, receipt.id, plain)


def _is_proven(grant: Grant, receipt: object, delivery: int | None) -> bool:
    if not isinstance(receipt, Receipt) or delivery is None or delivery == receipt.delivery or delivery > FOREVER:
        return False
    return is_proof(grant, (receipt.delivery or 0) & (1 << BITS) - 1, receipt.queue, receipt.id, delivery)


def is_proof(grant: Grant, given: int, queue: object, id: object, delivery: int) -> bool:
    """Whether this is the proof that one of the grant's tokens received the message."""
    proofs = [proof(key, queue, id, delivery) for key in grant.keys]
    return any(hmac.compare_digest(given.to_bytes(8), known.to_bytes(8)) for known in proofs)


def proof(key: bytes, queue: object, id: object, delivery: int) -> int:
    told = f"{queue}\0{id}\0{delivery}".encode(errors="surrogatepass")
    return int.from_bytes(hashlib.blake2b(told, digest_size=BITS // 8, key=key, person=b"receipt").digest())
