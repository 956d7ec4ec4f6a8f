"""Receipt handles: a receipt as text that says nothing to its holder.

    version · checksum of the queue and the rest · proof that this token received the message · delivery · number · id

Nothing has to be kept: a handle is good at every server of the store, and after a restart. Its checksum tells a handle of this
queue from any other text; with tokens, the proof (see `penstock.server.receipts`) shows who received the message. By its
number, the message can be looked up.
"""

from __future__ import annotations

import hashlib
import struct
from base64 import urlsafe_b64decode, urlsafe_b64encode
from functools import lru_cache
from typing import NamedTuple

from penstock.message import FOREVER, Message, Receipt
from penstock.server.dialects.sqs.errors import MOST_SHOWN, SqsError
from penstock.server.http.request_response import Grant, Scope
from penstock.server.receipts import is_proof, proof

VERSION = b"\1"
CHECKSUM = 8
NUMBERS = struct.Struct(">QQQ")
"""The proof, the delivery and the number."""
LONGEST = 1024


class Handled(NamedTuple):
    """What a handle stands for."""

    receipt: Receipt
    number: int


def handle_of(grant: Grant, message: Message) -> str:
    """The handle of a message that was just received."""
    key = grant.keys[-1] if grant.keys else None
    shown = 0 if key is None else proof(key, message.queue, message.id, message.delivery)
    rest = NUMBERS.pack(shown, message.delivery, message.number) + message.id.encode()
    return urlsafe_b64encode(VERSION + _checksum(message.queue, rest) + rest).decode()


def read_handle(grant: Grant, queue: str, handle: str) -> Handled:
    """What a client's handle stands for."""
    try:
        raw = urlsafe_b64decode(handle) if len(handle) <= LONGEST and handle.isascii() else b""
        checksum, rest = raw[1 : 1 + CHECKSUM], raw[1 + CHECKSUM :]
        shown, delivery, number = NUMBERS.unpack_from(rest)
        id = rest[NUMBERS.size :].decode()
    except (ValueError, struct.error):
        raise no_handle(handle) from None
    if raw[:1] != VERSION or checksum != _checksum(queue, rest) or not id or delivery > FOREVER or number > FOREVER:
        raise no_handle(handle)
    if grant.keys and not grant.allows(Scope.ADMIN, queue) and not is_proof(grant, shown, queue, id, delivery):
        raise no_handle(handle)
    return Handled(Receipt(queue, id, delivery), number)


def no_handle(handle: str) -> SqsError:
    return SqsError(
        "ReceiptHandleIsInvalid", f'The input receipt handle "{handle[:MOST_SHOWN]}" is not a valid receipt handle.'
    )


def _checksum(queue: str, rest: bytes) -> bytes:
    hasher = _of_queue(queue).copy()
    hasher.update(rest)
    return hasher.digest()


@lru_cache(maxsize=1024)
def _of_queue(queue: str) -> hashlib.blake2b:
    hasher = hashlib.blake2b(digest_size=CHECKSUM, person=b"handle")
    hasher.update(queue.encode() + b"\0")
    return hasher
