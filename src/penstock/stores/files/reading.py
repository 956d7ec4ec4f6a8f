"""Reading messages from their files."""

from __future__ import annotations

import os
import stat
from typing import Any

from penstock.message import Message, Settings, State
from penstock.policy import key_of, micros
from penstock.stores.disk import read_whole
from penstock.stores.files.folder import Folder
from penstock.stores.files.records import ASIDE, Extra, Received


class MessageFiles:
    """Makes messages of one queue from their files and sidecar records."""

    def __init__(self, queue: str, folder: Folder) -> None:
        self._queue = queue
        self._folder = folder

    def read(self, id: str, hidden: int) -> Message | None:
        return self.read_with_head(id, hidden, self._folder.received(id))[0]

    def read_with_head(self, id: str, hidden: int, received: Received | None) -> tuple[Message | None, Any]:
        """The message, and the record of its head if it has one. None if it is gone, or is not a message."""
        folder, layout = self._folder, self._folder.layout
        path = layout.path(id, hidden)
        try:
            status = os.stat(path)
        except FileNotFoundError:  # another process was first
            return None, None
        if not stat.S_ISREG(status.st_mode):  # another program's folder or, worse, a pipe that would block us
            folder.note(id, None)
            folder.foreign.append(path)
            return None, None
        body = read_whole(path)
        if body is None:
            return None, None
        head = folder.sidecar.read_json("head", id)
        extra = Extra.unpack(head)
        number = layout.number(id)
        sent_at = extra.sent_at or (received.sent_at if received else layout.sent_at(id, status))
        foreign = received is None and hidden > 0 and extra.visible_at != hidden  # claimed by a program that keeps no record
        consumed = foreign if received is None else not received.released
        seen = received if received and received.first_received_at else None
        # Another program has not claimed it since.
        ours = received is not None and hidden in (0, received.hidden_until, received.hidden_before)
        shown = extra.visible_at if received is None or not received.hidden_until else received.hidden_until
        aside = received is not None and received.released == ASIDE
        message = Message(
            id=id,
            number=number,
            queue=self._queue,
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
        )
        return message, head

    def _retention(self, number: int) -> int:
        """The retention that applied when the message was sent."""
        record = self._folder.sidecar.settings()
        if not record:
            return micros(Settings().retention)
        undated = number < self._folder.layout.undated
        return micros([seconds for since, seconds in record["retentions"] if since < number or undated][-1])
