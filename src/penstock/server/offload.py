"""Work on megabytes that a client sent, such as parsing them, beside the event loop.

Threads do not make Python faster, but the interpreter gives the event loop a turn every few milliseconds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Answer = TypeVar("Answer")
SMALL = 64 * 1024
"""Up to so many bytes, a change of threads costs more than the work."""
THREADS = 2


class Offload:
    """Owns the threads. What waits for one is a request that was read, so that the budget of bytes bounds it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="penstock-offload")

    async def run(self, size: int, act: Callable[[], Answer]) -> Answer:
        """Call ``act``, which works on ``size`` bytes: here if these are few, else in a thread."""
        if size <= SMALL:
            return act()
        future = self._loop.run_in_executor(self._pool, act)
        try:
            return await future
        except asyncio.CancelledError:
            future.cancel()  # if it has not begun, it never will
            raise

    def stop(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
