"""A child process whose system calls wait for the test, which counts them, makes one fail, or kills the child there.

The child is forked, so it costs no start of Python. The kernel itself holds it at each call of `CALLS` (a seccomp filter with
user notifications, Linux 5.8 or later) and asks the parent what to do. So no call bypasses the test, whether Python, ctypes or
a library such as SQLite makes it. `CALLS` has all calls that change files, even those that no store uses today.

Syncs are answered without being done: when a process dies, the kernel still has its writes. Lost syncs are tested by the power
cuts (`penstock.testing.power`). For the same reason the test itself prepares and checks its stores `unsynced`.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import select
import signal
import socket
import struct
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

import pytest

from penstock.stores import disk

# Numbers on x86_64 and on aarch64 (which lacks calls that a newer one replaces).
CALLS: dict[str, tuple[int, int | None]] = {
    "chmod": (90, None),
    "chown": (92, None),
    "copy_file_range": (326, 285),
    "creat": (85, None),
    "fallocate": (285, 47),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "fchown": (93, 55),
    "fchownat": (260, 54),
    "fdatasync": (75, 83),
    "fsync": (74, 82),
    "ftruncate": (77, 46),
    "futimesat": (261, None),
    "lchown": (94, None),
    "link": (86, None),
    "linkat": (265, 37),
    "mkdir": (83, None),
    "mkdirat": (258, 34),
    "mknod": (133, None),
    "mknodat": (259, 33),
    "msync": (26, 227),
    "open": (2, None),
    "openat": (257, 56),
    "openat2": (437, 437),
    "pwrite64": (18, 68),
    "pwritev": (296, 70),
    "pwritev2": (328, 287),
    "rename": (82, None),
    "renameat": (264, 38),
    "renameat2": (316, 276),
    "rmdir": (84, None),
    "sendfile": (40, 71),
    "symlink": (88, None),
    "symlinkat": (266, 36),
    "sync": (162, 81),
    "sync_file_range": (277, 84),
    "syncfs": (306, 267),
    "truncate": (76, 45),
    "unlink": (87, None),
    "unlinkat": (263, 35),
    "utime": (132, None),
    "utimensat": (280, 88),
    "utimes": (235, None),
    "write": (1, 64),
    "writev": (20, 66),
}
SYNCS = ["fdatasync", "fsync", "msync", "sync", "sync_file_range", "syncfs"]
FLAGS_AT = {"open": 1, "openat": 2}
"""The argument that tells whether the call can create a file. Opening for reading changes nothing, and does not count."""

MEMORY = "/dev/shm"
SECCOMP = {"x86_64": 317, "aarch64": 277}
SET_MODE_FILTER, NEW_LISTENER, NO_NEW_PRIVS = 1, 8, 38
LOAD, JUMP_IF_EQUAL, RETURN = 0x20, 0x15, 0x06
ALLOW, NOTIFY = 0x7FFF0000, 0x7FC00000
NOTICE, ANSWER = struct.Struct("=QIIiIQ6Q"), struct.Struct("=QqiI")
RECEIVE, SEND = (3 << 30 | form.size << 16 | ord("!") << 8 | place for place, form in enumerate((NOTICE, ANSWER)))
GO_ON = 1


@dataclass(frozen=True)
class Fault:
    """What happens at call number ``when`` (from 1) of its name."""

    call: str
    when: int
    error: str | None = None
    """The name of the error to return; without one, the process is killed before the call."""

    def __str__(self) -> str:
        return f"{self.call}-{self.when}-{self.error or 'killed'}"


@dataclass
class ChildResult:
    """The result of a child."""

    told: list[str] = field(default_factory=list)
    """What it reported before it ended."""
    calls: Counter[str] = field(default_factory=Counter)
    """How often it made each system call; calls that open a file count only if they may create it."""
    came: bool = False
    """Whether the fault was reached."""

    def faults(self, *errors: str) -> list[Fault]:
        """Death at each call, or each call failing with each error."""
        return [
            Fault(call, when, error)
            for call, count in sorted(self.calls.items())
            for when in range(1, count + 1)
            for error in errors or (None,)
        ]


def run_child(work: Callable[[Callable[[str], None]], None], fault: Fault | None = None) -> ChildResult:
    """Run ``work`` in a child with an optional fault. What it reports (through the function it is given) outlives it."""
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        _work(work, there)
    run = ChildResult()
    with here:
        there.close()
        first, listeners, _, _ = socket.recv_fds(here, 2**16, 1)
        assert listeners, f"the kernel does not hold the child at its calls: {first.decode()}"
        (listener,) = listeners
        try:
            _supervise(listener, child, fault, run)
        finally:
            os.close(listener)
            os.kill(child, signal.SIGKILL)  # it has already ended, unless the test itself is interrupted
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        while line := here.recv(2**16):
            run.told.append(line.decode())
    expected = -signal.SIGKILL if run.came and fault and not fault.error else 0
    assert status == expected, f"{fault}: the child ended with {status}: {run.told[-1:]}"
    return run


@contextmanager
def short_lived(make_url_in: Callable[[Path], str]) -> Iterator[str]:
    """A new store for one run, in memory if possible, and removed afterwards: there are thousands."""
    with tempfile.TemporaryDirectory(dir=MEMORY if os.access(MEMORY, os.W_OK) else None) as folder:
        yield make_url_in(Path(folder))


@contextmanager
def unsynced() -> Iterator[None]:
    """This process changes files without waiting for the disk meanwhile. A child forked here would do so too."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, "fsync", lambda handle: None)
        patched.setattr(disk._libc, "syncfs", lambda handle: 0)
        yield


