"""Receipt handles: a receipt as text that says nothing to its holder.

    version · checksum of the queue and the rest · proof that this token received the message · delivery · the message's id

Nothing has to be kept: a handle is good at every server of the store, and after a restart. Its checksum tells a handle of this
queue from any other text; with tokens, the proof (see `penstock.server.receipts`) shows who received the message.
"""

from __future__ import annotations

import hashlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from functools import lru_cache

from penstock.message import FOREVER, Message, Receipt
from penstock.server.dialects.sqs.errors import SqsError
from penstock.server.http.request_response import Grant, Scope
from penstock.server.receipts import is_proof, proof

VERSION = b"\1"
CHECKSUM = 8
PROOF = 8
DELIVERY = 8
HEAD = CHECKSUM + PROOF + DELIVERY
NO_PROOF = bytes(PROOF)
LONGEST = 1024


def handle_of(grant: Grant, message: Message) -> str:
    """The handle of a message that was just received."""
    key = grant.keys[-1] if grant.keys else None
    shown = NO_PROOF if key is None else proof(key, message.queue, message.id, message.delivery).to_bytes(PROOF)
    rest = shown + message.delivery.to_bytes(DELIVERY) + message.id.encode()
    return urlsafe_b64encode(VERSION + _checksum(message.queue, rest) + rest).decode()


def receipt_of(grant: Grant, queue: str, handle: str) -> Receipt:
    """The receipt that a client's handle stands for."""
    try:
        raw = urlsafe_b64decode(handle) if len(handle) <= LONGEST and handle.isascii() else b""
        checksum, rest = raw[1 : 1 + CHECKSUM], raw[1 + CHECKSUM :]
        id = rest[PROOF + DELIVERY :].decode()
    except ValueError:
        raise no_handle(handle) from None
    if raw[:1] != VERSION or checksum != _checksum(queue, rest) or not id:
        raise no_handle(handle)
    delivery = int.from_bytes(rest[PROOF : PROOF + DELIVERY])
    if delivery > FOREVER:
        raise no_handle(handle)
    if grant.keys and not grant.allows(Scope.ADMIN, queue):
        given = int.from_bytes(rest[:PROOF])
        if not is_proof(grant, given, queue, id, delivery):
            raise no_handle(handle)
    return Receipt(queue, id, delivery)


def no_handle(handle: str) -> SqsError:
    return SqsError("ReceiptHandleIsInvalid", f'The input receipt handle "{handle}" is not a valid receipt handle.')


def _checksum(queue: str, rest: bytes) -> bytes:
    hasher = _of_queue(queue).copy()
    hasher.update(rest)
    return hasher.digest()


@lru_cache(maxsize=1024)
def _of_queue(queue: str) -> hashlib.blake2b:
    hasher = hashlib.blake2b(digest_size=CHECKSUM, person=b"handle")
    hasher.update(queue.encode() + b"\0")
    return hasher
