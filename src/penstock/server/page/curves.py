"""Curves over time: samples of a queue become numbers for each step. No I/O, and no clock."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from penstock.message import SECOND


class Span(NamedTuple):
    step: int
    """Seconds."""
    steps: int

    @property
    def length(self) -> int:
        """Microseconds."""
        return self.step * self.steps * SECOND


SPANS = {"minute": Span(2, 30), "hour": Span(60, 60), "day": Span(600, 144)}
COVERED = 10
"""Seconds between two samples of a queue in which something happens all the time, at most."""
RECENT = Span(10, 30)
"""What a list of queues shows of each."""


class CurveSample(NamedTuple):
    """A queue at an instant, and how many messages a server has put into it and taken out of it since the sample before."""

    at: int
    messages: int
    in_flight: int
    came: int
    left: int


WIDTH = len(CurveSample._fields)


class Ring:
    """The last samples of one queue, one for each step in which there was one. Owns 40 bytes for each."""

    __slots__ = ("_numbers", "_span")

    def __init__(self, span: Span) -> None:
        self._span = span
        self._numbers = array("q")

    def add(self, sample: CurveSample) -> None:
        numbers, step = self._numbers, self._span.step * SECOND
        if numbers and numbers[-WIDTH] // step == sample.at // step:  # the two become one
            came, left = numbers[-2] + sample.came, numbers[-1] + sample.left
            numbers[-WIDTH:] = array("q", (*sample[:3], came, left))
            return
        numbers.extend(sample)
        if len(numbers) >= 2 * self._span.steps * WIDTH:
            del numbers[: self._span.steps * WIDTH]

    def __iter__(self) -> Iterator[CurveSample]:
        for place in range(0, len(self._numbers), WIDTH):
            yield CurveSample(*self._numbers[place : place + WIDTH])

    def depths(self, now: int) -> list[int | None]:
        """The number of messages at the end of each step; None before the first sample."""
        step = self._span.step * SECOND
        first = now // step - self._span.steps + 1
        found: list[int | None] = [None] * self._span.steps
        last: int | None = None
        begin = 0
        for sample in self:
            place = sample.at // step - first
            if place >= 0:
                found[begin : min(place, len(found))] = [last] * (min(place, len(found)) - begin)
                begin = min(place, len(found))
            last = sample.messages
        found[begin:] = [last] * (len(found) - begin)
        return found


def draw(samples: Iterable[CurveSample], span: Span, now: int) -> dict[str, Any]:
    """The curves of a queue. The samples, in any order, may be of several servers: each tells the number of messages, and what
    it has itself put in and taken out. What that does not explain was done by others."""
    step = span.step * SECOND
    first = now // step - span.steps + 1
    steps: dict[int, list[CurveSample]] = {}
    before: CurveSample | None = None
    for sample in samples:
        place = sample.at // step - first
        if 0 <= place < span.steps:
            steps.setdefault(place, []).append(sample)
        elif place < 0 and (before is None or sample.at > before.at):
            before = sample
    depth: list[int | None] = []
    in_flight: list[int | None] = []
    rates_in: list[float | None] = []
    rates_out: list[float | None] = []
    known = -1  # the step of the sample before
    for place in range(span.steps):
        found = steps.get(place)
        if found is None:
            depth.append(None if before is None else before.messages)
            in_flight.append(None if before is None else before.in_flight)
            rates_in.append(None if before is None else 0.0)
            rates_out.append(None if before is None else 0.0)
            continue
        last = max(found)
        came, left = sum(sample.came for sample in found), sum(sample.left for sample in found)
        if before is not None:
            came, left = balance(came, left, last.messages - before.messages)
        depth.append(last.messages)
        in_flight.append(last.in_flight)
        over = 1 if before is None else max(1, min(place - known, COVERED // span.step))  # so many steps made the difference
        rates_in[place - over + 1 :] = [round(came / span.step / over, 3)] * over
        rates_out[place - over + 1 :] = [round(left / span.step / over, 3)] * over
        before, known = last, place
    return {
        "step": span.step,
        "from_at": first * step,
        "depth": depth,
        "in_flight": in_flight,
        "rate_in": rates_in,
        "rate_out": rates_out,
    }


def balance(came: int, left: int, more: int) -> tuple[int, int]:
    """How many messages came and left, if servers know of so many, and there are so many ``more`` than before."""
    came = max(came, left + more, 0)
    return came, max(0, came - more)
