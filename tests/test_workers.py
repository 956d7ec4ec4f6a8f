"""`penstock serve --workers`: several processes on one port, any of which may die, and which stop and read tokens together."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from http.client import HTTPException
from pathlib import Path
from select import PIPE_BUF
from threading import Event, Thread
from types import SimpleNamespace
from urllib.parse import urlsplit

import pytest
from test_serve import PENSTOCK, serving

import penstock
from penstock import PenstockError
from penstock.errors import BadSetting
from penstock.server import ServerSettings, log_writer, workers
from penstock.server.workers import check
from penstock.testing.http import Http
from penstock.testing.serving import until

WORKERS = ("--workers", "2", "--access-log", "off")


def children(parent: int) -> list[int]:
    """The processes that this one has started, without those that have ended."""
    found = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return [int(pid) for pid in found if not is_over(int(pid))]


def is_over(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def is_open(url: str) -> bool:
    address = urlsplit(url)
    with suppress(OSError):
        socket.create_connection((address.hostname, address.port), timeout=60).close()
        return True
    return False


class OfEach:
    """A connection to each of the workers."""

    def __init__(self, url: str, token: str | None = None) -> None:
        self.by_number: dict[int, Http] = {}
        given = {} if token is None else {"Authorization": f"Bearer {token}"}
        until(lambda: self._meet(Http(url), given))

    def _meet(self, http: Http, given: dict[str, str]) -> bool:
        lines = http("GET", "/metrics", **given).body.decode()
        found = re.search(r"^penstock_worker (\d+)$", lines, re.MULTILINE)
        assert found, lines
        self.by_number[int(found[1])] = http
        return len(self.by_number) == 2

    def __iter__(self) -> Iterator[Http]:
        return iter(self.by_number.values())


def test_a_worker_that_is_killed_loses_no_answer_and_the_port_goes_on(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/queue.db"
    with penstock.open(store) as broker:
        broker.create("orders")
    told, stop = Counter[str](), Event()

    def work(url: str, name: str) -> None:
        number = 0
        with penstock.open(url) as client:
            while not stop.is_set():
                number += 1
                with suppress(PenstockError):  # its outcome is unknown
                    client["orders"].send(f"{name}-{number}".encode())
                    told[f"{name}-{number}"] += 1

    def work_plainly(url: str, name: str) -> None:
        number, http = 0, Http(url)
        while not stop.is_set():
            number += 1
            try:
                if http("POST", "/messages/orders", f"{name}-{number}".encode()).status == 201:
                    told[f"{name}-{number}"] += 1
            except (OSError, HTTPException):
                http = Http(url)

    with serving(store, *WORKERS) as (process, url), ExitStack() as stack:
        threads = [
            Thread(target=act, args=[url, f"{act.__name__}{place}"]) for act in (work, work_plainly) for place in range(3)
        ]
        for thread in threads:
            thread.start()
        stack.callback(lambda: (stop.set(), [thread.join() for thread in threads]))
        assert process.stderr
        for _ in range(3):
            first, second = children(process.pid)
            many = len(told)
            until(lambda many=many: len(told) > many + 50)  # type: ignore[misc]
            os.kill(first, signal.SIGKILL)
            assert re.search(rf"process {first}\) was ended by signal 9; another takes its place", process.stderr.readline())
            many = len(told)
            until(lambda many=many: len(told) > many + 50)  # type: ignore[misc]
            until(lambda first=first: len([pid for pid in children(process.pid) if pid != first]) == 2)  # type: ignore[misc]
            assert second in children(process.pid)
    with penstock.open(store) as broker:
        stored = Counter[str]()
        while messages := broker["orders"].receive(1000):
            stored.update(message.text for message in messages)
    assert told.keys() - stored.keys() == set(), "answered sends were lost"
    assert {body for body, count in stored.items() if count > 1} == set(), "messages are there twice"


def test_told_to_stop_all_workers_end_their_polls_and_the_port_is_closed(tmp_path: Path) -> None:
    with serving(f"sqlite:///{tmp_path}/queue.db", *WORKERS) as (process, url), ExitStack() as stack:
        assert Http(url)("PUT", "/orders").status == 201
        answers: list[int] = []

        def poll(http: Http) -> None:
            answers.append(http("GET", "/messages/orders", X_MQS_MAX_WAIT_TIME="60").status)

        polls = [Thread(target=poll, args=[http]) for http in OfEach(url)]
        for thread in polls:
            thread.start()
            stack.callback(thread.join)
        resting = dict.fromkeys((1, 2), 0)

        def rest() -> bool:
            lines = Http(url)("GET", "/metrics").body.decode()
            number, count = (
                int(re.findall(rf"^penstock_{name} (\d+)", lines, re.MULTILINE)[0]) for name in ("worker", "resting_polls")
            )
            resting[number] = count
            return all(resting.values())

        until(rest)
        theirs = children(process.pid)
        process.terminate()
        assert process.wait(60) == 0
        for thread in polls:
            thread.join()
        assert answers == [204, 204]
        assert [pid for pid in theirs if not is_over(pid)] == []
        assert not is_open(url)


def test_new_tokens_reach_all_workers_and_those_that_come_later(tmp_path: Path) -> None:
    config = tmp_path / "penstock.toml"
    old, new = "old-secret-of-a-server", "new-secret-of-a-server"
    config.write_text(f'[server]\ntoken = "{old}"\n')
    with serving(f"sqlite:///{tmp_path}/queue.db", *WORKERS, "--config", str(config)) as (process, url):
        each = OfEach(url, old)
        config.write_text(f'[server]\ntoken = "{new}"\n')
        process.send_signal(signal.SIGHUP)
        until(lambda: [http("GET", "/queues", Authorization=f"Bearer {old}").status for http in each] == [401, 401])
        killed = children(process.pid)[0]
        os.kill(killed, signal.SIGKILL)
        until(lambda: killed not in (found := children(process.pid)) and len(found) == 2)
        assert [http("GET", "/queues", Authorization=f"Bearer {old}").status for http in OfEach(url, new)] == [401, 401]


def test_a_worker_that_cannot_start_ends_all_with_its_error_told_once(tmp_path: Path) -> None:
    command = [*PENSTOCK, "serve", "--store", f"sqlite:///{tmp_path}/nowhere/queue.db", "--port", "0", *WORKERS]
    ran = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False, timeout=120)
    alone = subprocess.run([*command, "--workers", "1"], stderr=subprocess.PIPE, text=True, check=False, timeout=120)
    assert "there is no folder" in ran.stderr
    assert (ran.returncode, ran.stderr) == (alone.returncode, alone.stderr)


def test_a_worker_that_cannot_start_again_is_tried_until_it_can(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    folder.mkdir()
    with serving(f"sqlite:///{folder}/queue.db", *WORKERS) as (process, url):
        assert process.stderr
        assert Http(url)("PUT", "/orders").status == 201
        folder.rename(tmp_path / "elsewhere")
        for pid in children(process.pid):
            os.kill(pid, signal.SIGKILL)
        while "ended with status" not in (line := process.stderr.readline()):
            assert line
        (tmp_path / "elsewhere").rename(folder)
        until(lambda: is_answered(url))


def test_workers_that_end_at_once_are_started_no_more_than_once_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    now, forks = 100.0, list[float]()
    monkeypatch.setattr(workers, "time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(os, "fork", lambda: forks.append(now) or len(forks))
    settings = ServerSettings(store="sqlite:///q.db", workers=2)
    kept = workers.Workers(settings, work=lambda *_: 0, read_again=lambda: settings, started=print, tell=print)
    kept._serves = True
    for _ in range(50):
        assert kept._start() is None
        for pid in list(kept._children):  # it has ended
            child = kept._children.pop(pid)
            os.close(child.starting)
            kept._missing.append(child.number)
        now += 0.1
    assert 4 <= len(forks) <= 6, forks


def is_answered(url: str) -> bool:
    with suppress(OSError, HTTPException):
        return Http(url)("GET", "/queues/orders").status == 200
    return False


def test_workers_whose_parent_was_killed_end(tmp_path: Path) -> None:
    with serving(f"sqlite:///{tmp_path}/queue.db", *WORKERS) as (process, url):
        theirs = children(process.pid)
        process.kill()
        try:
            until(lambda: all(map(is_over, theirs)))
            assert not is_open(url)
        finally:
            for pid in theirs:
                if not is_over(pid):
                    os.kill(pid, signal.SIGKILL)


def test_a_port_that_is_taken_is_told_once(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/queue.db"
    with serving(store, *WORKERS) as (_, url):
        command = [*PENSTOCK, "serve", "--store", store, "--port", url.rpartition(":")[2], *WORKERS]
        ran = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False, timeout=120)
    assert ran.returncode == 4
    assert re.fullmatch(r"penstock: cannot listen on \S+: Address already in use\n", ran.stderr)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (ServerSettings(store="memory:", workers=2), "workers is 2, but a store in memory is in one process"),
        (ServerSettings(store="sqlite:///q.db", workers=64), "each has less than max_body"),
    ],
)
def test_what_several_processes_cannot_do_is_refused(settings: ServerSettings, words: str) -> None:
    with pytest.raises(BadSetting, match=words):
        check(settings)


def test_lines_of_several_processes_stay_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipe takes up to PIPE_BUF bytes without those of another process in between."""
    written: list[bytes] = []
    readable, writable = os.pipe()
    monkeypatch.setattr(log_writer.os, "write", lambda _, piece: written.append(piece) or len(piece))  # type: ignore[attr-defined]
    lines = [f"{number} {'x' * (number % 700)}" for number in range(500)]
    with os.fdopen(readable), os.fdopen(writable, "w") as stream:
        writer = log_writer.LogWriter(stream)
        for piece in (lines, ["y" * 10_000], ["last"]):
            writer.write(piece)
        writer.close()
        until(lambda: b"".join(written).endswith(b"last\n"))
    whole = [piece for piece in written if not piece.startswith(b"y")]
    assert all(piece.endswith(b"\n") for piece in whole)
    assert b"".join(whole).decode().splitlines() == [*lines, "last"]
    assert max(map(len, written)) <= PIPE_BUF