def _work(work: Callable[[Callable[[str], None]], None], there: socket.socket) -> NoReturn:
    status = 1
    try:
        socket.send_fds(there, [b"!"], [_listen()])
        work(lambda line: there.sendall(line.encode()))
        status = 0
    except BaseException:
        there.sendall(traceback.format_exc()[-60000:].encode())
    finally:
        os._exit(status)


def _listen() -> int:
    """From now on the kernel holds this process at each call, and notifies the process that reads this descriptor."""
    numbers = list(_names())
    load = struct.pack("=HBBI", LOAD, 0, 0, 0)
    tests = [struct.pack("=HBBI", JUMP_IF_EQUAL, len(numbers) - place, 0, number) for place, number in enumerate(numbers)]
    ends = [struct.pack("=HBBI", RETURN, 0, 0, verdict) for verdict in (ALLOW, NOTIFY)]
    code = ctypes.create_string_buffer(b"".join([load, *tests, *ends]))
    program = ctypes.create_string_buffer(struct.pack("@HP", len(tests) + 3, ctypes.addressof(code)))
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(NO_NEW_PRIVS, 1, 0, 0, 0)
    listener: int = libc.syscall(SECCOMP[os.uname().machine], SET_MODE_FILTER, NEW_LISTENER, program)
    if listener < 0:
        raise OSError(ctypes.get_errno(), "no seccomp filter")
    return listener


def _names() -> dict[int, str]:
    place = list(SECCOMP).index(os.uname().machine)
    found = {numbers[place]: name for name, numbers in CALLS.items()}
    return {number: name for number, name in found.items() if number is not None}


def _supervise(listener: int, child: int, fault: Fault | None, run: ChildResult) -> None:
    """Answer the child's calls until it ends."""
    names = _names()
    events = select.poll()
    events.register(listener, select.POLLIN)
    while not events.poll()[0][1] & select.POLLHUP:
        notice = bytearray(NOTICE.size)
        try:
            fcntl.ioctl(listener, RECEIVE, notice)
            id, _, _, number, _, _, *arguments = NOTICE.unpack(notice)
            answer = _answer(names[number], arguments, fault, run)
            if answer is None:
                os.kill(child, signal.SIGKILL)
            else:
                fcntl.ioctl(listener, SEND, ANSWER.pack(id, 0, *answer))
        except OSError as error:
            if error.errno != errno.ENOENT:  # the child died meanwhile
                raise


def _answer(name: str, arguments: list[int], fault: Fault | None, run: ChildResult) -> tuple[int, int] | None:
    """The error and the flags to answer a call with; None means kill the child."""
    if name in FLAGS_AT and not arguments[FLAGS_AT[name]] & os.O_CREAT:
        return 0, GO_ON
    run.calls[name] += 1
    if fault and (name, run.calls[name]) == (fault.call, fault.when):
        run.came = True
        return (-getattr(errno, fault.error), 0) if fault.error else None
    return (0, 0) if name in SYNCS else (0, GO_ON)
