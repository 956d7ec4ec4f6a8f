"""The one bridge between the async server and the sync core: operations that come together share one commit.

While a commit waits for the disk, new operations gather; the next commit takes them all. Each is answered only after the commit
that made it durable. An operation that fails is undone alone, in a batch of its own within the other, and its neighbours go on;
if the commit itself fails, all that were in it have failed.

Sends to one queue become one `send_many`, which costs a fraction of as many sends.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeVar

from penstock.broker import Broker
from penstock.errors import PenstockError, StoreBusy
from penstock.message import Draft, Sent

logger = logging.getLogger("penstock.server")

Answer = TypeVar("Answer")
MOST = 1000
"""Operations in one commit."""


class Operation:
    """One call of the core on behalf of one request: ``act``, or a send of ``drafts``."""

    __slots__ = ("act", "alone", "answer", "drafts", "error", "future", "promise", "queue", "undo")

    def __init__(
        self,
        act: Callable[[], Any] | None,
        future: asyncio.Future[Any],
        *,
        promise: bool = True,
        alone: bool = False,
        undo: Callable[[Any], None] | None = None,
        queue: str = "",
        drafts: Sequence[Draft] = (),
    ) -> None:
        self.act = act
        self.future = future
        self.promise = promise
        self.alone = alone
        self.undo = undo
        self.queue = queue
        self.drafts = drafts
        self.answer: Any = None
        self.error: BaseException | None = None


class Commits:
    def __init__(self, broker: Broker, loop: asyncio.AbstractEventLoop, *, max_pending: int) -> None:
        self._broker = broker
        self._loop = loop
        self._max_pending = max_pending
        self.pending = 0
        self.refused = 0
        self.sizes: Callable[[int, float], None] = lambda _size, _seconds: None
        """Told of each commit: how many operations were in it, and how long it took."""
        self._gathered: list[Operation] = []
        self._busy = False
        self._handed: SimpleQueue[list[Operation] | None] = SimpleQueue()
        self._thread = Thread(target=self._work, name="penstock-commits", daemon=True)
        self._thread.start()

    # in the event loop

    async def run(
        self,
        act: Callable[[], Answer],
        *,
        undo: Callable[[Answer], None] | None = None,
        promise: bool = True,
        alone: bool = False,
    ) -> Answer:
        """Call ``act`` in the next commit; its answer, once that is durable.

        ``promise=False`` is for what need not be (a claim), ``alone=True`` for what makes commits of its own (a long purge).
        ``undo`` takes back what was done for a caller who has gone."""
        operation = Operation(act, self._loop.create_future(), promise=promise, alone=alone, undo=undo)
        return await self._wait(operation)  # type: ignore[no-any-return]

    async def send(self, queue: str, drafts: Sequence[Draft]) -> list[Sent]:
        operation = Operation(None, self._loop.create_future(), queue=queue, drafts=drafts)
        return await self._wait(operation)  # type: ignore[no-any-return]

    def soon(self, act: Callable[[], Any]) -> None:
        """Call ``act`` in the next commit, however many wait, and for nobody's sake but the queue's."""
        future = self._loop.create_future()
        future.add_done_callback(_log)
        self._submit(Operation(act, future))

    async def _wait(self, operation: Operation) -> Any:
        if self.pending >= self._max_pending:
            self.refused += 1
            raise StoreBusy(f"{self.pending} operations wait for the store, the limit; try again soon")
        self._submit(operation)
        try:
            return await operation.future
        except asyncio.CancelledError:
            future = operation.future
            if future.done() and not future.cancelled() and future.exception() is None and operation.undo is not None:
                operation.undo(future.result())  # it was answered just when its caller went away
            raise

    def _submit(self, operation: Operation) -> None:
        self.pending += 1
        if not self._gathered:  # hand over at the end of this turn of the loop, with all that it brings
            self._loop.call_soon(self._hand_over)
        self._gathered.append(operation)

    def _hand_over(self) -> None:
        if self._gathered and not self._busy:
            self._busy = True
            self._handed.put(self._gathered[:MOST])
            self._gathered = self._gathered[MOST:]

    def _answer(self, group: list[Operation]) -> None:
        self._busy = False
        self._hand_over()  # first, so that the disk works while we answer
        self.pending -= len(group)
        for operation in group:
            if operation.future.done():  # its caller has gone
                if operation.error is None and operation.undo is not None and operation.answer is not None:
                    operation.undo(operation.answer)
            elif operation.error is not None:
                operation.future.set_exception(operation.error)
            else:
                operation.future.set_result(operation.answer)

    async def stop(self) -> None:
        """Finish what was handed over."""
        while self.pending:
            await asyncio.sleep(0.005)
        self._handed.put(None)
        self._thread.join()

    # in the thread of commits

    def _work(self) -> None:
        while (group := self._handed.get()) is not None:
            started = time.perf_counter()
            live = [operation for operation in group if not operation.future.cancelled()]
            self._commit(live)
            if live:
                self.sizes(len(live), time.perf_counter() - started)
            self._loop.call_soon_threadsafe(self._answer, group)

    def _commit(self, group: list[Operation]) -> None:
        shared = [operation for operation in group if not operation.alone]
        if len(shared) > 1 and any(operation.promise for operation in shared):
            try:
                with self._broker.store.batch():
                    for parts in _gather(shared):
                        self._perform_together(parts)
            except BaseException as error:
                for operation in shared:
                    operation.error = operation.error or error
        else:
            for operation in shared:
                self._perform(operation)
        for operation in group:
            if operation.alone:
                self._perform(operation)

    def _perform(self, operation: Operation) -> None:
        try:
            operation.answer = self._act(operation)
        except BaseException as error:
            operation.error = error

    def _act(self, operation: Operation) -> Any:
        if operation.act is None:
            return self._broker.queue(operation.queue).send_many(list(operation.drafts))
        return operation.act()

    def _perform_together(self, parts: list[Operation]) -> None:
        """Sends to one queue at once; if that is refused, or for all else, each on its own."""
        if len(parts) > 1:
            try:
                with self._broker.store.batch():
                    sent = self._broker.queue(parts[0].queue).send_many([draft for part in parts for draft in part.drafts])
            except PenstockError:
                pass
            else:
                done = 0
                for part in parts:
                    part.answer = sent[done : done + len(part.drafts)]
                    done += len(part.drafts)
                return
        for part in parts:
            try:
                with self._broker.store.batch():
                    part.answer = self._act(part)
            except BaseException as error:
                part.error = error


def _gather(group: list[Operation]) -> list[list[Operation]]:
    """The operations in order, but sends to one queue with the first of them."""
    gathered: list[list[Operation]] = []
    sends: dict[str, list[Operation]] = {}
    for operation in group:
        if operation.drafts and operation.queue in sends:
            sends[operation.queue].append(operation)
            continue
        gathered.append([operation])
        if operation.drafts:
            sends[operation.queue] = gathered[-1]
    return gathered


def _log(done: asyncio.Future[Any]) -> None:
    error = None if done.cancelled() else done.exception()
    if error is not None:
        logger.warning("messages could not be given back at once, and will be when their time is over: %s", error)
