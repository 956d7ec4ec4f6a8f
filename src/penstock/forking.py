"""Forks: a child must find every lock free, and must not inherit a connection of its parent.

Before a fork, each thing that is watched comes to rest (it takes its lock, a store closes its connection), and afterwards it
resumes, in the parent and in the child. They come to rest in the order in which they were made: a store first, then what was
built on it. A thread that holds two of these locks must have taken them in that order, or a fork and the thread wait for each
other for ever.
"""

from __future__ import annotations

import os
import threading
import weakref
from contextlib import suppress
from typing import Protocol


class Forkable(Protocol):
    def before_fork(self) -> None: ...

    def after_fork(self, *, child: bool) -> None: ...


class _Resting(threading.local):
    """What rests because of this thread: two threads may fork at once, and one of them is alone in its child."""

    def __init__(self) -> None:
        self.things: list[Forkable] = []


_watched: list[weakref.ref[Forkable]] = []
_resting = _Resting()


def watch(thing: Forkable) -> None:
    _watched.append(weakref.ref(thing, _watched.remove))


def _before() -> None:
    things = _resting.things
    interrupt: BaseException | None = None
    for reference in tuple(_watched):
        thing = reference()
        if thing is not None:
            things.append(thing)
            try:
                thing.before_fork()
            except BaseException as error:  # Python forks all the same, so the others must rest
                interrupt = error
    if interrupt is not None:
        raise interrupt


def _after(*, child: bool) -> None:
    things = _resting.things
    while things:
        with suppress(RuntimeError):  # it was interrupted before it had its lock
            things.pop().after_fork(child=child)


os.register_at_fork(
    before=_before,
    after_in_parent=lambda: _after(child=False),
    after_in_child=lambda: _after(child=True),
)
