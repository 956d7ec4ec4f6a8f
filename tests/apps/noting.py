"""Notes of what tasks did, in one file of many processes."""

from __future__ import annotations

import os
from pathlib import Path

NOTES = Path(os.environ.get("APP_FOLDER", ".")) / "notes"


def note(*words: object) -> None:
    """One write: processes that append at once keep their lines apart."""
    handle = os.open(NOTES, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(handle, (" ".join(map(str, words)) + "\n").encode())
    finally:
        os.close(handle)
