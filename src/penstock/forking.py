"""Forks: a child must find every lock free and no connection of its parent's.

Before a fork, each thing that is watched comes to rest (it takes its lock, a store closes its connection), and afterwards it
goes on, in the parent and in the child.
"""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class Forkable(Protocol):
    def before_fork(self) -> None: ...

    def after_fork(self, *, child: bool) -> None: ...


_watched: weakref.WeakSet[Forkable] = weakref.WeakSet()
_resting: list[Forkable] = []


def watch(thing: Forkable) -> None:
    _watched.add(thing)


def _before() -> None:
    for thing in list(_watched):
        thing.before_fork()
        _resting.append(thing)


def _after(*, child: bool) -> None:
    while _resting:
        _resting.pop().after_fork(child=child)


os.register_at_fork(
    before=_before,
    after_in_parent=lambda: _after(child=False),
    after_in_child=lambda: _after(child=True),
)
