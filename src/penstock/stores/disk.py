"""A disk, for every store that has one: bringing things to it, and what its refusals are called here."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from penstock.errors import StoreError, StoreFull, StoreReadOnly


def sync(path: Path | str) -> None:
    """Bring a file's bytes, or a folder's names, to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


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
