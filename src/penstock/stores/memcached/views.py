"""Looking at the queues in memcached: browsing, counting, waiting, the history."""

from __future__ import annotations

import heapq
import json
import time
from collections.abc import Iterator
from typing import Any

from penstock.message import FOREVER, Counts, Message, State
from penstock.stores.memcached.catalogue import Home
from penstock.stores.memcached.formats import MARKED, NEVER, SETTLED, SLOTS, Page
from penstock.stores.memcached.messages import CachedMessages
from penstock.stores.memcached.pages import FAN, Survey
from penstock.stores.memcached.records import MARK, id_of, mark_key
from penstock.stores.ports import START

ECHOES = 3
LOOK_SECONDS = 0.04
"""Asking a server costs ten times a look at a file, so only every second look of a waiting receiver asks it."""
AT_ONCE = 64
"""Pages per command when all of them are read."""


class CachedViews(CachedMessages):
    _looked = 0.0
    _version = 0
    _now = 0
    """The latest instant that a caller passed to this process."""

    def _pages(self, home: Home, survey: Survey, start: int = 0) -> Iterator[tuple[int, Page]]:
        """All pages, or those from ``start`` on."""
        first = max(survey.tail, start)
        for at in range(first, survey.last + 1, AT_ONCE if first < survey.last else 1):
            numbers = range(at, min(at + AT_ONCE, survey.last + 1))
            read = self._read(home, numbers)
            for number in numbers:
                yield number, read[number][0]

    def browse(
        self, queue: str, limit: int, *, state: State | None = None, now: int | None = None, after: tuple[int, int] = START
    ) -> list[Message]:
        with self.batch():
            home, found = self._home(queue, self._claim_keys)
            survey = self._survey(home, found)
            messages: list[Message] = []
            if now is not None:
                self._now = max(self._now, now)
                pages = self._visible_pages(home, survey, now, after[1] // SLOTS)
            else:
                pages = self._pages(home, survey, after[1] // SLOTS)
            for at, page in pages:
                slots = page.live() if now is None else page.ready(now)
                slots = [slot for slot in slots if state in (None, page.state(slot)) and at * SLOTS + slot > after[1]]
                messages += self._messages(home, at, page, slots[: limit - len(messages)]).values() if slots else ()
                if len(messages) == limit:
                    break
            return messages

    def _visible_pages(self, home: Home, survey: Survey, now: int, start: int) -> Iterator[tuple[int, Page]]:
        for at in self._candidates(home, survey, now):
            if at >= start:
                yield at, self._read(home, [at])[at][0]

    def count(self, queue: str, now: int) -> Counts:
        with self.batch():
            self._now = max(self._now, now)
            home, found = self._home(queue, lambda home: [*self._claim_keys(home), home.key("lost")])
            lost = int(found.get(home.key("lost"), (b"0", b""))[0])
            states = dict.fromkeys(State, 0)
            visible = in_flight = 0
            oldest = None
            for at, page in self._pages(home, self._survey(home, found)):
                live = page.live()
                for slot in live:
                    state = page.state(slot)
                    states[State(state)] += 1
                    if page.visible[slot] <= now:
                        visible += 1
                    elif state == State.CONSUMED:
                        in_flight += 1
                if len(live) < SLOTS:
                    for slot in range(SLOTS):
                        states[State.PROCESSED] += page.state(slot) in SETTLED
                if oldest is None and live:
                    oldest = next(iter(self._messages(home, at, page, live[:1]).values()), None)
            messages = home.there = states[State.QUEUED] + states[State.CONSUMED] + states[State.DAMAGED]
            return Counts(
                messages=messages,
                visible=visible,
                in_flight=in_flight,
                delayed=messages - visible - in_flight - states[State.DAMAGED],
                blocked=0,
                damaged=states[State.DAMAGED],
                settled=states[State.PROCESSED],
                oldest_at=None if oldest is None else oldest.sent_at,
                lost=lost,
            )

    def due(self, queue: str) -> int | None:
        with self.batch():
            home, found = self._home(queue, self._claim_keys)
            survey = self._survey(home, found)
            first = NEVER
            unknown: list[int] = []
            for at in self._candidates(home, survey, NEVER - 1):
                bound = survey.blocks[at // FAN][at % FAN]
                if bound:
                    first = min(first, bound)
                else:
                    unknown.append(at)
                if len(unknown) == 8:
                    first = min(first, self._first(home, unknown))
                    unknown.clear()
                if first <= self._now:
                    return first
            first = min(first, self._first(home, unknown))
            return None if first >= FOREVER else first

    def _first(self, home: Home, pages: list[int]) -> int:
        return min((min(page.visible) for page, _ in self._read(home, pages).values()), default=NEVER) if pages else NEVER

    # the history

    def settled(self, queue: str, limit: int) -> list[Message]:
        with self.batch():
            home, found = self._home(queue, self._claim_keys)
            entries: list[tuple[int, int, Page, list[Any]]] = []
            for at, page in self._pages(home, self._survey(home, found)):
                for number, note in self._notes(home, at, page).items():
                    entries.append((note[1], number, page, note))
            messages = []
            for settled_at, number, page, note in heapq.nsmallest(limit, entries, key=lambda entry: entry[:2]):
                record = self._records(home, [number]).get(number)
                if record is not None:
                    message = page.message(number % SLOTS, id_of(home, number, record), number, home.name, record)
                    message.settled_at, message.reason = settled_at, note[2]
                    message.visible_at = note[0]
                    messages.append(message)
            return messages

    def _notes(self, home: Home, at: int, page: Page) -> dict[int, list[Any]]:
        """How the messages of a page were settled, by number."""
        keys = {home.key("h", at * SLOTS + slot): at * SLOTS + slot for slot in range(SLOTS) if page.state(slot) in SETTLED}
        return {keys[key]: json.loads(value) for key, value in home.link.get(keys).items()} if keys else {}

    # marks

    def marked(self, queue: str, mark: bytes) -> bool:
        with self.batch():
            home, found = self._home(queue, lambda home: [mark_key(home, mark)])
            value, _ = found.get(mark_key(home, mark), (b"", b""))
            if len(value) != MARK.size:
                return False
            number, until = MARK.unpack(value)
            return until == FOREVER and self._read(home, [number // SLOTS])[number // SLOTS][0].is_live(number % SLOTS)

    def count_marked(self, queue: str) -> int:
        with self.batch():
            home, found = self._home(queue, self._claim_keys)
            return sum(
                status & MARKED != 0 and page.is_live(slot)
                for _, page in self._pages(home, self._survey(home, found))
                for slot, status in enumerate(page.states)
            )

    # life

    def version(self) -> int:
        """The head changes before a message is there, so a change of it also counts for the next few looks."""
        with self._lock:
            if time.monotonic() - self._looked < LOOK_SECONDS:
                return self._version
            self._looked = time.monotonic()
            seen: list[object] = []
            for home in list(self._homes.values()):
                with self.batch():
                    found = home.link.get([home.key("head"), home.key("stir")])
                if found != home.news:
                    home.news, home.echo = found, ECHOES if home.news else 0
                home.echo = max(0, home.echo - 1)
                seen.append((tuple(found.values()), home.echo))
            self._version = hash(tuple(seen))
            return self._version
