"""Space that a store keeps back, so that it can be drained when its disk is full.

To receive and to delete takes a little space: a record, a name, a page of a log. So a store keeps files that hold nothing, and
removes them when a disk that is full keeps it from draining. A send never uses what this sets free: while the reserve is given
up, a send is refused, until there is room to make it again and as much besides, which those who drain may be using.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress

from penstock.errors import StoreFull

PLENTY = 64 * 1024 * 1024
"""With so many bytes free, a send does not look at the reserve."""
PLENTY_OF_FILES = 4096
SHARE = 16
"""A reserve is at most one part in so many of the whole disk."""
BLOCK = 4096


class Reserve:
    def __init__(self, store: object, pieces: Sequence[str], size: int) -> None:
        """``pieces`` are files of ``size`` bytes each, or less on a small disk. The first one tells how it stands: it is not
        there if there never was a reserve, it is empty while the reserve is given up, and it is made last."""
        self._store = store
        self._pieces = pieces
        self._folder = os.path.dirname(pieces[0]) or "."
        self._size = size

    def size(self) -> int | None:
        """How many bytes are kept back: 0 while the reserve is given up, None if there never was one."""
        try:
            return os.stat(self._pieces[0]).st_size * len(self._pieces)
        except OSError:
            return None

    def goal(self) -> int:
        """How many bytes each piece should have on this disk."""
        try:
            disk = os.statvfs(self._folder)
        except OSError:
            return self._size
        return max(BLOCK, min(self._size, disk.f_blocks * disk.f_frsize // SHARE) // BLOCK * BLOCK)

    def admit(self, need: int = 0) -> None:
        """Before so many bytes are sent: `StoreFull` if there is no room for them, or while the reserve is given up."""
        free = self._free()
        if free[0] > PLENTY + need and free[1] > PLENTY_OF_FILES:
            return
        if (not self.make() and self.size() == 0) or free[0] < need or self.is_needed():
            raise StoreFull(f"{self._store}: no space left on its disk")

    def make(self) -> bool:
        """Make the reserve if it is not there and there is room for it; whether it is there."""
        if self.size():
            return True
        try:
            each, free = self.goal(), self._free()
            # As much besides: what somebody has just given up to drain the store must not be taken away again.
            if free[0] < 2 * each * len(self._pieces) or free[1] < 2 * len(self._pieces):
                return False
            for piece in reversed(self._pieces):
                handle = os.open(piece, os.O_WRONLY | os.O_CREAT, 0o644)
                try:
                    os.posix_fallocate(handle, 0, each)
                finally:
                    os.close(handle)
        except OSError:  # a disk that is full after all, or that cannot be written
            self.give_up()
            return False
        return True

    def is_needed(self) -> bool:
        """Whether the reserve is there, and so little space besides that whoever drains the store may not get far."""
        free = self._free()
        if free[0] > PLENTY and free[1] > PLENTY_OF_FILES:
            return False
        size = self.size() or 0
        return free[0] < size // 2 or (size > 0 and free[1] < len(self._pieces) // 2)

    def give_up(self) -> bool:
        """Set the space free; False if it was free already."""
        there = bool(self.size())
        with suppress(OSError):
            os.truncate(self._pieces[0], 0)
        for piece in self._pieces[1:]:
            with suppress(OSError):
                os.unlink(piece)
        return there

    def _free(self) -> tuple[int, int]:
        """How many bytes and how many files there is room for; if that cannot be known, the disk will say what it lacks."""
        try:
            disk = os.statvfs(self._folder)
        except OSError:
            return 2 * PLENTY, 2 * PLENTY_OF_FILES
        # Not f_bfree: file systems keep some of that for themselves, even from root.
        return disk.f_bavail * disk.f_frsize, disk.f_favail if disk.f_files else 2 * PLENTY_OF_FILES
