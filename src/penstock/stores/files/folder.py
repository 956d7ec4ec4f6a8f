"""This process's picture of one queue's files: which messages there are, and what is in them."""

from __future__ import annotations

import heapq
import os
import random
import stat
from types import TracebackType
from typing import Any, NamedTuple

from penstock.file_times import EXACT, is_recent
from penstock.marks import key_of
from penstock.message import Message, Settings, State, micros
from penstock.patience import Patience
from penstock.stores.disk import read_whole
from penstock.stores.files.layout import Layout, Stamp, stamp_of
from penstock.stores.files.records import ASIDE, Extra, Received
from penstock.stores.files.sidecar import Sidecar

RELIST_SHARE = 10
"""A big folder that others change too is listed again only after this many times the duration of a listing, …"""
DOUBT_SHARE = 50
"""… or this many times, if the only sign of others is that one of our changes could have hidden one of theirs."""
BIG = 0.003
"""A folder is big if listing it takes this many seconds."""


class Brief(NamedTuple):
    """A message that is received and settled in one batch. Nothing is recorded; it stays ready until it is removed."""

    received: Received
    before: Received | None
    alone: bool
    """It has no sidecar files."""


class Folder:
    """Owns the index of a queue's messages. ``hidden`` is the instant until which a message is hidden, 0 if it is ready."""

    def __init__(self, layout: Layout, sidecar: Sidecar, patience: Patience) -> None:
        self._patience = patience
        self.layout = layout
        self.sidecar = sidecar
        self.index: dict[str, int] = {}
        self.foreign: list[str] = []
        """The paths of files that are not messages."""
        self.brief: dict[str, Brief] = {}
        self._at = os.fspath(layout.folder)
        self._ready: list[tuple[int, str]] = []
        self._hidden: list[tuple[int, str]] = []
        self._stamp: Stamp | None = None
        self._doubtful = False
        """One of our changes may have hidden another process's."""
        self._listed_at = self._took = 0.0
        self.changes = False
        """Whether the index is being changed, or was when a batch failed."""

    def is_there(self) -> bool:
        return os.path.isdir(self._at)

    # the records of received messages

    def received(self, id: str) -> Received | None:
        brief = self.brief.get(id)
        return brief.received if brief else self.sidecar.received(id)

    def write_received(self, id: str, received: Received, *, durable: bool = False) -> None:
        self.brief.pop(id, None)
        self.sidecar.write_received(id, received, durable=durable)

    def forget(self, id: str) -> None:
        """Remove the sidecar files of a message that is gone."""
        brief = self.brief.pop(id, None)
        if not brief or not brief.alone:
            self.sidecar.forget(id)

    def is_draft(self, id: str) -> bool:
        """Whether it is still being written, or was when its sender died. (A disk error is raised.)"""
        try:
            os.stat(self.layout.draft(id))
        except FileNotFoundError:
            return False
        return True

    # messages

    def read(self, id: str, hidden: int) -> Message | None:
        return self.read_with_head(id, hidden, self.received(id))[0]

    def read_with_head(self, id: str, hidden: int, received: Received | None) -> tuple[Message | None, Any]:
        """The message, and the record of its head if it has one. None if it is gone, or is not a message."""
        layout = self.layout
        path = layout.path(id, hidden)
        try:
            status = os.stat(path)
        except FileNotFoundError:  # another process was first
            return None, None
        if not stat.S_ISREG(status.st_mode):  # another program's folder or, worse, a pipe that would block us
            self.note(id, None)
            self.foreign.append(path)
            return None, None
        body = read_whole(path)
        if body is None:
            return None, None
        head = self.sidecar.read_json("head", id)
        extra = Extra.unpack(head)
        number = layout.number(id)
        sent_at = extra.sent_at or (received.sent_at if received else layout.sent_at(id, status))
        foreign = received is None and hidden > 0 and not self.is_delayed(extra, hidden)  # claimed by one that keeps no record
        consumed = foreign if received is None else not received.released
        seen = received if received and received.first_received_at else None
        # Another program has not claimed it since.
        ours = received is not None and hidden in (0, received.hidden_until, received.hidden_before)
        shown = extra.visible_at if received is None or not received.hidden_until else received.hidden_until
        aside = received is not None and received.released == ASIDE
        message = Message(
            id=id,
            number=number,
            queue=self.sidecar.queue,
            body=body,
            content_type=extra.head.content_type,
            attributes=extra.head.attributes,
            state=State.DAMAGED if aside else State.CONSUMED if consumed else State.QUEUED,
            receives=received.receives if received else 0,
            delivery=received.delivery if received else 0,
            sent_at=sent_at,
            visible_at=hidden or (sent_at if shown is None else shown),
            expires_at=extra.expires_at or sent_at + self._retention(number),
            deadline_at=extra.deadline_at,
            visibility=extra.head.visibility,
            group=extra.group,
            key=key_of(extra.mark),
            moved_at=extra.moved_at,
            first_received_at=seen and seen.first_received_at,
            received_at=seen and seen.received_at,
            death=extra.head.death,
            holder=received.holder if received and ours else None,
            intact=extra.intact,
            retry=extra.head.retry,
            failures=extra.head.failures,
            error=extra.head.error,
        )
        return message, head

    def is_delayed(self, extra: Extra, hidden: int) -> bool:
        """Whether a message that nobody has received is hidden until then because it was sent so."""
        return extra.visible_at is not None and self.layout.writable(extra.visible_at) == hidden

    def _retention(self, number: int) -> int:
        """The retention that applied when the message was sent."""
        record = self.sidecar.settings()
        if not record:
            return micros(Settings().retention)
        undated = number < self.layout.undated
        return micros([seconds for since, seconds in record["retentions"] if since < number or undated][-1])

    # the index

    def refresh(self, *, eager: bool = True, stamp: Stamp | None = None) -> None:
        """List the folder again if another process changed it. ``stamp`` is its current stamp, if known.

        Unless ``eager``, a big folder is not listed all the time while there is something to claim."""
        if self.layout.unfinished:
            self._stamp = None
        stamp = stamp or self.layout.stamp()
        known = stamp == self._stamp
        if known and not self._doubtful:
            return
        begun = self._patience.now()
        if self._stamp and begun < self._listed_at + self._pause(known, eager):
            return
        self._list()
        self._listed_at = self._patience.now()
        self._took = self._listed_at - begun
        self._stamp = stamp
        self._doubtful = not EXACT and is_recent(max(stamp))

    def _pause(self, known: bool, eager: bool) -> float:
        """How long after a listing not to list again."""
        if not eager and self.first_ready() is not None:
            return max(1.0, self._took * DOUBT_SHARE) if known else self._took * RELIST_SHARE if self._took > BIG else 0
        return self._took * DOUBT_SHARE if known and self._took > BIG else 0

    def _list(self) -> None:
        self.foreign = []
        self.index = dict(self.layout.scan(self.foreign))
        self._ready = [(self.layout.number(id), id) for id, hidden in self.index.items() if not hidden]
        self._hidden = [(hidden, id) for id, hidden in self.index.items() if hidden]
        heapq.heapify(self._ready)
        heapq.heapify(self._hidden)

    def doubt(self) -> None:
        """List the folder again before the index is next relied on."""
        self._stamp = None

    def end_batch(self, *, failed: bool = False) -> None:
        """Drop what counts only within a batch. After a failed one, release the lock and do not trust a half changed index."""
        self.brief.clear()
        if failed:
            self.sidecar.give()
            if self.changes:
                self._stamp = None
                self.changes = False

    def changing(self, *, hidden: bool = True) -> Changing:
        """Hold the queue's lock. Changes reported with `note` in the meantime keep the index right.

        Not ``hidden``: only names of ready messages will change."""
        return Changing(self, self.layout.watched if hidden else self.layout.watched[:1])

    def reserving(self) -> Changing:
        """Hold the queue's lock while ids are taken and drafts are made. It is released, or taken again, soon after."""
        return Changing(self, self.layout.drafts_in, pause=True)

    def note(self, id: str, hidden: int | None) -> None:
        """Record that we put a message there, or (None) removed it."""
        if hidden is None:
            self.index.pop(id, None)
            return
        self.index[id] = hidden
        if hidden:
            heapq.heappush(self._hidden, (hidden, id))
        else:
            heapq.heappush(self._ready, (self.layout.number(id), id))

    def choose_ready(self) -> str | None:
        """The message to claim next: the oldest; with peers, a random one of the oldest, so that they seldom compete for it."""
        first = self.first_ready()
        if not self.layout.peers or first is None:
            return first
        oldest = heapq.nsmallest(self.layout.peers + 1, self._ready)
        return random.choice([id for _, id in oldest if self.index.get(id) == 0])  # noqa: S311

    def first_ready(self) -> str | None:
        while self._ready and self.index.get(self._ready[0][1]) != 0:
            heapq.heappop(self._ready)
        return self._ready[0][1] if self._ready else None

    def first_hidden(self) -> tuple[int, str] | None:
        while self._hidden and self.index.get(self._hidden[0][1]) != self._hidden[0][0]:
            heapq.heappop(self._hidden)
        return self._hidden[0] if self._hidden else None

    def requeue(self, now: int) -> None:
        """Make every message ready whose time has come, as each consumer does before it consumes."""
        while (first := self.first_hidden()) and first[0] <= now:
            hidden, id = first
            try:
                until = self.layout.locate(id, hidden)
                if until <= now:
                    self.layout.rename(self.layout.path(id, hidden), id, 0)
                self.note(id, until if until > now else 0)
            except FileNotFoundError:  # another process was first
                self.note(id, None)

    def find(self, id: str, received: Received | None = None) -> int | None:
        """Until when a message is hidden that another process may have renamed; None if it is gone."""
        if not self.layout.number(id):
            return None
        for hidden in (self.index.get(id), received and received.hidden_until, 0):
            if hidden is not None:
                try:
                    return self.layout.locate(id, hidden)
                except FileNotFoundError:
                    continue
        self.doubt()
        self.refresh()
        return self.index.get(id)


