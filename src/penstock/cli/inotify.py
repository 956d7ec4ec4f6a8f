"""Notifies when a file arrives in a folder: by inotify if available, otherwise by polling."""

from __future__ import annotations

import ctypes
import os
import select
import time
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Self

ARRIVALS = 0x00000008 | 0x00000080 | 0x00000004  # IN_CLOSE_WRITE: fully written, IN_MOVED_TO, IN_ATTRIB: a timer was set
POLL = 0.25
"""Seconds between two polls without inotify."""


class FolderWatch:
    """Watches folders. Events may be spurious; the woken process looks for itself."""

    def __init__(self, folders: Iterable[Path]) -> None:
        self._handle = -1
        libc = ctypes.CDLL(None, use_errno=True)
        if not hasattr(libc, "inotify_init1"):
            return
        self._handle = libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
        for folder in folders:
            if self._handle >= 0 and libc.inotify_add_watch(self._handle, os.fsencode(folder), ARRIVALS) < 0:
                self._close()  # too many watches: poll

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._close()

    def _close(self) -> None:
        if self._handle >= 0:
            os.close(self._handle)
        self._handle = -1

    def wait(self, seconds: float) -> None:
        """Return when an event arrives, or after this many seconds."""
        if self._handle < 0:
            time.sleep(min(seconds, POLL))
            return
        if select.select([self._handle], [], [], seconds)[0]:
            os.read(self._handle, 1 << 16)  # drain all events; one look serves them all
