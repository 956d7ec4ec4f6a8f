"""A proxy between a client and its server that cuts a connection at an exact point.

before   the client's bytes are lost
after    the server gets them and answers, and the answer is lost
late     the client is cut off at once, and the server gets the bytes a little later

The proxy may send the client some last words before it cuts it off, like a failing server.
"""

from __future__ import annotations

import socket
import time
from contextlib import suppress
from threading import Lock, Thread
from typing import Self

HOWS = ("before", "after", "late")


class Proxy:
    def __init__(self, port: int, last_words: bytes = b"") -> None:
        self._target = port
        self._last_words = last_words
        self._muted: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._lock = Lock()
        self._how = ""
        self._left = -1
        self.cuts = 0
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()
        for pair in self._pairs:
            _close(*pair)

    def cut_at(self, number: int, how: str) -> None:
        """Cut at the n-th time that a client sends something from now on (0: never)."""
        with self._lock:
            self._left, self._how = number, how

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._target))
                self._pairs.append((client, server))
                Thread(target=self._carry, args=(client, server, True), daemon=True).start()
                Thread(target=self._carry, args=(server, client, False), daemon=True).start()

    def _carry(self, source: socket.socket, target: socket.socket, asking: bool) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                how = self._next() if asking else ""
                if how == "after":
                    self._muted.add(source)  # drop the server's answer
                    target.sendall(data)
                    time.sleep(0.05)
                if how:
                    source.sendall(self._last_words)
                if how in ("before", "after"):
                    break
                if how == "late":
                    source.close()
                    time.sleep(0.05)
                if target not in self._muted:
                    target.sendall(data)
                if how == "late":
                    time.sleep(0.05)
                    break
        _close(source, target)

    def _next(self) -> str:
        with self._lock:
            self._left -= 1
            if self._left == 0:
                self.cuts += 1
                return self._how
            return ""


def _close(*ends: socket.socket) -> None:
    for end in ends:
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
        end.close()
