"""History and named claims, for every store that can open the records of a queue in a batch.

with open() as records: …       everything inside is one change, and is undone or repaired if the block fails
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, MutableMapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Protocol

from penstock.message import FOREVER, Claim, Held, Message, Receipt, Settlement, State
from penstock.stores.messages import copied
from penstock.stores.ports import START, History, Readers


@dataclass(frozen=True, slots=True)
class HeldClaim:
    """A named claim, and its messages in the order in which they were claimed."""

    claim: Claim
    receipts: Sequence[Receipt]


@dataclass(frozen=True, slots=True)
class Reader:
    """The record of a reader. It is never changed, but replaced."""

    settled: int | None = None
    claims: dict[int, HeldClaim] = field(default_factory=dict)


class Records(Protocol):
    """What a store keeps for one queue."""

    @property
    def readers(self) -> MutableMapping[str, Reader]: ...

    @property
    def settled(self) -> MutableMapping[str, tuple[Message, int]]:
        """id -> a message of the history, and the instant until which it is kept."""

    def message(self, receipt: Held) -> Message | None:
        """None if the receipt is stale."""

    def extend(self, receipt: Held, until: int, *, release: bool) -> bool: ...

    def delete(self, receipt: Held, settlement: Settlement) -> bool: ...


OpenRecords = Callable[[], AbstractContextManager[Records]]


class RecordedHistory(History):
    """The history by linear scans. Owns nothing."""

    def __init__(self, open: OpenRecords) -> None:
        self._open = open

    def browse(self, limit: int, *, after: tuple[int, int] = START) -> list[Message]:
        later = (message for message in self._all() if message.place > after)
        return heapq.nsmallest(limit, later, key=lambda message: message.place)

    def scan(self, start: int, stop: int, limit: int) -> list[Message]:
        return scan_of(self._all(), start, stop, limit)

    def span(self) -> tuple[int, int, int]:
        return span_of(self._all())

    def _all(self) -> list[Message]:
        with self._open() as records:
            return [copied(message) for message, _ in records.settled.values()]

    def amend(self, receipts: Sequence[Held], state: State, reason: str | None) -> list[bool]:
        with self._open() as records:
            return [self._amend(records, receipt, state, reason) for receipt in receipts]

    @staticmethod
    def _amend(records: Records, receipt: Held, state: State, reason: str | None) -> bool:
        message, until = records.settled.get(receipt.id, (None, 0))
        if message is None or receipt.delivery not in (None, message.delivery):
            return False
        records.settled[receipt.id] = replace(message, state=state, reason=reason), until
        return True


class RecordedReaders(Readers):
    """Named claims as records of their readers. Owns nothing.

    A verb changes the messages first and the record last: if it is interrupted in between, the claim still has them."""

    def __init__(self, queue: str, open: OpenRecords) -> None:
        self._queue = queue
        self._open = open

    def hold(self, reader: str, epoch: int, receipts: Sequence[Held], lapses_at: int) -> None:
        claim = Claim(reader, epoch, len(receipts), False, lapses_at)
        kept = [Receipt(self._queue, receipt.id, receipt.delivery) for receipt in receipts]
        with self._open() as records:
            known = records.readers.get(reader, Reader())
            records.readers[reader] = replace(known, claims={**known.claims, epoch: HeldClaim(claim, kept)})

    def held(self, reader: str) -> tuple[int | None, list[Claim]]:
        with self._open() as records:
            known = records.readers.get(reader, Reader())
            return known.settled, [known.claims[epoch].claim for epoch in sorted(known.claims)]

    def names(self) -> list[str]:
        with self._open() as records:
            return sorted(records.readers)

    def confirm(self, reader: str, epoch: int) -> None:
        with self._open() as records:
            known = records.readers[reader]
            held = known.claims[epoch]
            for receipt in held.receipts:
                records.extend(receipt, FOREVER, release=False)
            confirmed = replace(held, claim=replace(held.claim, confirmed=True, lapses_at=FOREVER))
            records.readers[reader] = replace(known, claims={**known.claims, epoch: confirmed})

    def read(self, reader: str, epoch: int, start: int, stop: int) -> list[Message]:
        with self._open() as records:
            messages = map(records.message, records.readers[reader].claims[epoch].receipts[start:stop])
            return [copied(message) for message in messages if message is not None]

    def settle(self, reader: str, epoch: int, settlement: Settlement) -> int:
        with self._open() as records:
            known = records.readers.get(reader, Reader())
            receipts = [each for number in sorted(known.claims) if number <= epoch for each in known.claims[number].receipts]
            gone = 0
            for receipt in receipts:
                message = records.message(receipt)
                if message is not None and message.state is not State.DAMAGED:  # those were set aside when they were read
                    gone += records.delete(receipt, settlement)
            left = {number: held for number, held in known.claims.items() if number > epoch}
            records.readers[reader] = Reader(epoch if known.settled is None else max(epoch, known.settled), left)
            return gone

    def give_back(self, reader: str, epoch: int | None, now: int) -> int:
        with self._open() as records:
            known = records.readers.get(reader, Reader())
            undone = list(known.claims) if epoch is None else [epoch]
            receipts = [receipt for number in undone for receipt in known.claims[number].receipts]
            given = sum(records.extend(receipt, now, release=True) for receipt in receipts)
            if epoch is None:
                records.readers.pop(reader, None)
            else:
                left = {number: held for number, held in known.claims.items() if number != epoch}
                records.readers[reader] = replace(known, claims=left)
            return given


def span_of(messages: Sequence[Message]) -> tuple[int, int, int]:
    """`StoredQueue.span`, for a store that reads all messages to find it out."""
    numbers = [message.number for message in messages]
    return len(numbers), min(numbers, default=0), max(numbers, default=0)


def scan_of(messages: Sequence[Message], start: int, stop: int, limit: int) -> list[Message]:
    """`StoredQueue.scan`, for a store that reads all messages to find it out."""
    found = sorted((message for message in messages if start <= message.number < stop), key=lambda message: message.number)
    last = found[limit - 1].number if len(found) > limit else stop
    return [message for message in found if message.number <= last]  # includes all with the last number, if there are two
