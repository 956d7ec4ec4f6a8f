"""Marks: what makes a message the duplicate of another. Two messages with the same mark are equal.

    k…  the sender's own key
    u…  the same, of a message that is unique by it, in a queue that would not refuse an equal one
    c…  the content, as long as the message is in the queue; the members of a set have this mark too
    w…  the content, within a window of time
    t…  the place in a batch that has a token
    b…  a whole batch that has a token, by its first message

The first byte keeps them apart. `penstock.policy` decides which mark a message gets, and for how long it counts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

FOLLOWS = -1
"""In an entry without a mark, as the end of the mark: the message is a duplicate if the one before it is, of the message with
the next number."""


def of_key(key: bytes) -> bytes:
    return b"k" + key


def of_unique(key: bytes) -> bytes:
    return b"u" + key


def of_content(body: bytes, *, window: bool = False) -> bytes:
    return (b"w" if window else b"c") + hashlib.sha256(body).digest()


def of_places(places: Iterable[int], token: str) -> list[bytes]:
    """The marks of the messages at these places of a batch."""
    return [b"t" + hashlib.sha256(b"%d %b" % (place, token.encode())).digest() for place in places]


def of_batch(count: int, token: str) -> bytes:
    """The mark of a whole batch. A short token is kept as it is: those of our clients begin with the time, so that marks of one
    time are near each other."""
    return b"b%d %b" % (count, token.encode() if len(token) <= 64 else hashlib.sha256(token.encode()).hexdigest().encode())


def outlasts(mark: bytes) -> bool:
    """Whether a mark has nothing to do with its message any more once that is in the queue. Such a message is a plain one."""
    return mark[:1] == b"b"


def key_of(mark: bytes | None) -> bytes | None:
    """The sender's own key, if the mark was made from one."""
    return mark[1:] if mark and mark[:1] in (b"k", b"u") else None


def is_unique(mark: bytes | None) -> bool:
    return mark is not None and mark[:1] == b"u"


def is_content(mark: bytes) -> bool:
    return mark[:1] == b"c"
