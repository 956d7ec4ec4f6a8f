"""A disk, for every store that has one: bringing things to it, and what its refusals are called here."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path

from penstock.errors import StoreError, StoreFull, StoreReadOnly


def sync(path: Path | str) -> None:
    """Bring a file's bytes, or a folder's names, to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def remove_folder(path: Path | str) -> None:
    """Remove a folder with all that is in it. What cannot be removed stays.

    If ``shutil.rmtree`` is interrupted at its ``close``, it closes the same number again, which another thread may have.
    """
    for folder, folders, files in os.walk(path, topdown=False):
        for name in (*folders, *files):
            with suppress(OSError):  # a folder is gone already, a link to one is not
                os.unlink(f"{folder}/{name}")
        with suppress(OSError):
            os.rmdir(folder)


def is_full(error: OSError) -> bool:
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def refusal(who: object, error: OSError) -> StoreError:
    """What the operating system said to ``who``, as an error of ours."""
    match error.errno:
        case errno.ENOSPC | errno.EDQUOT:
            return StoreFull(f"{who}: no space left on its disk")
        case errno.EROFS | errno.EACCES | errno.EPERM:
            return StoreReadOnly(f"{who} cannot be written: {error.strerror}")
    return StoreError(f"{who}: {error}")