class Changing:
    """The context of `Folder.changing`. A class is faster than a generator, and every send enters two."""

    __slots__ = ("_folder", "_give", "_known", "_watched", "before")

    def __init__(self, folder: Folder, watched: tuple[str, ...], *, pause: bool = False) -> None:
        """Names change only in ``watched``, which are the first of the folders that the layout watches."""
        self._folder = folder
        self._watched = watched
        self._give = folder.sidecar.pause if pause else folder.sidecar.give

    def __enter__(self) -> Changing:
        folder = self._folder
        folder.sidecar.take()
        try:
            self.before = self._look()
            self._known = folder._stamp is not None and folder._stamp[: len(self.before)] == self.before
            folder.layout.begin(self.before)
            folder.changes = True
        except BaseException:
            folder.sidecar.give()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        folder, before = self._folder, self.before
        try:
            if error is None:
                after = self._look()
                folder.layout.end(after)
                count, stamp = len(before), folder._stamp
                if after != before and stamp is not None and (self._known or stamp[:count] == before):
                    folder._stamp = after + stamp[count:]
                    folder._doubtful = True
                folder.changes = False
        finally:
            self._give()

    def _look(self) -> Stamp:
        layout = self._folder.layout
        return layout.stamp() if len(self._watched) == len(layout.watched) else stamp_of(self._watched)
