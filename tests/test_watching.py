"""The watcher's pace, in a world whose time moves only when it rests or looks: how soon it hears, and how often it looks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from heapq import heappop, heappush

import pytest

from penstock.queue import watching
from penstock.queue.watching import Watcher

SYNC = 0.002
"""Seconds from a change of the file to its commit."""
LOOK = 0.0001


class World:
    """A store, its file, the clock, and one consumer who deletes what it has received before it waits again. What happens is a
    list of instants; the watcher's calls move the time, and nothing else does."""

    def __init__(self, sent: Iterable[float], own: Iterable[float], handling: float, end: float) -> None:
        self.now = 0.0
        self.looks: list[float] = []
        self.late: list[float] = []
        """Seconds from the commit of each message until the consumer was told."""
        self.waits = True
        self.wake_ups = 0
        self._handling = handling
        self._waiting_since_commit: list[float] = []
        self._version = 0
        self._touched = False
        self._plan: list[tuple[float, str]] = []
        for instant in sent:
            heappush(self._plan, (instant, "touch"))
            heappush(self._plan, (instant + SYNC, "commit"))
        for instant in own:
            heappush(self._plan, (instant, "touch"))
        heappush(self._plan, (end, "end"))
        self.watcher = Watcher(self, lambda: int(self.now * 1e6), self)  # type: ignore[arg-type]
        self.watcher._end = self  # type: ignore[assignment]

    def _pass(self, until: float, *, unless_touched: bool) -> None:
        while self._plan and self._plan[0][0] <= until and not (unless_touched and self._touched):
            self.now, what = heappop(self._plan)
            if what == "touch":
                self._touched = True
            elif what == "commit":
                self._version += 1
                self._waiting_since_commit.append(self.now)
            elif what == "wait":
                self.waits = True
            else:
                self.watcher._closed = True
                return
        if not (unless_touched and self._touched):
            self.now = until

    # the clock, the end of the watcher, and the file

    def monotonic(self) -> float:
        return self.now

    def acquire(self, *, timeout: float) -> bool:
        self.wake_ups += 1
        self._pass(self.now + timeout, unless_touched=False)
        return False

    def follow(self, paths: list[str]) -> bool:
        return bool(paths)

    def wait(self, seconds: float) -> bool:
        self.wake_ups += 1
        self._pass(self.now + seconds, unless_touched=True)
        touched, self._touched = self._touched, False
        return touched

    # the store

    def version(self) -> int:
        self._pass(self.now + LOOK, unless_touched=False)
        self.looks.append(self.now)
        return self._version

    def listen(self, bell: Callable[[], None]) -> None:
        pass  # its file tells

    def traces(self, _: list[str]) -> list[str]:
        return ["wal"]

    def queue(self, _: str) -> World:
        return self

    def due(self) -> int | None:
        return 0 if self._waiting_since_commit else None

    # the consumer

    def is_empty(self) -> bool:
        return not self.waits

    def queues(self) -> list[str]:
        return ["orders"] if self.waits else []

    def hear(self) -> list[str]:
        return self.queues()

    def notify(self, *_: str) -> None:
        """It claims what is there, deletes it, and waits again: two commits of its own."""
        self.late += [self.now - instant for instant in self._waiting_since_commit]
        self._waiting_since_commit.clear()
        self.waits = False
        heappush(self._plan, (self.now + LOOK, "touch"))
        heappush(self._plan, (self.now + self._handling, "touch"))
        heappush(self._plan, (self.now + self._handling + SYNC, "wait"))


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> Callable[..., World]:
    def play(sent: Iterable[float] = (), own: Iterable[float] = (), *, end: float, handling: float = 0.001) -> World:
        world = World(sent, own, handling, end)
        monkeypatch.setattr(watching, "time", world)
        world.watcher._look_until_nobody_waits(world)  # type: ignore[arg-type]
        return world

    return play


@pytest.mark.parametrize("gap", [0.005, 0.012, 0.03, 0.1, 0.5])
def test_a_consumer_that_writes_in_between_is_told_of_each_message_within_five_milliseconds(
    gap: float, play: Callable[..., World]
) -> None:
    world = play([gap * number for number in range(1, 41)], end=gap * 40 + 1)
    assert len(world.late) == 40
    assert max(world.late) <= 0.005


def test_a_change_that_began_before_the_consumer_waited_is_found_when_it_is_committed(play: Callable[..., World]) -> None:
    """The file changed while nobody waited, and does not change again."""
    handling = 0.1
    ready_at = 0.1 + SYNC + handling  # about then the consumer deletes the first message, and waits when that is committed
    for step in range(40):
        world = play([0.1, ready_at + step / 10_000], handling=handling, end=1)
        assert len(world.late) == 2
        assert max(world.late) <= 0.01


def test_a_process_that_writes_all_the_time_looks_as_seldom_as_if_nothing_could_be_watched(play: Callable[..., World]) -> None:
    world = play(own=[0.0005 * number for number in range(20_000)], end=10)
    assert len(world.looks) <= watching.MOST_IN_VAIN + 10 / watching.LOOK_EVERY + 2


def test_a_process_that_writes_now_and_then_looks_a_few_times_for_each_change(play: Callable[..., World]) -> None:
    world = play(own=[0.1 * number for number in range(100)], end=10)
    assert len(world.looks) <= 100 * (len(watching.SETTLING) + 3)


def test_while_nobody_waits_the_watcher_does_not_follow_every_write(play: Callable[..., World]) -> None:
    world = play([0.001], own=[0.01 + 0.0001 * number for number in range(9_000)], handling=10, end=0.9)
    assert len(world.looks) < 10  # before the consumer had its message
    assert world.wake_ups <= 2 * 0.9 / watching.LOOK_PAUSE + 10
