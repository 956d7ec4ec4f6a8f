"""Operations, and how those of one commit are performed: what is alike in one call, each failure alone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from itertools import chain
from threading import Lock
from typing import Any

from penstock.broker import LocalBroker
from penstock.errors import PenstockError, StoreError

_beginning = Lock()
"""Held for an instant: an operation is either begun or withdrawn, never both."""


class TurnedAway(Exception):
    """An operation was not begun, for a reason that is neither the store's nor an error of its caller's values."""


class Operation:
    """One call of the core on behalf of one caller. Awaiting it waits for its commit.

    It is ``act()``; or, with a ``key``, its ``item`` of ``act([item, …])``, which gets the items of all operations in the
    commit whose keys are equal, and returns an answer or an error for each."""

    __slots__ = (
        *("act", "alone", "answer", "answered", "begun", "error", "future", "gone", "item", "key", "promise", "undo"),
        *("wake", "withdrawn"),
    )

    def __init__(
        self,
        act: Callable[..., Any] | None,
        promise: bool = True,
        alone: bool = False,
        undo: Callable[[Any], None] | None = None,
        key: str | None = None,
        item: Any = None,
    ) -> None:
        self.act = act
        self.promise = promise
        self.alone = alone
        self.undo = undo
        self.key = key
        self.item = item
        self.answer: Any = None
        self.error: BaseException | None = None
        self.begun = self.withdrawn = self.answered = False
        self.future: asyncio.Future[None] | None = None
        """If its caller is a task, what that awaits."""
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
            self.act = self.item = None  # it may stay in line for as long as the store is stuck
        return self.withdrawn

    def begin(self) -> bool:
        """Called by the thread of commits before it does anything; False if the operation was withdrawn."""
        with _beginning:
            self.begun = not self.withdrawn
        return self.begun

    def end(self) -> None:
        """Called in the event loop when there is an answer or an error: tell the caller, or undo it if that has left."""
        self.answered = True
        if self.gone or self.withdrawn:
            self._revert()
        elif self.wake is not None:
            self.wake()

    def leave(self) -> None:
        """Its caller no longer waits for it. A task may leave although it was told the answer: it was cancelled before its turn
        came."""
        self.gone = True
        if self.answered:
            self._revert()
        else:
            self.withdraw()

    def _revert(self) -> None:
        if self.error is None and self.undo is not None and self.answer is not None:
            self.undo(self.answer)

    def __await__(self) -> Generator[Any, None, Any]:
        try:
            if self.future is None:
                yield self
            else:
                yield from self.future
        except BaseException:
            self.leave()
            raise
        if self.error is not None:
            raise self.error
        return self.answer


class Performer:
    """Performs the operations of one commit after another, in any thread."""

    def __init__(self, broker: LocalBroker) -> None:
        self._broker = broker

    def perform(self, operations: list[Operation]) -> int:
        """Perform those that were not withdrawn. Returns how many."""
        shared = [operation for operation in operations if not operation.alone and operation.begin()]
        groups = _sort(shared)
        if len(groups) > 1 and any(operation.promise for operation in shared):
            self._commit(groups)
        else:
            for group in groups:
                self._call(group)
        done = len(shared)
        for operation in operations:
            if operation.alone and operation.begin():
                self._call([operation])
                done += 1
        return done

    def _commit(self, groups: list[list[Operation]]) -> None:
        """Make one commit of all."""
        try:
            with self._broker.waiting.told(), self._broker.store.batch():
                for group in groups:
                    self._nest(group)
        except BaseException as error:
            _fail([operation for operation in chain(*groups) if operation.error is None], error)

    def _call(self, group: list[Operation]) -> None:
        """Perform what is alike in one call, which is its own commit. If that is refused, nothing was done: then each gets its
        own answer."""
        try:
            _act(group)
        except BaseException as error:
            if len(group) == 1 or not isinstance(error, PenstockError) or isinstance(error, StoreError):
                _fail(group, error)
            elif group[0].promise:
                self._commit([[operation] for operation in group])
            else:
                for operation in group:
                    self._call([operation])

    def _nest(self, group: list[Operation]) -> None:
        """The same, inside a commit."""
        try:
            with self._broker.store.batch():
                _act(group)
        except BaseException as error:
            # If the store failed where a batch is no transaction, it may have been done all the same.
            if len(group) == 1 or not isinstance(error, PenstockError) or isinstance(error, StoreError):
                _fail(group, error)
            else:
                for operation in group:
                    self._nest([operation])


def _act(group: list[Operation]) -> None:
    first = group[0]
    assert first.act is not None
    if first.key is None:
        first.answer = first.act()
        return
    for operation, answer in zip(group, first.act([operation.item for operation in group]), strict=True):
        if isinstance(answer, BaseException):
            _fail([operation], answer)
        else:
            operation.answer = answer


def _fail(group: list[Operation], error: BaseException) -> None:
    if isinstance(error, PenstockError | TurnedAway):
        # Its frames have the operations, which have the error: such a circle, with all that the client has sent, would stay in
        # memory until Python looks for circles. (Of a defect, the log shows the frames.)
        error.__traceback__ = error.__context__ = None
    for operation in group:
        operation.error = error


def _sort(operations: list[Operation]) -> list[list[Operation]]:
    """The operations in the order in which they came, but those with one key at the position of the first, and claims after
    what promises something: they find what is sent in the same commit."""
    groups: dict[object, list[Operation]] = {}
    for operation in operations:
        groups.setdefault(operation.key or operation, []).append(operation)
    return sorted(groups.values(), key=lambda group: not group[0].promise)
