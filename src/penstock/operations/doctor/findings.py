"""What an examination finds, and what it is given."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from penstock.clock import Clock

FAR = 5.0
"""A clock that differs by more seconds is wrong."""


class Severity(StrEnum):
    OK = "ok"
    NOTE = "note"
    WRONG = "wrong"


@dataclass(frozen=True, slots=True)
class Finding:
    subject: str
    severity: Severity
    what: str
    remedy: str | None = None


class Visit(NamedTuple):
    url: str
    timeout: float
    """Seconds for one connection or one statement."""
    wall: Clock


def ok(subject: str, what: str) -> Finding:
    return Finding(subject, Severity.OK, what)


def note(subject: str, what: str, remedy: str | None = None) -> Finding:
    return Finding(subject, Severity.NOTE, what, remedy)


def wrong(subject: str, what: str, remedy: str) -> Finding:
    return Finding(subject, Severity.WRONG, what, remedy)


def compare_clocks(whose: str, ahead: float) -> Finding:
    """``ahead``: seconds by which that clock is ahead of this machine's."""
    if abs(ahead) <= FAR:
        return ok("clock", f"{whose} agrees with this machine's wall clock")
    way = "ahead of" if ahead > 0 else "behind"
    remedy = "set both by NTP; deadlines and schedules that name a time of day go by that clock"
    return wrong("clock", f"{whose} is {abs(ahead):,.0f} s {way} this machine's wall clock", remedy)


def size(count: float) -> str:
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}"
        count /= 1024
    return f"{count:,.1f} TiB"
