"""The history of queues: the last minutes in memory, and a day in the store, which survives a restart.

    every 10 seconds, and whenever a page looks    what has changed becomes a sample in memory
    every minute                                   what has changed becomes one message in the store (see `records`)

If nothing changes, nothing is written. A server that ran for less than a minute leaves nothing behind.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections.abc import Mapping
from typing import Any

import penstock
from penstock.errors import PenstockError
from penstock.message import Draft
from penstock.server.dialects.base import Core
from penstock.server.http.request_response import Refused
from penstock.server.page.board import QueueRow
from penstock.server.page.counting import INTERNAL, PATIENCE, Counting
from penstock.server.page.curves import RECENT, SPANS, CurveSample, Ring
from penstock.server.page.past import Past
from penstock.server.page.records import CONTENT_TYPE, HISTORY, RETENTION, QueueRecord, pack

logger = logging.getLogger("penstock.server")

LOOK_EVERY = 10.0
WRITE_EVERY = 60.0
WHOLE_EVERY = 3600.0
"""Seconds after which all queues are written down, whether they have changed or not."""
SHOW_EVERY = 300.0
"""Seconds after which a server of a shared database shows that it is there, though nothing has changed."""


class QueueHistory:
    """Owns the samples of the last minutes, and what is not written down yet. Used in the event loop."""

    def __init__(self, core: Core, counting: Counting, past: Past) -> None:
        self._core = core
        self._past = past
        self._broker = core.broker
        self._counting = counting
        counting.counted = self.note
        self.node: dict[str, Any] = {
            "name": f"{socket.gethostname()}:{os.getpid()}",
            "version": penstock.__version__,
            "pid": os.getpid(),
            "started_at": core.broker.clock(),
        }
        self._shared = core.broker.store.writers > 1
        self._recent: dict[str, Ring] = {}
        self._fine: dict[str, Ring] = {}
        self._last: dict[str, tuple[int, int, int, int]] = {}
        """What the last sample of each queue was made of: messages, in flight, and all that came and left."""
        self._unwritten: dict[str, list[int]] = {}
        now = time.monotonic()
        self._write_at = now + WRITE_EVERY
        self._whole_at = self._show_at = now
        self._task: asyncio.Task[None] | None = None

    # samples

    def note(self, rows: Mapping[str, QueueRow], gone: set[str], at: int) -> None:
        """Some queues were counted."""
        for name, row in rows.items():
            if name.startswith(INTERNAL):
                continue
            flow = self._core.activity.flows.get(name)
            now = (row["messages"], row["in_flight"], *((0, 0) if flow is None else (flow.came, flow.left)))
            last = self._last.get(name)
            if last == now:
                continue
            self._last[name] = now
            came, left = now[2:] if last is None else (max(0, now[2] - last[2]), max(0, now[3] - last[3]))
            self._add(name, CurveSample(at, now[0], now[1], came, left), new=last is None and not came and not left)
        for name in gone:
            for of in (self._recent, self._fine, self._last):
                of.pop(name, None)
            if name in self._unwritten:
                self._unwritten[name][:2] = 0, 0

    def _add(self, name: str, sample: CurveSample, *, new: bool) -> None:
        """``new``: it was not counted before, and nothing is known to have changed."""
        for rings, span in ((self._recent, RECENT), (self._fine, SPANS["minute"])):
            ring = rings.get(name)
            if ring is None:
                ring = rings[name] = Ring(span)
            ring.add(sample)
        if not new:
            row = self._unwritten.setdefault(name, [0, 0, 0, 0])
            row[:] = sample.messages, sample.in_flight, row[2] + sample.came, row[3] + sample.left

    def depths(self, name: str, now: int) -> list[int | None]:
        ring = self._recent.get(name)
        return [None] * RECENT.steps if ring is None else ring.depths(now)

    def recent(self, name: str) -> list[CurveSample]:
        """The samples in memory, those of the last minute in short steps."""
        fine = list(self._fine.get(name, ()))
        since = fine[0].at if fine else 2**62
        return [*(sample for sample in self._recent.get(name, ()) if sample.at < since), *fine]

    def unwritten(self, name: str, now: int) -> list[CurveSample]:
        """What will be written down next, so that curves go on to this instant."""
        row = self._unwritten.get(name)
        if row is not None:
            return [CurveSample(now, *row)]
        last = self._last.get(name)
        return [] if last is None else [CurveSample(now, last[0], last[1], 0, 0)]

    # in the store

    def start(self) -> None:
        """Called when the server listens."""
        if self._core.settings.page != "off":
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Write down what is left, if there is a history already."""
        if self._task is None:
            return
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        if self._unwritten:
            try:
                await self._write(only_if_there=True)
            except (PenstockError, Refused) as error:
                logger.debug("could not write the last minute of the history: %s", error)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(LOOK_EVERY)
            self._past.tidy()
            try:
                await self._counting.look_calmly()
                if time.monotonic() >= self._write_at:
                    self._write_at = time.monotonic() + WRITE_EVERY
                    await self._write(only_if_there=False)
            except (PenstockError, Refused) as error:
                logger.debug("could not write the history of queues: %s", error)
            except Exception:  # a bug of ours; the next minute may succeed
                logger.exception("a defect in Penstock, in the history of queues")

    async def _write(self, *, only_if_there: bool) -> None:
        now = time.monotonic()
        rows: dict[str, tuple[int, int, int, int]] = {}
        changed = bool(self._unwritten)
        if (changed and now >= self._whole_at) or (self._shared and now >= self._show_at):
            rows = {name: (last[0], last[1], 0, 0) for name, last in self._last.items()} if now >= self._whole_at else {}
        elif not changed:
            return
        written, self._unwritten = self._unwritten, {}
        rows |= {name: (row[0], row[1], row[2], row[3]) for name, row in written.items()}
        record = QueueRecord(self.node, self._broker.clock(), rows)
        try:
            await self._core.commits.work(lambda: self._send(record, only_if_there), PATIENCE)
        except BaseException:
            for name, row in written.items():  # try again in a minute
                newer = self._unwritten.get(name)
                self._unwritten[name] = row if newer is None else [*newer[:2], newer[2] + row[2], newer[3] + row[3]]
            raise
        self._show_at = now + SHOW_EVERY
        if now >= self._whole_at:
            self._whole_at = now + WHOLE_EVERY

    def _send(self, record: QueueRecord, only_if_there: bool) -> None:
        """In a thread of commits."""
        if self._broker.store.load(HISTORY) is None:
            if only_if_there:
                return
            self._broker.create(HISTORY, exist_ok=True, retention=RETENTION)
        self._broker.queue(HISTORY).send_many([Draft(pack(record), CONTENT_TYPE)])
