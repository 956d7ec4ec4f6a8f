"""The contract's chapter on a wall clock that is set while messages wait: no lease, delay or expiry changes.

A small preloaded library adds the offset in a file to the wall clock of one process, and leaves the monotonic clocks alone, as
settimeofday and NTP do to a whole machine.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from penstock.testing.stepper import HOUR, SCENES

SHIM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long step(void) {
    char text[32] = {0};
    const char *path = getenv("PENSTOCK_STEP");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) return 0;
    long seconds = read(file, text, sizeof text - 1) > 0 ? atol(text) : 0;
    close(file);
    return seconds;
}

int clock_gettime(clockid_t which, struct timespec *now) {
    static int (*next)(clockid_t, struct timespec *);
    if (!next) next = dlsym(RTLD_NEXT, "clock_gettime");
    int failed = next(which, now);
    if (!failed && (which == CLOCK_REALTIME || which == CLOCK_REALTIME_COARSE)) now->tv_sec += step();
    return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec exact;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &exact)) return -1;
    now->tv_sec = exact.tv_sec, now->tv_usec = exact.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *into) {
    struct timespec exact;
    clock_gettime(CLOCK_REALTIME, &exact);
    if (into) *into = exact.tv_sec;
    return exact.tv_sec;
}
"""


class WallClock:
    """The wall clock of the processes that run with its `environment`."""

    def __init__(self, folder: Path) -> None:
        gcc = shutil.which("gcc")
        if gcc is None:
            missing = "install gcc (tools/provision does): it makes the library that sets a process' wall clock"
            if os.environ.get("CI"):
                pytest.fail(missing)
            pytest.skip(missing)
        source, library = folder / "step.c", folder / "step.so"
        source.write_text(SHIM)
        subprocess.run([gcc, "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
        self._file = folder / "step"
        self.set(0)
        self.environment = {"LD_PRELOAD": str(library), "PENSTOCK_STEP": str(self._file)}

    def set(self, seconds: int) -> None:
        """Set it this far from the machine's."""
        draft = self._file.with_suffix(".new")
        draft.write_text(str(seconds))
        draft.rename(self._file)

    def start(self, url: str, role: str) -> subprocess.Popen[str]:
        program = [sys.executable, "-m", "penstock.testing.stepper", url, role]
        environment = {**os.environ, **self.environment}
        return subprocess.Popen(program, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def run(self, url: str, role: str) -> Any:
        process = self.start(url, role)
        output, _ = process.communicate()
        assert process.returncode == 0
        return json.loads(output)


class Stepping:
    @pytest.fixture
    def wall_clock(self, tmp_path_factory: pytest.TempPathFactory) -> WallClock:
        return WallClock(tmp_path_factory.mktemp("clock"))

    def test_a_wall_clock_that_is_set_breaks_no_lease_hides_nothing_and_expires_nothing(
        self, url: str, wall_clock: WallClock
    ) -> None:
        assert wall_clock.run(url, "scenes") == {name: outcome for name, (_, outcome) in SCENES.items()}


class SteppingAcross:
    @pytest.mark.parametrize("seconds", [HOUR, -HOUR])
    def test_a_process_that_starts_after_the_wall_clock_was_set_goes_by_the_same_time(
        self, url: str, wall_clock: WallClock, seconds: int
    ) -> None:
        assert wall_clock.run(url, "hold") == ["held"]
        wall_clock.set(seconds)
        assert wall_clock.run(url, "receive") == ["left"]

    def test_processes_agree_about_the_time_whenever_they_were_started(self, url: str, wall_clock: WallClock) -> None:
        first = wall_clock.start(url, "clock")
        try:
            (before,) = _ask(first)
            wall_clock.set(HOUR)
            second = wall_clock.start(url, "clock")
            try:
                for _ in range(20):
                    (low, high), (other_low, other_high) = _ask(first, second)
                    assert low - SLACK <= other_high
                    assert other_low - SLACK <= high
                    assert low - MINUTE < before[1]
            finally:
                second.communicate()
        finally:
            first.communicate()


MINUTE = 60_000_000
SLACK = 500_000
"""Microseconds by which two clocks may differ: each process measures a server's clock on its own."""


def _ask(*processes: subprocess.Popen[str]) -> list[list[int]]:
    """Lower and upper bound of the store's clock minus the monotonic one."""
    for process in processes:
        assert process.stdin
        process.stdin.write("\n")
        process.stdin.flush()
    found = []
    for process in processes:
        assert process.stdout
        found.append(json.loads(process.stdout.readline()))
    return found
