"""The contract's chapter on power loss: a real file system that forgets all that was not synced.

kill -9 never finds a missing sync, because the kernel still has the data. Here the store lies on a loop-mounted ext4, which is
shut down in mid-flight without flushing its log (FS_IOC_SHUTDOWN) while workers send and delete, then mounted again.
"""

from __future__ import annotations

import fcntl
import os
import struct
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import penstock
from penstock.testing.crashes import check_account
from penstock.testing.races import start_worker, wait_for

FS_IOC_SHUTDOWN = 0x8004587D
WITHOUT_FLUSH = struct.pack("I", 2)
ROUNDS = 3


def need_mounts() -> None:
    """Mounting takes root; in CI its absence is a failure, elsewhere a skip."""
    if os.geteuid() == 0:
        return
    if os.environ.get("CI"):
        pytest.fail("the power-loss tests need root, to mount a file system")
    pytest.skip("needs root, to mount a file system")


@contextmanager
def mounted(image: Path, folder: Path) -> Iterator[None]:
    subprocess.run(["mount", "-o", "loop", image, folder], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)  # lazy: a failed test may have left workers behind


class PowerLoss:
    @pytest.mark.parametrize("turn", range(ROUNDS))
    def test_after_a_power_cut_nothing_acknowledged_is_lost_or_comes_back(
        self, make_url_in: Callable[[Path], str], tmp_path: Path, turn: int
    ) -> None:
        need_mounts()
        image, folder, log = tmp_path / "disk", tmp_path / "mnt", tmp_path / "log"
        folder.mkdir()
        log.touch()
        with image.open("wb") as handle:
            handle.truncate(128 * 2**20)
        path = f"{os.environ['PATH']}:/usr/sbin:/sbin"
        subprocess.run(["mkfs.ext4", "-q", "-F", image], check=True, env=os.environ | {"PATH": path})
        url = make_url_in(folder)
        with mounted(image, folder):
            with penstock.open(url) as broker:
                broker.create("orders", visibility=1)
            roles = enumerate(["send", "send", "receive"])
            workers = [start_worker(url, "orders", role, log, f"w{number}", 1 + 4 * turn, 10**6) for number, role in roles]
            wait_for(log, "deleted", 40, workers)
            # A sync that is under way when the power goes may be answered and yet be lost: what was answered before counts.
            known = len(log.read_text())
            cut_power(folder)
            for worker in workers:
                worker.kill()
                worker.wait()
        with mounted(image, folder):
            check_account(url, "orders", log, known)


def cut_power(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.ioctl(handle, FS_IOC_SHUTDOWN, WITHOUT_FLUSH)
    finally:
        os.close(handle)
