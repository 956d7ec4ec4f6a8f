"""Tasks of pyqs, which note what they did in a file."""

from __future__ import annotations

import os
from pathlib import Path

from expecting import PREFIX
from pyqs import task

NOTES = Path(os.environ["SQS_FOLDER"]) / "notes"
QUEUE = f"{PREFIX}pyqs"


@task(queue=QUEUE)
def work(number: int) -> None:
    handle = os.open(NOTES, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(handle, b"work %d\n" % number)
    finally:
        os.close(handle)
