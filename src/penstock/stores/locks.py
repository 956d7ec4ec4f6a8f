"""Locks between processes, by `flock` on a file. Waiting has a timeout, and a forked child never keeps a lock.

A flock belongs to the open file, and a forked child shares its parent's open files. So a process releases a lock by an explicit
unlock, because after a mere close the children would still hold it. A child closes its copies as soon as it starts, because its
parent may be killed before it can unlock.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from fcntl import LOCK_EX, LOCK_NB, LOCK_UN, flock

from penstock.errors import StoreBusy
from penstock.patience import Patience

FIRST_PAUSE, LONGEST_PAUSE = 0.00005, 0.002
"""Seconds between two tries: short at first, because most locks are held for less than a millisecond."""

_open: set[FileLock] = set()


class Locks:
    """How the verbs of a store wait for locks. Owns which of the store's locks have their files open."""

    __slots__ = ("open", "patience", "spent")

    def __init__(self, patience: Patience) -> None:
        self.patience = patience
        self.spent = 0.0
        """How long the current verb has already waited for other threads."""
        self.open: set[FileLock] = set()

    def wait_for(self, attempt: Callable[[], bool], what: str) -> None:
        """Call ``attempt`` until it succeeds. Raises `StoreBusy` after the timeout."""
        patience = self.patience
        for _ in patience.tries(FIRST_PAUSE, LONGEST_PAUSE, timeout=patience.timeout - self.spent):
            if attempt():
                return
        raise StoreBusy(f"{what} was locked by others for more than {patience.timeout:g} s")


class FileLock:
    __slots__ = ("_locks", "_path", "_what", "handle")

    def __init__(self, path: str, what: str, locks: Locks) -> None:
        """``what`` names the locked thing in the `StoreBusy` error."""
        self._path = path
        self._what = what
        self._locks = locks
        self.handle = -1

    def open(self) -> None:
        """Open the lock's file, creating it if needed, so that `take` can follow."""
        self.handle = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
        _open.add(self)
        self._locks.open.add(self)

    def take(self) -> None:
        """Lock the open file. Raises `StoreBusy` after the timeout. On any failure the file is closed."""
        try:
            if not self._try():
                self._locks.wait_for(self._try, self._what)
        except BaseException:
            self.give()
            raise

    def _try(self) -> bool:
        try:
            flock(self.handle, LOCK_EX | LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def pause(self) -> None:
        """Unlock, but leave the file open, because the lock will be taken again soon."""
        flock(self.handle, LOCK_UN)

    def give(self) -> None:
        """Unlock and close the file. Does nothing if the lock is not open, as in a forked child."""
        handle = self.handle
        if handle >= 0:
            flock(handle, LOCK_UN)  # first, so that an interrupt cannot leave others locked out
            self.handle = -1
            _open.discard(self)
            self._locks.open.discard(self)
            os.close(handle)


def _close_copies() -> None:
    """In a forked child: the parent's locks remain the parent's alone."""
    while _open:
        lock = _open.pop()
        handle, lock.handle = lock.handle, -1
        os.close(handle)


os.register_at_fork(after_in_child=_close_copies)
