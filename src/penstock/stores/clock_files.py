"""The course of a store's clock, as files: one small file for each boot of each machine that uses the store.

    FOLDER/BOOT      JSON, see `penstock.clock.Course`; its mtime is the last instant that the store has seen
    FOLDER/restored  empty; its mtime is the last instant that a restored backup has seen

SQLite keeps FOLDER beside the database (FILE-clock), the file stores in their sidecar folder. A file is valid only until the
machine restarts, so none is synced. Only the mtime should survive a reboot; a power cut may lose its last half minute. A
machine whose file is missing or damaged makes a new one from the wall clock. Files not touched for a month are removed.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path
from threading import get_ident

from penstock.clock import Course
from penstock.stores.disk import folder_mode, read_whole, rename_new

MONTH = 30 * 86400 * 1_000_000


def clock_folder(path: str | Path) -> Path:
    """The clock folder of the SQLite database at ``path``, with links resolved."""
    return Path(f"{os.path.realpath(path)}-clock")


class ClockFiles:
    def __init__(self, folder: Path, whose: str, beside: str | Path | None = None) -> None:
        """``beside``: the file to which the folder belongs; without one, it belongs to the folder around it."""
        self._folder = folder
        self._whose = whose
        self._beside = beside

    def __str__(self) -> str:
        return self._whose

    def read(self, boot: str) -> Course | None:
        return Course.unpack(read_whole(f"{self._folder}/{boot}"))

    def create(self, boot: str, course: Course) -> Course:
        self._make_folder()
        draft = self._draft(boot, course, course.at)
        try:
            rename_new(draft, f"{self._folder}/{boot}")
        except FileExistsError:
            found = self.read(boot)
            if found is not None:
                os.unlink(draft)
                return found
            os.rename(draft, f"{self._folder}/{boot}")  # the existing file is damaged
        except BaseException:
            with suppress(OSError):
                os.unlink(draft)
            raise
        self._remove_old(course.at - MONTH)
        return course

    def replace(self, boot: str, course: Course, now: int) -> None:
        os.rename(self._draft(boot, course, now), f"{self._folder}/{boot}")

    def touch(self, boot: str, course: Course, now: int) -> None:
        try:
            os.utime(f"{self._folder}/{boot}", ns=(now * 1000, now * 1000))
        except PermissionError:  # another user's file, but the folder is writable: replace the file
            self.replace(boot, course, now)

    def seen(self) -> int:
        try:
            entries = [entry for entry in os.scandir(self._folder) if not entry.name.endswith("~")]
            return max((entry.stat().st_mtime_ns // 1000 for entry in entries), default=0)
        except FileNotFoundError:
            return 0

    def reach(self, at: int) -> None:
        """Before the first clock on these files: it will not show an earlier instant than this."""
        self._make_folder()
        place = f"{self._folder}/restored"
        os.close(os.open(place, os.O_WRONLY | os.O_CREAT, 0o644))
        os.utime(place, ns=(at * 1000, at * 1000))

    def _make_folder(self) -> None:
        """Writable for all users that may use the store."""
        with suppress(FileExistsError):
            self._folder.mkdir()
            with suppress(OSError):
                around = self._folder.parent.stat().st_mode & 0o7777
                self._folder.chmod(around if self._beside is None else around & 0o7000 | folder_mode(self._beside))

    def _draft(self, boot: str, course: Course, now: int) -> str:
        """Set its date before it becomes visible: its mtime is never the wall clock's."""
        draft = f"{self._folder}/{boot}.{os.getpid()}.{get_ident()}~"
        handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        try:
            content = course.pack()
            if os.write(handle, content) < len(content):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), draft)
            os.utime(handle, ns=(now * 1000, now * 1000))
        except BaseException:
            with suppress(OSError):
                os.unlink(draft)
            raise
        finally:
            os.close(handle)
        return draft

    def _remove_old(self, before: int) -> None:
        for entry in os.scandir(self._folder):
            with suppress(OSError):
                if entry.stat().st_mtime_ns // 1000 < before:
                    os.unlink(entry.path)
