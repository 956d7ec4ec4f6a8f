"""The clock, read only by `Queue` and the layers above it. It can be any callable that returns microseconds.

The wall clock of a machine can be set, by a person or by NTP. Leases, delays and retention must not change when that happens,
so a store on this machine uses a `MachineClock`: the time since boot (which nobody can set) plus an offset. All processes of
the machine read the same offset from a record in the store, one for each boot.

    wall clock   ────────────┐                      a step of +1 h
                             └ ─ ─ ─ ─ ─ ─ ─ ─ ─
    store clock  ─────────────────────────────────  goes on, 2 % faster until the hour is made up

A process writes a change of course `LEAD` before it takes effect, and no process uses a record older than `LOOK_EVERY`. So all
processes change course at the same instant, and their clocks agree to the microsecond.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Protocol

from penstock.errors import PenstockError
from penstock.message import FOREVER

logger = logging.getLogger("penstock")

Clock = Callable[[], int]

LOOK_EVERY = 1_000_000
"""How long (microseconds) a record is used before it is read again."""
LEAD = 3_000_000
"""How long before it takes effect a new course is written."""
TOUCH_EVERY = 10_000_000
"""How often the current time is written to the store, so that time does not run backwards after a reboot."""
SHARE = 50
"""The clock corrects at most one part in this many of the elapsed time: 2 %, or an hour in two days."""
NEAR = 1_000
"""A smaller difference from the wall clock is not corrected."""
STEP = 50_000
"""A smaller change of the wall clock is not reported as a step."""
TRIES = 5


def _find_steady() -> int:
    """BOOTTIME includes the time that the machine is suspended; not every sandbox has it."""
    which = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    try:
        time.clock_gettime_ns(which)
    except OSError:
        return time.CLOCK_MONOTONIC
    return which


_STEADY = _find_steady()


def system_clock() -> int:
    return time.time_ns() // 1000


def steady() -> int:
    """Microseconds since boot, which nobody can set. Includes suspended time where the system can tell."""
    return time.clock_gettime_ns(_STEADY) // 1000


def boot() -> str | None:
    """An identifier of this boot; None where the system has none. In a time namespace (a container restored from a checkpoint)
    `steady` is shifted, so it counts as another machine."""
    try:
        name = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None
    try:
        shifts = dict(line.split(maxsplit=1) for line in Path("/proc/self/timens_offsets").read_text().splitlines())
        shift = "".join(f"{int(part):+d}" for part in shifts["boottime"].split() if int(part))
    except (OSError, KeyError, ValueError):
        shift = ""
    return f"{name}{shift}" if name else None


class Course(NamedTuple):
    """How a store's clock runs: it shows ``at`` when `steady` is ``since``, corrects by ``pull`` from then until ``turn``, and
    by ``rest`` after that. All in microseconds."""

    since: int
    at: int
    pull: int
    turn: int
    rest: int

    def pack(self) -> bytes:
        return json.dumps(self).encode()

    @classmethod
    def unpack(cls, content: bytes | None) -> Course | None:
        """None if it is missing or damaged."""
        try:
            course = cls(*json.loads(content or b""))
            return course if all(type(value) is int and abs(value) < FOREVER for value in course) else None
        except (ValueError, TypeError):
            return None

    def show(self, now: int) -> int:
        """The store's time when `steady` is ``now``."""
        return (
            self.at
            + (now - self.since)
            + _made_up(self.pull, min(now, self.turn) - self.since)
            + _made_up(self.rest, now - self.turn)
        )

    def straight_until(self, now: int) -> int | None:
        """Until when the clock runs at the speed of `steady`; None if it does not now."""
        if now < self.turn:
            return self.turn if abs(self.pull) * SHARE <= now - self.since else None
        return now + LOOK_EVERY if abs(self.rest) * SHARE <= now - self.turn else None

    def target(self) -> int:
        """The offset from `steady` once the correction is complete."""
        return self.show(self.turn) - self.turn + self.rest

    def towards(self, target: int, turn: int) -> Course:
        """This course up to ``turn``, and then a course to another target."""
        begun = Course(self.turn, self.show(self.turn), self.rest, turn, 0)
        return begun._replace(rest=target - (begun.show(turn) - turn))


def _made_up(distance: int, elapsed: int) -> int:
    most = max(0, elapsed) // SHARE
    return max(-most, min(most, distance))


class ClockRecords(Protocol):
    """Where the processes of a machine share their course. Any call may raise `OSError` or a Penstock error."""

    def read(self, boot: str) -> Course | None:
        """None if there is none, or if it cannot be read."""

    def create(self, boot: str, course: Course) -> Course:
        """Store this course unless another process was first. Returns the one that counts."""

    def replace(self, boot: str, course: Course, now: int) -> None: ...

    def touch(self, boot: str, course: Course, now: int) -> None:
        """Record that the store's time has reached ``now``."""

    def seen(self) -> int:
        """The last recorded instant, from any boot."""


class Unshared:
    """For stores that live in one process."""

    def __init__(self) -> None:
        self._course: Course | None = None

    def __str__(self) -> str:
        return "what this process keeps in memory"

    def read(self, boot: str) -> Course | None:  # noqa: ARG002
        return self._course

    def create(self, boot: str, course: Course) -> Course:  # noqa: ARG002
        self._course = course
        return course

    def replace(self, boot: str, course: Course, now: int) -> None:  # noqa: ARG002
        self._course = course

    def touch(self, boot: str, course: Course, now: int) -> None: ...

    def seen(self) -> int:
        return 0


