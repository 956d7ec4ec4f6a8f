"""The contract's chapter on power loss, on a real file system that forgets everything that was not synced.

kill -9 never finds a missing sync, because the kernel still has the data. Here the store lies on a loop-mounted ext4, which is
shut down in mid-flight without flushing its log (FS_IOC_SHUTDOWN) while workers send and delete, then mounted again. If the
queue deduplicates, everything is then sent again.
"""

from __future__ import annotations

import fcntl
import json
import os
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import Receipt
from penstock.testing.crashes import check_account
from penstock.testing.races import start_worker, wait_for

FS_IOC_SHUTDOWN = 0x8004587D
WITHOUT_FLUSH = struct.pack("I", 2)
ROUNDS = 3
MAX_RECEIVES = 3
TAKE_AND_CUT = """
import json, os, sys
import penstock
from penstock.testing.power import cut_power

url, folder, commits = sys.argv[1:]
broker = penstock.open(url)
print(json.dumps([[message.id, message.delivery] for message in broker["orders"].receive(visibility=0)]), flush=True)
if commits == "yes":
    broker["other"].send(b"x")
cut_power(folder)
os._exit(0)
"""
"""Receives, perhaps makes a synced commit, and then cuts the power."""
DAY = 86400


def need_mounts() -> None:
    """Mounting needs root; without it, tests fail in CI and are skipped elsewhere."""
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
        with cut_short(make_url_in, tmp_path, turn) as (url, log, known):
            check_account(url, "orders", log, known)

    @pytest.mark.parametrize("turn", range(ROUNDS))
    def test_sent_again_after_a_power_cut_each_message_comes_once(
        self, make_url_in: Callable[[Path], str], tmp_path: Path, turn: int
    ) -> None:
        with cut_short(make_url_in, tmp_path, turn, deduplicate=DAY) as (url, log, known):
            left = check_account(url, "orders", log, known)
            text = log.read_text()
            lines, answered = ([line.split() for line in part.splitlines()] for part in (text, text[:known]))
            got = {line[2] for line in lines if line[0] == "got"} | left
            done = {line[-1] for line in answered if line[0] in ("sent", "deleted")} | left
            with penstock.open(url) as broker:
                tried = sorted({line[1] for line in lines if line[0] == "try"})
                answers = broker["orders"].send_many([body.encode() for body in tried])
                for body, sent in zip(tried, answers, strict=True):
                    if sent.duplicate:
                        assert body in got, f"{body} is a duplicate, and nobody has ever got the first one"
                    else:
                        assert body not in done, f"{body} was sent or came before, and is no duplicate"

    def test_no_receipt_from_before_a_power_cut_fits_a_delivery_after_it(
        self, make_url_in: Callable[[Path], str], tmp_path: Path
    ) -> None:
        image, folder = make_disk(tmp_path)
        url = make_url_in(folder)
        with mounted(image, folder), penstock.open(url) as broker:
            broker.create("orders").send_many([b"delete", b"extend", b"release", b"fail"])
        outlived: list[Receipt] = []
        for _ in range(4):
            with mounted(image, folder):
                outlived += take_and_cut(url, folder, "no")
        with mounted(image, folder), penstock.open(url) as broker:
            queue = broker["orders"]
            held = queue.receive(4)
            assert len(held) == 4
            for stale in outlived:
                assert [queue.extend(stale, 60), queue.release(stale), queue.delete(stale), queue.fail(stale)] == [False] * 4
            assert queue.delete_many(held) == [True] * 4

    @pytest.mark.parametrize("silent", [0, 2])
    def test_across_power_cuts_only_receives_since_the_last_synced_commit_are_forgotten(
        self, make_url_in: Callable[[Path], str], tmp_path: Path, silent: int
    ) -> None:
        image, folder = make_disk(tmp_path)
        url = make_url_in(folder)
        with mounted(image, folder), penstock.open(url) as broker:
            broker.create("dead")
            broker.create("other")
            broker.create("orders", redrive=("dead", MAX_RECEIVES)).send(b"poison")
        delivered = 0
        for turn in range(silent + MAX_RECEIVES + 1):
            with mounted(image, folder):
                delivered += len(take_and_cut(url, folder, "no" if turn < silent else "yes"))
        with mounted(image, folder), penstock.open(url) as broker:
            assert MAX_RECEIVES <= delivered <= MAX_RECEIVES + silent
            assert [(message.body, message.death and message.death.receives) for message in broker["dead"].peek()] == [
                (b"poison", MAX_RECEIVES)
            ]


def make_disk(tmp_path: Path) -> tuple[Path, Path]:
    """A new ext4 in a file, and its mount point."""
    need_mounts()
    image, folder = tmp_path / "disk", tmp_path / "mnt"
    folder.mkdir()
    with image.open("wb") as handle:
        handle.truncate(128 * 2**20)
    path = f"{os.environ['PATH']}:/usr/sbin:/sbin"
    subprocess.run(["mkfs.ext4", "-q", "-F", image], check=True, env=os.environ | {"PATH": path})
    return image, folder


@contextmanager
def cut_short(
    make_url_in: Callable[[Path], str], tmp_path: Path, turn: int, **settings: Any
) -> Iterator[tuple[str, Path, int]]:
    """Cut the power of the workers' disk and mount it again. Returns the store, their log, and how much of it counts."""
    image, folder = make_disk(tmp_path)
    log = tmp_path / "log"
    log.touch()
    url = make_url_in(folder)
    with mounted(image, folder):
        with penstock.open(url) as broker:
            broker.create("orders", visibility=1, **settings)
        roles = enumerate(["send", "send", "receive"])
        workers = [start_worker(url, "orders", role, log, f"w{number}", 1 + 4 * turn, 10**6) for number, role in roles]
        wait_for(log, "deleted", 40, lambda: all(worker.poll() is None for worker in workers))
        # A sync in progress when the power fails may be answered and still be lost: only earlier answers count.
        known = len(log.read_text())
        cut_power(folder)
        for worker in workers:
            worker.kill()
            worker.wait()
    with mounted(image, folder):
        yield url, log, known


def take_and_cut(url: str, folder: Path, commits: str) -> list[Receipt]:
    command = [sys.executable, "-c", TAKE_AND_CUT, url, str(folder), commits]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return [Receipt("orders", *receipt) for line in done.stdout.splitlines() for receipt in json.loads(line)]


def cut_power(folder: Path | str) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.ioctl(handle, FS_IOC_SHUTDOWN, WITHOUT_FLUSH)
    finally:
        os.close(handle)
