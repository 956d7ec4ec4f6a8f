"""The contract's chapter on publishers that die in a store of files: killed at any system call, a batch is published once.

The program stages a batch for two queues and publishes it, under strace, which kills it at one of its calls. Then a consumer
takes all that is there, and the batch is replayed, with its rows in another order: what was taken and what is there then must
be the batch, each message once; and nothing may be left over.
"""

from __future__ import annotations

import errno
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import pytest

import penstock
from penstock import Broker, Draft, StoreError
from penstock.publishing.segments import pack_drafts
from penstock.testing.file_crashes import DEATHS, calls_on, spread

PLAIN = [b"1", b"2", b"3"]
ONCE = [b"4", b"5", b"5"]
EXPECTED = Counter([*PLAIN, b"4", b"5"])


def publish(broker: Broker, attempt: str, turned: bool) -> int | None:
    """Stage the batch and publish it; ``turned``: as a replay may have it."""
    parts: list[tuple[str, list[bytes]]] = [("plain", PLAIN), ("once", ONCE), ("plain", [])]
    counts = {}
    for place, (queue, bodies) in enumerate(reversed(parts) if turned else parts):
        drafts = [Draft(body, "text/plain") for body in (reversed(bodies) if turned else bodies)]
        counts[f"{attempt}{place}"] = len(drafts)
        broker.stage("query", 7, f"{attempt}{place}", pack_drafts(queue, drafts))
    return broker.publish("query", 7, counts)


def prepare(url: str) -> None:
    with penstock.open(url) as broker:
        broker.create("plain")
        broker.create("once", deduplicate=True)


def take_all(broker: Broker) -> Counter[bytes]:
    taken: Counter[bytes] = Counter()
    for queue in broker:
        while messages := queue.receive(9):
            taken.update(message.body for message in messages)
            queue.delete_many(messages)
    return taken


def check(url: str, name: str) -> None:
    with penstock.open(url) as broker:
        taken = take_all(broker)
        publish(broker, "replay", True)
        taken += take_all(broker)
        assert taken == EXPECTED, f"{name}: {taken}"
        assert broker.store.outbox.staging.staged() == [], f"{name}: something stays staged"


class PublishCrashes:
    publish_points: ClassVar[int] = 3
    """At how many places of each system call to die."""

    def test_a_publication_that_fails_half_way_is_finished_by_the_next(
        self, make_url: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for fails_at in range(1, 6):
            url = make_url(str(fails_at))
            prepare(url)
            with penstock.open(url) as broker, monkeypatch.context() as patched:
                renamed, calls = broker.store._publish, iter(range(1, 99))  # type: ignore[attr-defined]

                def fail(*arguments: object, renamed: Any = renamed, calls: Any = calls, fails_at: int = fails_at) -> object:
                    if next(calls) == fails_at:
                        raise OSError(errno.EIO, "the disk fails")
                    return renamed(*arguments)

                patched.setattr(broker.store, "_publish", fail)
                with pytest.raises(StoreError, match="the disk fails"):
                    publish(broker, "first", False)
            check(url, f"failed at {fails_at}")

    def test_killed_at_a_system_call_a_batch_is_published_once(self, make_url: Callable[[str], str], tmp_path: Path) -> None:
        _run(make_url("traced"), ["-y", "-o", str(tmp_path / "trace"), "-e", f"trace={','.join(DEATHS)}"])
        calls = calls_on(tmp_path, (tmp_path / "trace").read_text())
        jobs = [(syscall, when) for syscall in DEATHS for when in spread(calls[syscall], self.publish_points)]
        assert len(jobs) > 20, "the store hardly wrote: are these its system calls?"

        def die(job: tuple[str, int]) -> bool:
            """Whether it died."""
            name = f"{job[0]}-{job[1]}"
            url, trace = make_url(name), tmp_path / f"{name}.trace"
            _run(url, ["-o", str(trace), "-e", f"trace={job[0]}", "-e", f"inject={job[0]}:signal=KILL:when={job[1]}"])
            check(url, name)
            return "killed by SIGKILL" in trace.read_text()

        with ThreadPoolExecutor(2) as pool:
            died = sum(pool.map(die, jobs))
        assert died >= 0.9 * len(jobs), f"only {died} of {len(jobs)} died"


def _run(url: str, options: list[str]) -> None:
    prepare(url)
    strace = shutil.which("strace")
    assert strace, "install strace (tools/provision does)"
    program = [sys.executable, "-B", "-m", "penstock.testing.publish_crashes", url]
    subprocess.run([strace, "-f", *options, *program], check=False, stderr=subprocess.DEVNULL)


def main(url: str) -> None:
    with penstock.open(url) as broker:
        publish(broker, "first", False)


if __name__ == "__main__":
    main(*sys.argv[1:])