class MachineClock:
    """The wall clock of this machine, without its steps. It takes no lock that a thread, a fork or a signal could block."""

    def __init__(
        self,
        records: ClockRecords | None = None,
        *,
        steady: Clock = steady,
        wall: Clock = system_clock,
        boot: Callable[[], str | None] = boot,
    ) -> None:
        self.steps = 0
        """How often this process has noticed a step of the wall clock."""
        self._records = records or Unshared()
        self._steady, self._wall, self._find_boot = steady, wall, boot
        self._boot: str | None = None
        self._offset = 0
        """The wall clock's offset from `steady` at this process's last check."""
        self._look_at = self._touch_at = 0
        self._now = (0, 0)
        """Until when `steady` plus this offset is the time."""
        self._course = self._enter(boot())

    def __call__(self) -> int:
        now = self._steady()
        until, offset = self._now
        return now + offset if now < until else self._slowly(now)

    def _slowly(self, now: int) -> int:
        if now >= self._look_at:
            self.look()
        course = self._course
        shown = course.show(now)
        straight = course.straight_until(now)
        self._now = (0, 0) if straight is None else (min(straight, self._look_at), shown - now)
        return shown

    def difference(self) -> int:
        """How many microseconds the wall clock is ahead."""
        offset, _ = self._compare()
        now = self._steady()
        return offset - (self._course.show(now) - now)

    def look(self) -> None:
        """Read what other processes have written, and check whether the wall clock was set."""
        now = self._steady()
        self._look_at = now + LOOK_EVERY  # first, so that other threads use what is known
        name = self._find_boot()
        if name != self._boot:  # this process was restored from a checkpoint after a reboot
            self._course = self._enter(name)
            return
        try:
            # If the record is gone (evicted, or somebody removed it), write ours for the other processes.
            course = self._records.read(name or "") or self._records.create(name or "", self._course)
        except (OSError, PenstockError):
            course = self._course  # a full or failing disk does not stop the clock
        offset, noise = self._compare()
        moved, self._offset = offset - self._offset, offset
        self._tell(moved, noise, offset - (course.show(now) - now))
        self._course = self._keep(name or "", course, now, noise)
        self._now = (0, 0)

    def _keep(self, boot: str, course: Course, now: int, noise: int) -> Course:
        """Write the time down now and then, and follow the wall clock. Returns the course from now on."""
        with suppress(OSError, PenstockError):
            if now >= self._touch_at:
                self._touch_at = now + TOUCH_EVERY
                self._records.touch(boot, course, course.show(now))
        if abs(self._offset - course.target()) > NEAR + noise and now >= course.turn:
            return self._follow(boot, course, self._offset, now)
        return course

    def _follow(self, boot: str, course: Course, offset: int, now: int) -> Course:
        changed = course.towards(offset, now + LEAD)
        try:
            self._records.replace(boot, changed, course.show(now))
        except (OSError, PenstockError):
            return course  # changing course alone would make us disagree with the others: retry later
        return changed

    def _enter(self, name: str | None) -> Course:
        """The course of this boot. The first process sets it from the wall clock, but never before the store's last time."""
        now = self._steady()
        self._boot = name
        self._offset, noise = self._compare()
        known: Course | None = None
        course = Course(now, now + self._offset, 0, now, 0)
        try:
            known = self._records.read(name or "")
            if known is None:
                start = max(course.at, self._records.seen())
                course = course._replace(at=start, rest=course.at - start)
                course = self._records.create(name or "", course)
            else:
                course = known
        except (OSError, PenstockError):
            pass  # a full or read-only disk: use what we could find out
        # Report steps of the wall clock that no process saw: since this boot's record was made, or before it.
        shown = course.show(now) - now
        self._tell(self._offset - (course.target() if known else shown), noise, self._offset - shown)
        self._look_at, self._touch_at = now + LOOK_EVERY, now
        self._now = (0, 0)
        return self._keep(name or "", course, now, noise) if known else course

    def _compare(self) -> tuple[int, int]:
        """The wall clock's offset from `steady`, from the fastest of several readings, and its possible error."""
        found = []
        for _ in range(TRIES):
            before = self._steady()
            wall = self._wall()
            after = self._steady()
            found.append((after - before, wall - (before + after) // 2))
            if after - before < NEAR // 10:
                break
        noise, offset = min(found)
        return offset, noise

    def _tell(self, moved: int, noise: int, difference: int) -> None:
        if abs(moved) > STEP + noise:
            self.steps += 1
            logger.warning(
                "the wall clock was set %s by %.3f s; the clock of %s does not step: it is %.3f s %s and makes that up at 2 %%",
                "forward" if moved > 0 else "back",
                abs(moved) / 1_000_000,
                self._records,
                abs(difference) / 1_000_000,
                "behind" if difference > 0 else "ahead",
            )


def machine_clock(records: ClockRecords) -> Clock:
    """A clock that processes share. Where the system has no boot time, this is the wall clock."""
    return system_clock if boot() is None else MachineClock(records)
