"""The tables of a memory store behind one lock, and their repair after an interrupt."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Generator
from threading import RLock
from types import FrameType

from penstock.errors import QueueNotFound, StoreBusy, StoreClosed
from penstock.guarded import guarded
from penstock.stores.ids import Ids
from penstock.stores.memory.table import Table


class Tables:
    """The tables of all queues. Owns the lock, the numbers of messages, and the list of tables that a verb is changing.

    A verb that changes something takes the lock, calls `change` first and `done` last. A signal handler may raise in between.
    `done` is then never called, and the next verb repairs those tables before it reads or changes one."""

    def __init__(self, *, by_arrival: bool) -> None:
        self.lock = RLock()
        self.by_name: dict[str, Table] = {}
        self.by_arrival = by_arrival
        self.ids = Ids(Ids.salt())
        self.numbers = itertools.count(1)
        self.closed = False
        self._torn: list[Table] = []
        self._verb: FrameType | None = None

    def check_open(self) -> None:
        if self.closed:
            raise StoreClosed("the memory store was closed")

    def find(self, name: str) -> Table:
        """A table to read. The caller holds the lock."""
        self.check_open()
        if self._torn:
            self._refuse_handler()
            self._mend()
        try:
            return self.by_name[name]
        except KeyError:
            raise QueueNotFound(name) from None

    def change(self, *tables: Table, verb: FrameType | None = None) -> None:
        self._verb = verb or sys._getframe(1)
        self._torn += tables

    def done(self) -> None:
        self._torn.clear()

    @guarded
    def changing(self, name: str) -> Generator[Table]:
        """A table that the caller changes in its ``with`` statement."""
        with self.lock:
            table = self.find(name)
            self.change(table, verb=sys._getframe(2))  # 0 is this frame, which leaves the stack at `yield`; 1 enters it
            yield table
            self.done()

    def _refuse_handler(self) -> None:
        """The verb that is changing tables was interrupted; if it is still on the stack, it will go on."""
        frame: FrameType | None = sys._getframe()
        while frame is not None:
            if frame is self._verb:
                raise StoreBusy(
                    "a signal handler used the memory store while it interrupted a call of the same thread; nothing was done. "
                    "Use the store after the handler has returned, or from another thread"
                )
            frame = frame.f_back

    def _mend(self) -> None:
        for table in self._torn:
            table.finish_move()
        for table in self._torn:
            table.mend()
        self._torn.clear()
