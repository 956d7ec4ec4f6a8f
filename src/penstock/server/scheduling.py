"""A server runs the schedules of its store, in a thread of its own."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from penstock.server.dialects.base import Core


class Scheduling:
    """Owns the thread."""

    def __init__(self, core: Core, loop: asyncio.AbstractEventLoop) -> None:
        self._core = core
        self._loop = loop
        self._scheduler = core.broker.scheduler()
        self._begun = False
        core.broker.schedule_book.sent = self._tell

    def start(self) -> None:
        """Called when the server listens."""
        self._begun = True
        self._scheduler.__enter__()

    async def stop(self) -> None:
        """Finish what has begun."""
        if self._begun:
            await self._loop.run_in_executor(None, self._scheduler.stop)

    def _tell(self, queue: str, count: int) -> None:
        """In the thread: messages were sent."""
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._count, queue, count)

    def _count(self, queue: str, count: int) -> None:
        self._core.count_messages("sent", queue, count)
        self._core.activity.use(queue)
