"""Signatures that were seen, so that somebody who has recorded a request cannot send it again. See decision 0206."""

from __future__ import annotations

from array import array

PLACES = 1 << 19
"""For 16 bytes each, 8 MiB."""
ALIKE = 60.0
"""Seconds in which requests with one signature may be several of the same contents."""


class Replays:
    """Owns a table of a fixed size. A signature has one place in it, and the next signature that has this place replaces it."""

    def __init__(self) -> None:
        self._prints = array("Q")
        self._seen_at = array("d")

    def is_replay(self, signature: bytes, now: float, *, once: bool) -> bool:
        """Whether it was seen, if ``once``, else whether it was seen long ago. Remembers it."""
        if not self._prints:  # the first: a server that needs no signatures needs no table
            self._prints, self._seen_at = array("Q", bytes(8 * PLACES)), array("d", bytes(8 * PLACES))
        place = int.from_bytes(signature[:8]) % PLACES
        print = int.from_bytes(signature[8:16])
        if self._prints[place] == print:
            return once or now - self._seen_at[place] > ALIKE
        self._prints[place], self._seen_at[place] = print, now
        return False
