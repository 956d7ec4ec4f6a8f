"""Named claims of an SQLite file, by whole sets: to make, confirm and settle a claim of any size is a few statements.

A row is written as seldom as it can be, since to write it is to write its body too: once by the claim, which hides it for good.
To confirm it is then to say so in the claim alone; and if it is never said, the claim has only fallen asleep: whoever looks for
messages that are visible first wakes those whose claim has lapsed.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from operator import itemgetter

from penstock.message import FOREVER, Message, Settings, Settlement, State
from penstock.policy import micros
from penstock.stores.base import START
from penstock.stores.sql import SqlStore
from penstock.stores.sql_session import Row


class NotPlain(Exception):
    """The short way does not serve; what was done of it is undone."""


class SqliteClaims(SqlStore):
    def hold_visible(
        self,
        queue: str,
        reader: str,
        epoch: int,
        limit: int,
        now: int,
        visible_by: int,
        lapses_at: int,
        settings: Settings,
    ) -> int:
        with suppress(NotPlain), self.batch():
            home, _ = self._queue(queue)
            self._wake(home, now)
            size: int = self._rows("count_visible", {"queue": home, "now": visible_by, "limit": limit})[0][0]
            if not size or settings.groups:
                raise NotPlain
            claim = self._add_claim(home, reader, epoch, size, lapses_at)
            fields = {"claim": claim, "queue": home, "visible_by": visible_by, "limit": limit, "now": now, "forever": FOREVER}
            fields["most"] = settings.redrive.max_receives if settings.redrive else FOREVER
            fields["since"] = now - micros(settings.retention)
            if self._run("hold_visible", fields) < size:
                raise NotPlain
            self._run("hide_held", {"claim": claim, "now": now, "forever": FOREVER})
            self._run("fall_asleep", {"claim": claim})
            return size
        return 0

    def confirm(self, queue: str, reader: str, epoch: int) -> None:
        with self._joined():
            for claim, known, _, _, _, asleep in self._rows("claims", {"queue": self._queue(queue)[0], "reader": reader}):
                if known == epoch and asleep:
                    self._run("confirm", {"claim": claim, "forever": FOREVER})
                    return
            super().confirm(queue, reader, epoch)

    def _delete_claimed(self, home: int, settings: Settings, claim: int, settlement: Settlement) -> int:
        """If all are as they were claimed and nothing hangs on them, without asking after each."""
        if settlement.keep_until is None and self._rows("all_plain", {"claim": claim, "queue": home})[0][0]:
            return self._run("delete_held", {"claim": claim})
        return super()._delete_claimed(home, settings, claim, settlement)

    # whoever looks for what is visible

    def _wake(self, home: int, now: int) -> None:
        sleepers = self._rows("sleepers", {"queue": home, "now": now})  # seen without a write lock
        if sleepers:
            with self._joined():
                for claim, lapses_at in self._rows("sleepers", {"queue": home, "now": now}):
                    self._extend_all(home, claim, lapses_at, State.CONSUMED)
                    self._run("wake", {"claim": claim})

    def _visible(self, home: int, limit: int, now: int, share: tuple[int, int] | None) -> list[Row]:
        self._wake(home, now)
        return super()._visible(home, limit, now, share)

    def browse(
        self, queue: str, limit: int, *, state: State | None = None, now: int | None = None, after: tuple[int, int] = START
    ) -> list[Message]:
        if now is not None:
            self._wake(self._queue(queue)[0], now)
        return super().browse(queue, limit, state=state, now=now, after=after)

    def _in_order(self, home: int, now: int | None, limit: int, state: State | None, after: tuple[int, int]) -> list[Row]:
        rows = super()._in_order(home, now, limit, state, after)
        asleep = self._rows("asleep", {"queue": home, "limit": limit}) if now is None else []
        if asleep and state in (None, State.CONSUMED):  # to whoever looks at all, they are hidden until their claim lapses
            found = {row[0]: row for row in (*rows, *asleep)}
            rows = sorted(found.values(), key=itemgetter(1, 0))[:limit]
        return rows

    def read(self, queue: str, reader: str, epoch: int, start: int, stop: int) -> list[Message]:
        messages = super().read(queue, reader, epoch, start, stop)
        lapses_at = next(claim.lapses_at for claim in self.held(queue, reader)[1] if claim.epoch == epoch)
        return [replace(message, visible_at=lapses_at) for message in messages]

    def due(self, queue: str) -> int | None:
        with self._reading():
            wakes_at: int | None = self._rows("wakes_at", {"queue": self._queue(queue)[0]})[0][0]
            return min((at for at in (super().due(queue), wakes_at) if at is not None), default=None)
