"""Several processes that serve one port. This one only binds it, keeps the others alive, and passes signals on.

It never opens the store, has no threads, and forks each worker from this clean state. All workers accept from the same
listening sockets, so that a connection that waits there is not lost when one of them dies.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial

from penstock.errors import BadSetting
from penstock.server.http.listening import bind
from penstock.server.settings import ServerSettings

STOPS = (signal.SIGTERM, signal.SIGINT)
SIGNALS = (*STOPS, signal.SIGHUP, signal.SIGCHLD)
SERVES = b"+"
RESTART_EVERY = 1.0
"""Seconds, at least, between two starts after the first ones."""


@dataclass(frozen=True, slots=True)
class Worker:
    """What one of the processes is given.

    sockets    all of them accept there
    parent     a descriptor that is at its end once the parent is gone
    started    to be called when it serves"""

    number: int
    count: int
    sockets: Sequence[socket.socket]
    parent: int
    started: Callable[[], object]


@dataclass(slots=True)
class Child:
    """A worker, seen from its parent."""

    number: int
    starting: int
    """A descriptor on which it says that it serves; -1 after that."""
    reloads: int
    """How many times the settings had been read again before it was forked."""


class Workers:
    """Owns the port and the workers. `run` returns in the parent when all is over, and in each worker when its work is."""

    def __init__(
        self,
        settings: ServerSettings,
        *,
        work: Callable[[ServerSettings, Worker], int],
        read_again: Callable[[], ServerSettings],
        started: Callable[[str], None],
        tell: Callable[[str], None],
    ) -> None:
        check(settings)
        self._settings = settings
        self._work = work
        self._read_again = read_again
        self._started = started
        self._tell = tell
        self._children: dict[int, Child] = {}
        self._missing = list(range(1, settings.workers + 1))
        self._start_at = 0.0
        self._serves = False
        """Whether all workers have been there at once."""
        self._stopping = False
        self._code = 0
        self._reloads = 0
        self._caught: list[int] = []

    def run(self) -> int:
        self._sockets, url = bind(self._settings)
        self._life, alive = os.pipe()
        self._woken, wake = socket.socketpair()
        with ExitStack() as stack:
            stack.callback(os.close, alive)
            for end in (self._woken, wake):
                end.setblocking(False)
                stack.callback(end.close)
            stack.callback(signal.set_wakeup_fd, signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False))
            for number in SIGNALS:
                stack.callback(signal.signal, number, signal.signal(number, lambda caught, _: self._caught.append(caught)))
            while not (self._stopping and not self._children):
                worker = self._start()
                if worker is not None:  # this is the worker
                    stack.close()
                    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until it serves; then the parent repeats it
                    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
                    return self._work(self._share(), worker)
                self._wait()
                self._hear()
                self._reap()
                if not self._serves and not self._missing and all(child.starting < 0 for child in self._children.values()):
                    self._serves = True
                    self._started(url)
        return self._code

    def _share(self) -> ServerSettings:
        """The settings of one worker: all of them together have the memory that was set."""
        return replace(self._settings, max_memory=self._settings.max_memory // self._settings.workers)

    def _start(self) -> Worker | None:
        """Start the next worker, one after the other, so that an error is told once. In that worker, return what it is given,
        with all signals blocked."""
        idle = all(child.starting < 0 for child in self._children.values())
        if self._stopping or not self._missing or not idle or time.monotonic() < self._start_at:
            return None
        if self._serves:
            self._start_at = time.monotonic() + RESTART_EVERY
        number = self._missing.pop(0)
        starting, serving = os.pipe()
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        pid = os.fork()
        if not pid:
            return Worker(number, self._settings.workers, self._sockets, self._life, partial(os.write, serving, SERVES))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        os.close(serving)
        self._children[pid] = Child(number, starting, self._reloads)
        return None

    def _wait(self) -> None:
        """Until a signal comes, or the worker that is starting serves or ends, or the next can be started."""
        starting: list[int] = [child.starting for child in self._children.values() if child.starting >= 0]
        pause = max(0.0, self._start_at - time.monotonic()) if self._missing and not self._stopping and not starting else None
        readable, _, _ = select.select([self._woken.fileno(), *starting], [], [], pause)
        with suppress(BlockingIOError):
            while self._woken.recv(4096):
                pass
        for pid, child in self._children.items():
            if child.starting in readable and os.read(child.starting, 1) == SERVES:  # otherwise it has ended
                os.close(child.starting)
                child.starting = -1
                if child.reloads != self._reloads:
                    self._send(signal.SIGHUP, pid)

    def _hear(self) -> None:
        while self._caught:
            caught = self._caught.pop(0)
            if caught in STOPS:
                self._stop()
            elif caught == signal.SIGHUP:
                with suppress(BadSetting):  # the workers say what is wrong
                    self._settings = replace(self._settings, tokens=self._read_again().tokens)
                self._reloads += 1
                self._send(signal.SIGHUP, *(pid for pid, child in self._children.items() if child.starting < 0))

    def _stop(self) -> None:
        self._stopping = True
        for listening in self._sockets:  # the port is closed once the workers have closed it too
            listening.close()
        self._send(signal.SIGTERM, *self._children)

    def _send(self, number: int, *pids: int) -> None:
        for pid in pids:
            os.kill(pid, number)  # as long as it was not reaped, no other process has its number

    def _reap(self) -> None:
        for pid in list(self._children):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if not ended:
                continue
            child = self._children.pop(pid)
            if child.starting >= 0:
                os.close(child.starting)
            code = os.waitstatus_to_exitcode(status)
            if self._stopping:
                self._code = self._code or max(code, 0)
            elif not self._serves:
                self._code = code if code > 0 else 1  # it has said why
                self._stop()
            else:
                how = f"was ended by signal {-code}" if code < 0 else f"ended with status {code}"
                self._tell(f"worker {child.number} (process {pid}) {how}; another takes its place")
                self._missing.append(child.number)


def check(settings: ServerSettings) -> None:
    """Refuse what several processes cannot do."""
    if settings.store.partition(":")[0] == "memory":
        raise BadSetting(f"workers is {settings.workers}, but a store in memory is in one process; use a file or a database")
    if settings.max_memory // settings.workers < settings.max_body:
        raise BadSetting(
            f"max_memory is {settings.max_memory} for {settings.workers} workers, so each has less than max_body "
            f"({settings.max_body}): set more, or have fewer workers"
        )
