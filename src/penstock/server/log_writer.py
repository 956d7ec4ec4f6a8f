"""Writes lines of the log in a thread of its own, so that a reader that stops reading stops nothing else.

What does not fit into `MOST_BYTES` is dropped and counted.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from select import PIPE_BUF
from threading import Lock, Thread
from typing import TextIO

MOST_BYTES = 4 * 1024 * 1024
PATIENCE = 1.0
"""Seconds that a stop waits for the last lines to be written."""


class LogWriter:
    """Owns the lines that are not written yet, and the thread that writes them."""

    def __init__(self, stream: TextIO | None) -> None:
        """Without a ``stream``, nothing is written."""
        self._stream = stream
        self.dropped = 0
        """Lines."""
        self._waiting = 0
        self._lock = Lock()
        self._pieces: SimpleQueue[bytes] = SimpleQueue()
        self._thread: Thread | None = None

    def write(self, lines: list[str]) -> None:
        """Returns at once. Any thread may call this."""
        if self._stream is None:
            return
        piece = ("\n".join(lines) + "\n").encode("utf-8", "replace")
        with self._lock:
            if self._waiting + len(piece) > MOST_BYTES:
                self.dropped += len(lines)
                return
            self._waiting += len(piece)
            if self._thread is None:
                self._thread = Thread(target=self._work, name="penstock-log", daemon=True)
                self._thread.start()
        self._pieces.put(piece)

    def close(self) -> None:
        if self._thread is not None:
            self._pieces.put(b"")
            self._thread.join(PATIENCE)

    def _work(self) -> None:
        while piece := self._pieces.get():
            try:
                self._write(piece)
            except (OSError, ValueError):  # the reader of the log is gone; keep serving
                self._stream = None
            with self._lock:
                self._waiting -= len(piece)

    def _write(self, piece: bytes) -> None:
        if self._stream is None:
            return
        try:
            descriptor = self._stream.fileno()
        except (OSError, ValueError, AttributeError):  # a stream in memory
            self._stream.write(piece.decode())
            self._stream.flush()
            return
        while piece:  # beside the stream's buffer: a thread that is stuck in it would keep the process from ending
            # Whole lines, as many as a pipe takes in one piece: other processes may write to it too.
            end = piece.rfind(b"\n", 0, PIPE_BUF) + 1
            try:
                piece = piece[os.write(descriptor, piece[: end or PIPE_BUF]) :]
            except BlockingIOError:
                time.sleep(0.05)

    @contextmanager
    def taking_logging(self) -> Iterator[None]:
        """Let everything that is logged in this process go through this writer, in the format that was set."""
        root = logging.getLogger()
        before = root.handlers[:]
        handler = _Handler(self)
        handler.setFormatter(before[0].formatter if before else None)
        root.handlers[:] = [handler]
        try:
            yield
        finally:
            root.handlers[:] = before


class _Handler(logging.Handler):
    def __init__(self, writer: LogWriter) -> None:
        super().__init__()
        self._writer = writer

    def emit(self, record: logging.LogRecord) -> None:
        self._writer.write([self.format(record)])
