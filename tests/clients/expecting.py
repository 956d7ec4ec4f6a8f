"""What the programs of this folder share: the server's address, and an end with a clear message."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable

PATIENCE = 120
"""Seconds after which something that was to happen will not."""
REGION = "us-east-1"
URL = os.environ["SQS_URL"]
PREFIX = os.environ["SQS_PREFIX"]
"""Where the names of a program's queues begin: programs share a server."""
ACCESS = {
    "endpoint_url": URL,
    "region_name": REGION,
    "aws_access_key_id": "test",
    "aws_secret_access_key": "test",
}


def expect(what: str, found: object, wanted: object = True) -> None:
    if found != wanted:
        sys.exit(f"{what}: found {found!r:.600} instead of {wanted!r:.600}")


def until(what: str, true: Callable[[], object]) -> None:
    """Wait for what another process brings about."""
    give_up_at = time.monotonic() + PATIENCE
    while not true():
        if time.monotonic() > give_up_at:
            sys.exit(f"{what}: not in {PATIENCE} seconds")
        time.sleep(0.05)
