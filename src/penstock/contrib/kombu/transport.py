"""The transport that kombu makes for a connection: the part that Celery's event loop sees."""

from __future__ import annotations

import socket
from contextlib import suppress
from typing import Any

from kombu.exceptions import ChannelError
from kombu.transport import virtual

import penstock
from penstock.contrib.kombu.channel import Channel
from penstock.contrib.kombu.intake import Inbox
from penstock.contrib.kombu.sharing import SHARED, VISIBILITY, SharedStore
from penstock.errors import BadInput, QueueNotFound, StoreError
from penstock.policy import check_seconds

READ = 4096


class Transport(virtual.Transport):
    """Owns the inbox of its channels, and a share of the store that the process has open."""

    Channel = Channel
    can_parse_url = True
    driver_type = "penstock"
    driver_name = "penstock"
    connection_errors = (StoreError,)
    recoverable_connection_errors = (StoreError,)
    channel_errors = (ChannelError, QueueNotFound)
    implements = virtual.Transport.implements.extend(
        asynchronous=True, exchange_type=frozenset(["direct", "topic", "fanout"]), heartbeats=False
    )

    def __init__(self, client: Any, **options: Any) -> None:
        super().__init__(client, **options)
        self.shared: SharedStore | None = None
        self.inbox = Inbox(self._ring)
        self._bell: tuple[socket.socket, socket.socket] | None = None
        self._loop: Any = None

    def driver_version(self) -> str:
        return penstock.__version__

    def establish_connection(self) -> Any:
        options = dict(self.client.transport_options)
        visibility = check_seconds(options.get("visibility_timeout", VISIBILITY), "visibility_timeout", 1, BadInput)
        self.shared = SHARED.enter(self.client.hostname, visibility, options.get("open_options", {}))
        return super().establish_connection()

    def close_connection(self, connection: Any) -> None:
        super().close_connection(connection)
        if self._bell is not None:
            with suppress(Exception):  # the loop may have been closed before
                self._loop.remove_reader(self._bell[0])
            for end in self._bell:
                end.close()
            self._bell = None
        shared, self.shared = self.shared, None
        if shared is not None:
            shared.flush()  # the process may end now
            SHARED.leave(shared)

    def verify_connection(self, connection: Any) -> bool:
        return self.shared is not None

    # a thread that waits for messages

    def drain_events(self, connection: Any, timeout: float | None = None) -> None:
        taken = self.inbox.get(timeout)
        if taken is None:
            raise TimeoutError("timed out")
        taken.deliver()

    # an event loop

    def register_with_event_loop(self, connection: Any, loop: Any) -> None:
        if self._bell is None:
            self._bell = socket.socketpair()
            for end in self._bell:
                end.setblocking(False)
        self._loop = loop
        loop.add_reader(self._bell[0], self.on_readable, connection, loop)
        self._ring()

    def on_readable(self, connection: Any, loop: Any) -> None:
        if self._bell is not None:
            with suppress(BlockingIOError):
                self._bell[0].recv(READ)
        try:
            for _ in range(len(self.inbox)):
                if taken := self.inbox.get(0):
                    taken.deliver()
        finally:
            if len(self.inbox):
                self._ring()

    def _ring(self) -> None:
        bell = self._bell
        if bell is not None:
            with suppress(OSError):  # full: it is ringing; or closed
                bell[1].send(b"\0")
