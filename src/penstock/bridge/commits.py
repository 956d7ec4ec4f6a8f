"""Concurrent operations share one commit.

While a commit waits for the disk, new operations gather; the next commit takes them all. Each is answered only after the commit
that made it durable. An operation that fails is undone alone, in a nested batch of its own, and the others continue;
if the commit itself fails, all operations in it have failed.

Operations that are alike, such as sends to one queue, become one call, which costs a fraction of as many calls.

One commit at a time is the fastest: two would split what they can share. But on a database server a commit may wait for a lock
of one queue. If it takes long, another thread makes the next commit beside it.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Any, TypeVar

from penstock.bridge.performing import Operation as Operation
from penstock.bridge.performing import Performer
from penstock.broker import LocalBroker
from penstock.errors import QueueNotFound, StoreBusy, StoreClosed
from penstock.message import Settings
from penstock.queue.queue import LocalQueue
from penstock.queue.sending import Added, Batch

logger = logging.getLogger("penstock")

Answer = TypeVar("Answer")
MOST = 1000
"""Operations in one commit."""
THREADS = 4
"""At most, where a store has several writers."""
PATIENCE = 0.05
"""Seconds after which a commit no longer holds up the operations behind it, if there is another thread."""
MOST_QUEUES = 10_000
"""Queues that are known to exist."""


class Commits:
    def __init__(
        self, broker: LocalBroker, loop: asyncio.AbstractEventLoop, *, max_pending: int | None, tasks: bool = False
    ) -> None:
        """``tasks``: what awaits the operations are tasks; the server has its own way (see `penstock.server.http.serving`)."""
        self._broker = broker
        self._loop = loop
        self._max_pending = sys.maxsize if max_pending is None else max_pending
        self._tasks = tasks
        self._stopped = False
        self.pending = 0
        self.refused = 0
        self.sizes: Callable[[int, float], None] = lambda _size, _seconds: None
        """Called after each commit with the number of its operations and its duration."""
        self.together: Callable[[], AbstractContextManager[None]] = nullcontext
        """Entered while the operations of one commit are answered."""
        self._queues: dict[str, LocalQueue] = {}
        self._gathered: deque[Operation] = deque()
        self._taking = Lock()
        """Held for an instant by whoever takes what has gathered."""
        self._called = False
        """What has gathered will be handed over soon."""
        self._timer: asyncio.TimerHandle | None = None
        """Runs while a commit is under way for which others wait."""
        self._idle = min(broker.store.writers, THREADS)
        """How many threads have nothing to commit."""
        self._expected = 0
        """How many operations the next commit waits for, as long as each turn of the loop brings some."""
        self._groups: SimpleQueue[list[Operation]] = SimpleQueue()
        self._performer = Performer(broker)
        self._threads = [
            Thread(target=self._work, name=f"penstock-commits-{number}", daemon=True) for number in range(self._idle)
        ]
        for thread in self._threads:
            thread.start()

    # in the event loop

    def run(
        self,
        act: Callable[[], Answer],
        *,
        undo: Callable[[Answer], None] | None = None,
        promise: bool = True,
        alone: bool = False,
    ) -> Awaitable[Answer]:
        """Call ``act`` in the next commit, and return its answer once that is durable.

        ``promise=False`` is for a claim, which need not be durable, ``alone=True`` for a long purge, with its own commits.
        ``undo`` reverts the operation if its caller is gone."""
        return self._submit(Operation(act, promise, alone, undo))

    def share(
        self,
        key: str,
        act: Callable[[list[Any]], Sequence[Any]],
        item: Any,
        *,
        undo: Callable[[Any], None] | None = None,
        promise: bool = True,
    ) -> Awaitable[Any]:
        """As `run`, but one call of ``act`` performs all operations in the commit whose keys are equal: it gets their items,
        and returns an answer or an error for each. If it raises an error that is not the store's, it has done nothing."""
        return self._submit(Operation(act, promise, False, undo, key, item))

    def send(self, queue: str, batch: Batch) -> Awaitable[Added]:
        return self.share(f"send {queue}", partial(self._send, queue), batch)

    def begin(
        self,
        act: Callable[[], Any],
        patience: float,
        *,
        alone: bool = False,
        late: Callable[[str], BaseException] = StoreBusy,
    ) -> asyncio.Future[BaseException | None]:
        """Call ``act`` in the next commit, for as many requests as wait for it, or for what is no request. The result is its
        error, if any, or after so many seconds a ``late`` one."""
        future: asyncio.Future[BaseException | None] = self._loop.create_future()
        operation = self._submit(Operation(act, alone=alone))

        def give_up() -> None:
            operation.withdraw()
            future.set_result(late(f"the store has not answered for {patience:g} seconds"))

        def end() -> None:
            timer.cancel()
            if not future.done():
                future.set_result(operation.error)

        timer = self._loop.call_later(patience, give_up)
        operation.wake = end
        return future

    async def work(self, act: Callable[[], Answer], patience: float, *, alone: bool = False) -> Answer:
        """As `begin`, for one that waits for the answer, such as a task of asyncio, which cannot await `run`."""
        answers: list[Answer] = []
        error = await self.begin(lambda: answers.append(act()), patience, alone=alone)
        if error is not None:
            raise error
        return answers[0]

    def soon(self, act: Callable[[], Any]) -> None:
        """Call ``act`` in the next commit, whatever the limit of pending operations; no request waits for it."""
        operation = Operation(act)
        operation.wake = lambda: _log(operation)
        if not self._stopped:
            self._gather(operation)

    def _submit(self, operation: Operation) -> Operation:
        if self._stopped:
            raise StoreClosed(f"{self._broker.store} was closed")
        if self.pending >= self._max_pending:
            self.refused += 1
            raise StoreBusy(f"{self.pending} operations wait for the store, the limit; try again soon")
        if self._tasks:
            operation.future = self._loop.create_future()
            operation.wake = partial(_wake, operation.future)
        self._gather(operation)
        return operation

    def _gather(self, operation: Operation) -> None:
        self.pending += 1
        self._gathered.append(operation)
        self._call_soon()

    def _call_soon(self) -> None:
        if self._called or not self._idle or not self._gathered:
            return
        if self._idle == len(self._threads):
            self._called = True
            self._loop.call_soon(self._call, 0)
        elif self._timer is None:
            self._timer = self._loop.call_later(PATIENCE, self._call_another)

    def _call_another(self) -> None:
        self._timer = None
        if self._gathered and self._idle and not self._called:
            self._hand_over()

    def _call(self, before: int) -> None:
        """Hand over what has gathered, at the end of a turn of the loop. Clients that were answered together tend to ask again
        together: while their number still grows (from ``before``) and some are missing, wait one more turn."""
        gathered = self._gathered
        if before < len(gathered) < self._expected:
            self._loop.call_soon(self._call, len(gathered))
        else:
            self._called = False
            self._hand_over()

    def _hand_over(self) -> None:
        group = self._take(1)
        if group:
            self._idle -= 1
            self._groups.put(group)

    def _take(self, least: int) -> list[Operation]:
        """All that has gathered, if there are at least so many."""
        with self._taking:
            count = len(self._gathered)
            return [self._gathered.popleft() for _ in range(min(count, MOST))] if count >= least else []

    def _answer(self, group: list[Operation], last: bool, done: int, seconds: float) -> None:
        """``last``: the thread makes no other commit until it is called."""
        self.pending -= len(group)
        if done:
            self.sizes(done, seconds)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if last:
            self._idle += 1
            self._expected = len(group) + len(self._gathered)
        self._call_soon()
        with self.together():
            for operation in group:
                operation.end()

    async def stop(self) -> None:
        """Finish what has been handed over."""
        while self.pending:
            await asyncio.sleep(0.005)
        self._stopped = True
        for _ in self._threads:
            self._groups.put([])
        for thread in self._threads:
            thread.join()

    # in a thread of commits

    def _work(self) -> None:
        group = self._groups.get()
        while group:
            started = time.perf_counter()
            done = self._performer.perform(group)
            # If fewer operations wait than are answered now, hold them back: the answered clients ask again sooner than a
            # separate sync would take.
            more = self._take(len(group))
            with suppress(RuntimeError):  # the loop has ended, and with it all that waited for an answer
                self._loop.call_soon_threadsafe(self._answer, group, not more, done, time.perf_counter() - started)
            group = more  # while this thread waits, it keeps nothing of the last commit
            group = group or self._groups.get()

    def queue(self, name: str) -> LocalQueue:
        """A queue that exists, as far as we know; otherwise its verbs say that it does not."""
        queue = self._queues.get(name)
        if queue is None:
            if len(self._queues) >= MOST_QUEUES:
                self._queues.clear()
            queue = self._queues[name] = self._broker.queue(name)
        return queue

    def known(self, name: str) -> Settings | None:
        """The settings of a queue as last read, if they were. Call this anywhere."""
        queue = self._queues.get(name)
        return None if queue is None else queue.known

    def forget(self, name: str) -> None:
        self._queues.pop(name, None)

    def _send(self, name: str, batches: list[Batch]) -> list[Added]:
        try:
            return self.queue(name).send_batches(batches)
        except QueueNotFound:
            self.forget(name)
            raise


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _log(operation: Operation) -> None:
    if operation.error is not None:
        logger.warning(
            "could not give messages back at once; they will be visible again when their visibility ends: %s", operation.error
        )
