"""The ids of messages: a number as a UUID, and what programs that want a UUID are given."""

from __future__ import annotations

import secrets
from collections.abc import Sequence


def number_of(id: str) -> int | None:
    """The number in an id that `Ids` of any store has made; None for another id."""
    if len(id) != 36 or id[14] != "8":
        return None
    try:
        return int(id[19:23], 16) - (1 << 15) << 48 | int(id[24:], 16)
    except ValueError:
        return None


class Uuids:
    """The ids of messages: as UUIDs, for programs that want one, and as numbers. This class is for a store whose ids are UUIDs
    that tell the number."""

    def of(self, queue: str, id: str) -> str:  # noqa: ARG002
        return id

    def id_of(self, queue: str, given: str) -> str | None:  # noqa: ARG002
        """The id for a UUID from `of`; None if this queue has no such message, as far as that costs little to find out."""
        return given

    def number(self, queue: str, id: str) -> int | None:  # noqa: ARG002
        """The number by which `StoredQueue.scan` finds a message; None if this store cannot have given out the id."""
        return number_of(id)

    def homes(self, given: str) -> list[str] | None:  # noqa: ARG002
        """The queues that may have the message of this UUID; None if the store cannot tell, and any of them may."""
        return None


class Ids:
    """Converts message numbers to UUIDs and back, without a table.

        ssssssss-ssss-8sss-nnnn-nnnnnnnnnnnn     s: 60 random bits of this store; n: 62 bits of the number (RFC 9562, version 8)

    Within a store, ids sort in the order of sending."""

    def __init__(self, salt: int) -> None:
        digits = f"{salt:015x}"
        self.prefix = f"{digits[:8]}-{digits[8:12]}-8{digits[12:]}-"
        """The prefix of all ids of this store."""
        self._usual = f"{self.prefix}8000-"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ids) and self.prefix == other.prefix

    __hash__ = None  # type: ignore[assignment]

    @staticmethod
    def salt() -> int:
        return secrets.randbits(60)

    def make(self, number: int) -> str:
        if number < 1 << 48:
            return f"{self._usual}{number:012x}"
        return f"{self.prefix}{number >> 48 | 1 << 15:04x}-{number & (1 << 48) - 1:012x}"

    def made_all(self, ids: Sequence[str], numbers: Sequence[int]) -> bool:
        """Whether each id is that of its number. Takes a tenth of the time of making the ids; False for unusual ids."""
        usual = f"{self._usual}%012x" * len(ids) % tuple(numbers)
        return set(map(len, ids)) == {36} and "".join(ids) == usual

    def number(self, id: str) -> int | None:
        """None for an id that this store never gave out."""
        try:
            low = int(id[24:], 16)
            if id.startswith(self._usual):  # skips most of the parsing
                return low if low > 0 and f"{low:012x}" == id[24:] else None
            number = int(id[19:23], 16) - (1 << 15) << 48 | low
        except ValueError:
            return None
        return number if number > 0 and self.make(number) == id else None
