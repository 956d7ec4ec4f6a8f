"""Locks between processes, by `flock` on a file: nobody waits for one for ever, and a forked child never keeps one.

A flock belongs to the open file, and a forked child shares its parent's open files. So a lock is given back by an explicit
unlock, because a close alone would leave it to the children; and a child closes its copies as soon as it is born, because its
parent may be killed before it can unlock.
"""

from __future__ import annotations

import os
import time
from fcntl import LOCK_EX, LOCK_NB, LOCK_UN, flock

from penstock.errors import StoreBusy

TIMEOUT = 10.0
"""How many seconds to wait for a lock, unless a store is told otherwise."""
FIRST_PAUSE, LONGEST_PAUSE = 0.00005, 0.002
"""Seconds between two tries: few at first, because most locks are held for less than a millisecond."""

_open: set[FileLock] = set()


class Patience:
    """How long a store's verb waits for locks. ``spent`` is what the verb has already waited for other threads."""

    __slots__ = ("open", "spent", "timeout")

    def __init__(self, timeout: float = TIMEOUT) -> None:
        self.timeout = timeout
        self.spent = 0.0
        self.open: set[FileLock] = set()
        """Those of the store's locks whose files are open."""


class FileLock:
    __slots__ = ("_path", "_patience", "_what", "handle")

    def __init__(self, path: str, what: str, patience: Patience) -> None:
        """``what`` is locked, for the error that tells that others have it."""
        self._path = path
        self._what = what
        self._patience = patience
        self.handle = -1

    def open(self) -> None:
        """Open the lock's file, and make it if need be, so that `take` can follow."""
        self.handle = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
        _open.add(self)
        self._patience.open.add(self)

    def take(self) -> None:
        """Lock the open file. `StoreBusy` if others keep it for too long; whatever fails, the file is closed."""
        try:
            try:
                flock(self.handle, LOCK_EX | LOCK_NB)
            except BlockingIOError:
                self._wait()
        except BaseException:
            self.give()
            raise

    def _wait(self) -> None:
        begun = time.monotonic()
        while True:
            waited = time.monotonic() - begun
            if waited > self._patience.timeout - self._patience.spent:
                raise StoreBusy(f"{self._what} was locked by others for more than {self._patience.timeout:g} s")
            time.sleep(min(FIRST_PAUSE + waited / 4, LONGEST_PAUSE))
            try:
                flock(self.handle, LOCK_EX | LOCK_NB)
                return
            except BlockingIOError:
                continue

    def pause(self) -> None:
        """Unlock, but leave the file open: the lock is soon taken again."""
        flock(self.handle, LOCK_UN)

    def give(self) -> None:
        """Unlock, and close the file. Without effect on a lock that is not open: a forked child has none."""
        handle = self.handle
        if handle >= 0:
            flock(handle, LOCK_UN)  # first of all: whatever interrupts us then, nobody is kept out
            self.handle = -1
            _open.discard(self)
            self._patience.open.discard(self)
            os.close(handle)


def _close_copies() -> None:
    """In a forked child: whatever its parent has locked stays the parent's alone."""
    while _open:
        lock = _open.pop()
        handle, lock.handle = lock.handle, -1
        os.close(handle)


os.register_at_fork(after_in_child=_close_copies)
