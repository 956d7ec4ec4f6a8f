"""Disk space that a store reserves, so that it can be drained when its disk is full.

Receiving and deleting take a little space: a record, a name, a page of a log. So a store keeps placeholder files, and removes
them when a full disk keeps consumers from draining it. A send never uses the space this frees: while the reserve is given up,
the store refuses sends. It accepts them again when there is room for the reserve and as much again, which consumers may be
using.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress

from penstock.errors import StoreFull

PLENTY = 64 * 1024 * 1024
"""With this many bytes free, a send does not check the reserve."""
PLENTY_OF_FILES = 4096
SHARE = 16
"""A reserve takes at most one part in this many of the whole disk."""
BLOCK = 4096


class Reserve:
    def __init__(self, store: object, pieces: Sequence[str], size: int) -> None:
        """``pieces`` are files of ``size`` bytes each, or less on a small disk. The first one shows the state: it is missing if
        there never was a reserve, and empty while the reserve is given up. It is made last."""
        self._store = store
        self._pieces = pieces
        self._folder = os.path.dirname(pieces[0]) or "."
        self._size = size

    def size(self) -> int | None:
        """How many bytes are reserved: 0 while the reserve is given up, None if there never was one."""
        try:
            return os.stat(self._pieces[0]).st_size * len(self._pieces)
        except OSError:
            return None

    def goal(self) -> int:
        """The size of each piece on this disk, in bytes."""
        try:
            disk = os.statvfs(self._folder)
        except OSError:
            return self._size
        return max(BLOCK, min(self._size, disk.f_blocks * disk.f_frsize // SHARE) // BLOCK * BLOCK)

    def admit(self, need: int = 0) -> None:
        """Before a send of ``need`` bytes: raises `StoreFull` if there is no room, or while the reserve is given up."""
        free = self._free()
        if free[0] > PLENTY + need and free[1] > PLENTY_OF_FILES:
            return
        if (not self.make() and self.size() == 0) or free[0] < need or self.is_needed():
            raise StoreFull(f"{self._store}: no space left on its disk")

    def make(self) -> bool:
        """Make the reserve if it is missing and there is room for it. Returns whether it is there."""
        if self.size():
            return True
        try:
            each, free = self.goal(), self._free()
            # Require twice the space: do not take back what another process has just freed to drain the store.
            if free[0] < 2 * each * len(self._pieces) or free[1] < 2 * len(self._pieces):
                return False
            for piece in reversed(self._pieces):
                handle = os.open(piece, os.O_WRONLY | os.O_CREAT, 0o600)
                try:
                    os.posix_fallocate(handle, 0, each)
                finally:
                    os.close(handle)
        except OSError:  # the disk is full after all, or not writable
            self.give_up()
            return False
        return True

    def is_needed(self) -> bool:
        """Whether there is a reserve, and so little other space that a consumer may not get far."""
        free = self._free()
        if free[0] > PLENTY and free[1] > PLENTY_OF_FILES:
            return False
        size = self.size() or 0
        return free[0] < size // 2 or (size > 0 and free[1] < len(self._pieces) // 2)

    def give_up(self) -> bool:
        """Free the space. Returns False if it was free already."""
        there = bool(self.size())
        with suppress(OSError):
            os.truncate(self._pieces[0], 0)
        for piece in self._pieces[1:]:
            with suppress(OSError):
                os.unlink(piece)
        return there

    def _free(self) -> tuple[int, int]:
        """How many bytes and files there is room for. If that is unknown, assume plenty; the disk will report an error."""
        try:
            disk = os.statvfs(self._folder)
        except OSError:
            return 2 * PLENTY, 2 * PLENTY_OF_FILES
        # Not f_bfree: file systems keep some of that for themselves, even from root.
        return disk.f_bavail * disk.f_frsize, disk.f_favail if disk.f_files else 2 * PLENTY_OF_FILES
