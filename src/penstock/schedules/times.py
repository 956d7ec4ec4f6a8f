"""When a schedule is due: every so many seconds, or as a cron expression says, by the clock of a time zone.

A rule is a set of instants. `after` yields those after an instant, and the answer does not depend on where one begins to ask.

At a change of the clocks, cron is that of Debian, which cronsim follows:

    the hour and the minute are given     a time that does not exist: once, at the first instant after the gap;
    (30 2 * * *)                          a time that exists twice: once, the first time
    one of both begins with *              whenever the clock shows such a time: never in a gap, and twice in an hour that
                                          exists twice
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from datetime import UTC, datetime, tzinfo
from functools import lru_cache
from typing import Protocol
from zoneinfo import ZoneInfo

from penstock.errors import BadInput, MissingExtra
from penstock.message import SECOND, from_datetime, micros, to_datetime
from penstock.policy import check_seconds

try:
    from cronsim import CronSim, CronSimError
except ImportError:
    CronSim = None  # type: ignore[assignment, misc]

LEAST = 1
"""Seconds between two instants of a rule, at least."""
LONGEST = 200
"""Characters of a cron expression."""
FIELDS = 5
NAMES = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
HOUR = 3600 * SECOND
DAY = 24 * HOUR
SPANS = (HOUR, DAY, 8 * DAY, 64 * DAY, 400 * DAY)
"""How far back to look for the last instants of a rule: dense ones are found in the first span."""


class Times(Protocol):
    def after(self, at: int) -> Iterator[int]:
        """The instants after this one, in order."""

    def last(self, after: int, by: int, most: int) -> list[int]:
        """The last ``most`` instants after one instant and up to another, in order."""


class Every:
    """Every so many seconds, counted from an instant."""

    def __init__(self, seconds: float, since: int) -> None:
        self._step = micros(seconds)
        self._since = since

    def after(self, at: int) -> Iterator[int]:
        following = self._count(at) + 1
        while True:
            yield self._since + following * self._step
            following += 1

    def last(self, after: int, by: int, most: int) -> list[int]:
        last = self._count(by)
        first = max(self._count(after) + 1, last - most + 1)
        return [self._since + number * self._step for number in range(first, last + 1)]

    def _count(self, by: int) -> int:
        return (by - self._since) // self._step


class Cron:
    def __init__(self, expression: str, zone: str) -> None:
        self._expression = NAMES.get(expression.lower(), expression)
        self._zone = find_zone(zone)

    def after(self, at: int) -> Iterator[int]:
        try:
            for moment in CronSim(self._expression, to_datetime(at).astimezone(self._zone)):
                # Compared as instants: within an hour that exists twice, cronsim begins with the first of both.
                found = from_datetime(moment.astimezone(UTC))
                if found > at:
                    at = found
                    yield found
        except OverflowError:  # beyond the calendar
            return

    def last(self, after: int, by: int, most: int) -> list[int]:
        for span in (*SPANS, by - after):
            begin = max(after, by - span)
            found: deque[int] = deque(maxlen=most)
            for at in self.after(begin):
                if at > by:
                    break
                found.append(at)
            if len(found) == most or begin == after:
                break
        return list(found)


def find_times(cron: str | None, every: float | None, zone: str, since: int) -> Times:
    """``since``: from where seconds are counted."""
    if cron is None:
        return Every(every or 0, since)
    if CronSim is None:
        raise MissingExtra("a schedule with a cron expression", "schedules")
    return Cron(cron, zone)


def check_times(cron: object, every: object, zone: object) -> None:
    """Whether this is a rule."""
    if (cron is None) == (every is None):
        raise BadInput("a schedule has either cron, such as '0 3 * * *', or every, a number of seconds")
    if not isinstance(zone, str):
        raise BadInput(f"zone is the name of a time zone such as 'Europe/Berlin', not {type(zone).__name__}: {zone!r:.80}")
    find_zone(zone)
    if cron is None:
        check_seconds(every, "every", LEAST, BadInput)
        return
    if not isinstance(cron, str) or len(cron) > LONGEST:
        raise BadInput(f"cron {cron!r:.80} must be text of at most {LONGEST} characters, such as '0 3 * * *'")
    expression = NAMES.get(cron.lower(), cron)
    if len(expression.split()) != FIELDS:
        raise BadInput(
            f"cron {cron!r:.80} must have five fields (minute hour day month weekday), or be one of {', '.join(NAMES)}"
        )
    if CronSim is None:
        raise MissingExtra("a schedule with a cron expression", "schedules")
    try:
        CronSim(expression, datetime(2000, 1, 1, tzinfo=UTC)).__next__()
    except StopIteration:
        raise BadInput(f"cron {cron!r:.80} never comes") from None
    except (CronSimError, ValueError, AssertionError) as error:
        raise BadInput(f"cron {cron!r:.80} cannot be read: {error}") from None


@lru_cache(maxsize=100)
def find_zone(name: str) -> tzinfo:
    if name == "UTC":
        return UTC  # also where there is no database of time zones
    try:
        return ZoneInfo(name)
    except (LookupError, ValueError, OSError):
        raise BadInput(
            f"there is no time zone {name!r:.80}; names are such as 'Europe/Berlin' "
            '(if there are none: pip install "penstock[schedules]")'
        ) from None
