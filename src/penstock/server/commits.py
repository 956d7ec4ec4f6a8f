"""The one bridge between the async server and the sync core: concurrent operations share one commit.

While a commit waits for the disk, new operations gather; the next commit takes them all. Each is answered only after the commit
that made it durable. An operation that fails is undone alone, in a nested batch of its own, and the others continue;
if the commit itself fails, all operations in it have failed.

Sends to one queue become one `send_many`, which costs a fraction of as many sends.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import chain
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Any, TypeVar

from penstock.broker import LocalBroker
from penstock.errors import PenstockError, QueueNotFound, StoreBusy, StoreError
from penstock.message import Draft, Sent
from penstock.queue.queue import LocalQueue
from penstock.server.http.request_response import Refused

logger = logging.getLogger("penstock.server")

Answer = TypeVar("Answer")
MOST = 1000
"""Operations in one commit."""
MOST_QUEUES = 10_000
"""Queues that are known to exist."""
_beginning = Lock()
"""Held for an instant: an operation is either begun or withdrawn, never both."""


class Operation:
    """One call of the core on behalf of one request: ``act``, or a send of ``drafts``. Awaiting it waits for its commit."""

    __slots__ = ("act", "alone", "answer", "begun", "drafts", "error", "gone", "promise", "queue", "undo", "wake", "withdrawn")

    def __init__(
        self,
        act: Callable[[], Any] | None,
        promise: bool = True,
        alone: bool = False,
        undo: Callable[[Any], None] | None = None,
        queue: str = "",
        drafts: Sequence[Draft] = (),
    ) -> None:
        self.act = act
        self.promise = promise
        self.alone = alone
        self.undo = undo
        self.queue = queue
        self.drafts = drafts
        self.answer: Any = None
        self.error: BaseException | None = None
        self.begun = self.withdrawn = False
        self.gone = False
        """Its caller no longer waits for it."""
        self.wake: Callable[[], None] | None = None
        """Called in the event loop when there is an answer or an error."""

    def withdraw(self) -> bool:
        """True: the store has not begun this operation, and never will. False: it has begun, so that only its end tells the
        outcome; wait for it. Call this in the event loop."""
        with _beginning:
            self.withdrawn = not self.begun
        if self.withdrawn:
            self.act, self.drafts = None, ()  # it may stay in line for as long as the store is stuck
        return self.withdrawn

    def begin(self) -> bool:
        """Called by the thread of commits before it does anything; False if the operation was withdrawn."""
        with _beginning:
            self.begun = not self.withdrawn
        return self.begun

    def __await__(self) -> Generator[Operation, None, Any]:
        try:
            yield self
        except BaseException:
            self.gone = True
            self.withdraw()
            raise
        if self.error is not None:
            raise self.error
        return self.answer


class Commits:
    def __init__(self, broker: LocalBroker, loop: asyncio.AbstractEventLoop, *, max_pending: int) -> None:
        self._broker = broker
        self._loop = loop
        self._max_pending = max_pending
        self.pending = 0
        self.refused = 0
        self.sizes: Callable[[int, float], None] = lambda _size, _seconds: None
        """Called after each commit with the number of its operations and its duration."""
        self.together: Callable[[], AbstractContextManager[None]] = nullcontext
        """Entered while the operations of one commit are answered."""
        self._queues: dict[str, LocalQueue] = {}
        self._gathered: deque[Operation] = deque()
        self._called = False
        """A commit is under way, or will be soon."""
        self._expected = 0
        """How many operations the next commit waits for, as long as each turn of the loop brings some."""
        self._groups: SimpleQueue[list[Operation]] = SimpleQueue()
        self._thread = Thread(target=self._work, name="penstock-commits", daemon=True)
        self._thread.start()

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

    def send(self, queue: str, drafts: Sequence[Draft]) -> Awaitable[list[Sent]]:
        return self._submit(Operation(None, True, False, None, queue, drafts))

    def begin(self, act: Callable[[], Any], patience: float) -> asyncio.Future[BaseException | None]:
        """Call ``act`` in the next commit, for as many requests as wait for it. The result is its error, if any; `Refused`
        after so many seconds."""
        future: asyncio.Future[BaseException | None] = self._loop.create_future()
        operation = self._submit(Operation(act))

        def give_up() -> None:
            operation.withdraw()
            future.set_result(Refused(503, f"the store has not answered for {patience:g} seconds", {"Retry-After": "1"}))

        def end() -> None:
            timer.cancel()
            if not future.done():
                future.set_result(operation.error)

        timer = self._loop.call_later(patience, give_up)
        operation.wake = end
        return future

    def soon(self, act: Callable[[], Any]) -> None:
        """Call ``act`` in the next commit, whatever the limit of pending operations; no request waits for it."""
        operation = Operation(act)
        operation.wake = lambda: _log(operation)
        self._gather(operation)

    def _submit(self, operation: Operation) -> Operation:
        if self.pending >= self._max_pending:
            self.refused += 1
            raise StoreBusy(f"{self.pending} operations wait for the store, the limit; try again soon")
        self._gather(operation)
        return operation

    def _gather(self, operation: Operation) -> None:
        self.pending += 1
        self._gathered.append(operation)
        if not self._called:
            self._called = True
            self._loop.call_soon(self._call, 0)

    def _call(self, before: int) -> None:
        """Hand over what has gathered, at the end of a turn of the loop. Clients that were answered together tend to ask again
        together: while their number still grows (from ``before``) and some are missing, wait one more turn."""
        gathered = self._gathered
        if before < len(gathered) < self._expected:
            self._loop.call_soon(self._call, len(gathered))
        else:
            self._groups.put(self._take())

    def _take(self) -> list[Operation]:
        return [self._gathered.popleft() for _ in range(min(len(self._gathered), MOST))]

    def _answer(self, group: list[Operation], last: bool) -> None:
        """``last``: no commit follows unless it is requested."""
        self.pending -= len(group)
        if last:
            self._expected = len(group) + len(self._gathered)
            self._called = bool(self._gathered)
            if self._called:
                self._loop.call_soon(self._call, 0)
        with self.together():
            for operation in group:
                if operation.gone or operation.withdrawn:
                    if operation.error is None and operation.undo is not None and operation.answer is not None:
                        operation.undo(operation.answer)
                elif operation.wake is not None:
                    operation.wake()

    async def stop(self) -> None:
        """Finish what has been handed over."""
        while self.pending:
            await asyncio.sleep(0.005)
        self._groups.put([])
        self._thread.join()

    # in the thread of commits

    def _work(self) -> None:
        group = self._groups.get()
        while group:
            started = time.perf_counter()
            done = self._commit(group)
            if done:
                self.sizes(done, time.perf_counter() - started)
            # If fewer operations wait than are answered now, hold them back: the answered clients ask again sooner than a
            # separate sync would take.
            last = len(self._gathered) < len(group)
            self._loop.call_soon_threadsafe(self._answer, group, last)
            group = self._groups.get() if last else self._take()

    def _commit(self, group: list[Operation]) -> int:
        """Perform the operations that were not withdrawn. Returns how many."""
        shared = [operation for operation in group if not operation.alone and operation.begin()]
        if len(shared) > 1 and any(operation.promise for operation in shared):
            groups = _sort(shared)
            if len(groups) > 1:
                self._commit_together(groups)
            elif not self._send_at_once(shared):
                self._commit_together([[send] for send in shared])
        else:
            for operation in shared:
                self._perform(operation)
        done = len(shared)
        for operation in group:
            if operation.alone and operation.begin():
                self._perform(operation)
                done += 1
        return done

    def _send_at_once(self, sends: list[Operation]) -> bool:
        """If all are sends to one queue, make one call, which is its own commit. If refused, do nothing and return False."""
        try:
            _share_out(self._send(sends), sends)
        except BaseException as error:
            if isinstance(error, PenstockError) and not isinstance(error, StoreError):
                return False
            for send in sends:
                send.error = error
        return True

    def _commit_together(self, groups: list[list[Operation]]) -> None:
        try:
            with self._broker.waiting.told(), self._broker.store.batch():
                for group in groups:
                    self._perform_together(group)
        except BaseException as error:
            for operation in chain(*groups):
                operation.error = operation.error or error

    def _perform(self, operation: Operation) -> None:
        try:
            operation.answer = self._act(operation)
        except BaseException as error:
            operation.error = error

    def _act(self, operation: Operation) -> Any:
        return self._send([operation]) if operation.act is None else operation.act()

    def _send(self, sends: list[Operation]) -> list[Sent]:
        name = sends[0].queue
        queue = self._queues.get(name)
        if queue is None:
            if len(self._queues) >= MOST_QUEUES:
                self._queues.clear()
            queue = self._queues[name] = self._broker.queue(name)
        try:
            return queue.send_many([draft for send in sends for draft in send.drafts])
        except QueueNotFound:
            del self._queues[name]
            raise

    def _perform_together(self, group: list[Operation]) -> None:
        """Make the sends to one queue in one call. If that is refused, and for all other operations, call each on its own."""
        if len(group) > 1:
            try:
                with self._broker.store.batch():
                    _share_out(self._send(group), group)
                return
            except StoreError as error:  # where a batch is no transaction, it may have been sent all the same
                for operation in group:
                    operation.error = error
                return
            except PenstockError:  # refused: nothing was done, so each gets its own error below
                pass
        for operation in group:
            try:
                with self._broker.store.batch():
                    operation.answer = self._act(operation)
            except BaseException as error:
                operation.error = error


def _share_out(sent: list[Sent], sends: list[Operation]) -> None:
    done = 0
    for send in sends:
        send.answer = sent[done : done + len(send.drafts)]
        done += len(send.drafts)


def _sort(group: list[Operation]) -> list[list[Operation]]:
    """The operations in order, with all sends to one queue at the position of the first."""
    sorted: list[list[Operation]] = []
    sends: dict[str, list[Operation]] = {}
    for operation in group:
        if operation.drafts and operation.queue in sends:
            sends[operation.queue].append(operation)
            continue
        sorted.append([operation])
        if operation.drafts:
            sends[operation.queue] = sorted[-1]
    return sorted


def _log(operation: Operation) -> None:
    if operation.error is not None:
        logger.warning(
            "could not give messages back at once; they will be visible again when their visibility ends: %s", operation.error
        )
