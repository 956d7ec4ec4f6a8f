"""The child of the crash tests stops at every system call that changes a file."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.testing.faults import CALLS, Fault, run_child

HARMLESS = """
    access brk clock_gettime clock_nanosleep close dup exit_group faccessat2 fcntl flock fstat fstatfs futex
    getcwd getdents64 getegid geteuid getgid getpid getppid getrandom gettid getuid inotify_add_watch
    inotify_init1 inotify_rm_watch ioctl lseek lstat madvise mmap mprotect mremap munmap newfstatat poll pread64
    prlimit64 read readlink readlinkat rseq rt_sigaction rt_sigprocmask rt_sigreturn sched_getaffinity sched_yield
    stat statfs statx sysinfo tgkill uname
"""
"""System calls that change no file. (Locks, by fcntl and flock, end with their process.)"""

PROGRAMS = """
import os, sys
from penstock.testing.file_crashes import PROGRAMS, accounts, run_steps
from penstock.testing import publish_crashes
import penstock
urls = sys.argv[1:]
os.access("/from/here/on", os.F_OK)
for program, url in zip(PROGRAMS, urls):
    accounts(program, url)
publish_crashes.prepare(urls[-1])
with penstock.open(urls[-1]) as broker:
    publish_crashes.publish(broker, "first", False)
os._exit(0)
"""


@pytest.mark.parametrize("scheme", ["vsqs", "spool", "sqlite"])
def test_no_system_call_of_the_programs_can_go_past_the_filter(tmp_path: Path, scheme: str) -> None:
    strace = shutil.which("strace")
    assert strace, "install strace (tools/provision does)"
    trace = tmp_path / "trace"
    urls = [f"{scheme}:///{tmp_path}/{place}" for place in range(4)]
    subprocess.run([strace, "-f", "-o", str(trace), sys.executable, "-c", PROGRAMS, *urls], check=True)
    _, _, lines = trace.read_text().partition("/from/here/on")
    called = set(re.findall(r"^(?:\d+ +)?(\w+)\(", lines, re.MULTILINE))
    assert {"openat", "unlink"} < called
    assert called - CALLS.keys() - {*HARMLESS.split()} == set(), "does this call change a file? then the filter must have it"


def change(folder: Path, tell: Callable[[str], None]) -> None:
    (folder / "a").mkdir()
    tell("made")
    handle = os.open(folder / "a" / "b", os.O_CREAT | os.O_WRONLY)
    os.close(os.open(folder / "a" / "b", os.O_RDONLY))
    os.write(handle, b"one")
    os.pwrite(handle, b"two", 3)
    os.fsync(handle)
    (folder / "a" / "b").rename(folder / "c")
    tell("renamed")


def test_a_child_dies_before_the_call(tmp_path: Path) -> None:
    for place, call in enumerate(["mkdir", "openat", "write", "pwrite64", "fsync", "rename"]):
        folder = tmp_path / call
        folder.mkdir()
        run = run_child(lambda tell, folder=folder: change(folder, tell), Fault(call, 1))  # type: ignore[misc]
        assert (run.came, run.calls.total(), run.told) == (True, place + 1, ["made"] * (place > 0))
        left = {str(path.relative_to(folder)): path.stat().st_size for path in folder.rglob("b")}
        assert left == ({"a/b": [0, 3, 6, 6][place - 2]} if place > 1 else {})


def test_a_call_that_fails_is_not_made_and_the_child_goes_on(tmp_path: Path) -> None:
    def work(tell: Callable[[str], None]) -> None:
        with pytest.raises(OSError, match="No space left"):
            change(tmp_path, tell)
        tell("went on")

    run = run_child(work, Fault("rename", 1, "ENOSPC"))
    assert (run.came, run.told) == (True, ["made", "went on"])
    assert (tmp_path / "a" / "b").read_bytes() == b"onetwo"


def test_what_the_child_raises_fails_the_test(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="No such file"):
        run_child(lambda tell: change(tmp_path / "missing", tell))
