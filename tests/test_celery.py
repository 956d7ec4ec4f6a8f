"""Celery on Penstock, as its users have it: worker processes, results, remote control, events, and kill -9."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from celery import Celery
from framework_workers import LONG, WorkerProgram, counted, notes, until
from test_serve import serving

import penstock
from penstock.testing.servers import PostgresqlServer, free_port

TASKS = 5000 if LONG else 150
LATER = 200 if LONG else 15
"""Tasks with a countdown among them."""
COUNTDOWN = 6.0
KILLS = 25 if LONG else 1
"""Of each worker; of the server half as many, or one."""
VISIBILITY = "3"


@pytest.fixture
def app() -> Iterator[Callable[[str], Celery]]:
    """A sender in this process."""
    made: list[Celery] = []

    def make(url: str) -> Celery:
        app = Celery("sender", broker=f"penstock+{url}", backend="rpc://", set_as_current=False)
        policy = {"max_retries": 1000, "interval_start": 0.1, "interval_step": 0, "interval_max": 0.1}
        app.conf.update(task_publish_retry_policy=policy, broker_transport_options={"open_options": {"timeout": 5}})
        if not url.startswith("http"):
            app.conf.broker_transport_options = {}
        made.append(app)
        return app

    yield make
    for each in made:
        each.close()
        each.pool.force_close_all()


def worker(folder: Path, name: str, url: str, *flags: str) -> WorkerProgram:
    command = ["celery", "-A", "celery_app", "worker", "-n", f"{name}@here", "-l", "info", "-c", "2", *flags]
    return WorkerProgram(folder, name, *command, APP_URL=url, APP_VISIBILITY=VISIBILITY)


def test_a_worker_does_what_celery_promises(tmp_path: Path, app: Callable[[str], Celery]) -> None:
    url = f"sqlite:///{tmp_path}/queue.db"
    sender = app(url)
    with worker(tmp_path, "first", url, "-E") as first:
        until("the worker's start", lambda: first.says("ready."))
        idle_since, used = time.monotonic(), first.processor_seconds()
        started = time.time()
        send = lambda name, *args, **options: sender.send_task(f"celery_app.{name}", args, **options)  # noqa: E731
        later = send("add", 100, 100, countdown=3)
        until("an idle worker has been watched", lambda: time.monotonic() - idle_since > 2.5)
        used = first.processor_seconds() - used
        assert used < 0.1, f"an idle worker used {used} s of processor in 2.5 s"
        assert not first.says("] received"), "a task that is due later stays in the store"
        results = [send("add", number, 1) for number in range(20)]
        again, failed, large = send("stumble"), send("fail"), send("add", "é" * 75_000, "x")
        assert [result.get(timeout=60) for result in results] == [number + 1 for number in range(20)]
        assert again.get(timeout=60) == 2
        assert repr(failed.get(timeout=60, propagate=False)) == repr(ValueError("no such order"))
        assert large.get(timeout=60) == "é" * 75_000 + "x"
        assert later.get(timeout=60) == 200
        assert time.time() - started >= 3
        control(sender)
        events(sender, send)
        warm_shutdown(tmp_path, url, sender, send, first)


def control(sender: Celery) -> None:
    """Broadcasts and their replies, and one that is meant for a worker that is not there."""
    inspect = sender.control.inspect(timeout=10, limit=1)
    assert inspect.ping() == {"first@here": {"ok": "pong"}}
    queues = inspect.active_queues()
    assert queues
    assert [queue["name"] for queue in queues["first@here"]] == ["celery"]
    assert sender.control.ping(destination=["nobody@here"], timeout=0.5) == []
    assert sender.control.pool_grow(1, reply=True, timeout=10, limit=1) == [{"first@here": {"ok": "pool will grow"}}]


def events(sender: Celery, send: Any) -> None:
    """A monitor hears what happens to a task."""
    heard: list[str] = []
    with sender.connection_for_read() as connection:
        receiver = sender.events.Receiver(connection, handlers={"*": lambda event: heard.append(event["type"])})
        thread = Thread(target=lambda: receiver.capture(limit=None, timeout=3, wakeup=False))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(receiver, "should_stop", False)
            thread.start()
            time.sleep(0.2)
            send("add", 1, 1).get(timeout=60)
            until("the events of a task", lambda: {"task-received", "task-succeeded"} <= set(heard))
            receiver.should_stop = True
            thread.join(60)


def warm_shutdown(folder: Path, url: str, sender: Celery, send: Any, first: WorkerProgram) -> None:
    """What runs is finished, and what was only prefetched is given back at once."""
    results = [send("slow", number) for number in range(12)]
    until("running tasks", lambda: len([note for note in notes(folder) if note[0] == "slow"]) == 3)
    sender.control.shutdown()
    until("the warm shutdown", lambda: first.says("Warm shutdown") or first.says("shutdown"))
    (folder / "go").touch()
    assert first.wait() == 0
    done = [int(note[1]) for note in notes(folder) if note[0] == "slow-end"]
    assert len(done) == 3
    with penstock.open(url) as broker:
        stats = broker["celery"].stats()
        assert (stats.visible, stats.in_flight) == (9, 0)
    with worker(folder, "second", url, "-P", "solo") as second:
        assert sorted(result.get(timeout=60) for result in results) == list(range(12))
        assert second.stop() == 0
    assert len([note for note in notes(folder) if note[0] == "slow-end"]) == 12, "each has run once"


class Server:
    """What stands between the workers and the disk, which is killed and started again."""

    def __init__(self, url: str, restart: Callable[[], object] | None = None) -> None:
        self.url = url
        self.restart = restart


@contextmanager
def server_of(store: str, folder: Path) -> Iterator[Server]:
    with ExitStack() as stack:
        if store == "sqlite":
            yield Server(f"sqlite:///{folder}/queue.db")
        elif store == "postgresql":
            database = stack.enter_context(PostgresqlServer(sync=True))

            def restart_database() -> None:
                database.stop(PostgresqlServer.IMMEDIATE)
                database.start()

            yield Server(database.url, restart_database)
        else:
            port = free_port()
            flags = ("--access-log", "off", "--port", str(port))
            running = [stack.enter_context(serving(f"sqlite:///{folder}/queue.db", *flags))[0]]

            def restart_service() -> None:
                running[-1].kill()
                running[-1].wait()
                running.append(stack.enter_context(serving(f"sqlite:///{folder}/queue.db", *flags))[0])

            yield Server(f"http://127.0.0.1:{port}", restart_service)


@pytest.mark.parametrize("store", ["sqlite", "postgresql", "http"])
def test_an_eta_is_kept_while_worker_and_server_are_killed(store: str, tmp_path: Path, app: Callable[[str], Celery]) -> None:
    with server_of(store, tmp_path) as server, worker(tmp_path, "one", server.url, "--without-mingle") as one:
        sender = app(server.url)
        sender.send_task("celery_app.count", (0,))
        until("a worker that has begun", lambda: counted(tmp_path) == {0: 1})
        due_at = time.time() + 2 * COUNTDOWN
        sender.send_task("celery_app.count", (1, due_at), countdown=2 * COUNTDOWN)
        one.kill()
        if server.restart:
            server.restart()
        one.start()
        sender.send_task("celery_app.count", (2,))
        until("the task that was sent after the restart", lambda: 2 in counted(tmp_path))
        until("the task that was due later", lambda: 1 in counted(tmp_path))
        assert time.time() >= due_at - 0.1
        until("the end of the last", lambda: left(server.url) == 0)
        assert one.stop() == 0


@pytest.mark.parametrize("store", ["sqlite", "postgresql", "http"])
def test_no_task_is_lost_after_kill_9_of_workers_and_server(store: str, tmp_path: Path, app: Callable[[str], Celery]) -> None:
    chance = random.Random(seed := random.randrange(10**6))
    print(f"seed {seed}")
    with server_of(store, tmp_path) as server:
        sender = app(server.url)
        with (
            worker(tmp_path, "one", server.url, "--without-mingle") as one,
            worker(tmp_path, "two", server.url, "--without-mingle") as two,
        ):
            moments = sorted(chance.sample(range(TASKS // 10, TASKS * 9 // 10), 2 * KILLS))
            for number in range(TASKS):
                if number % (TASKS // LATER) == 0:
                    at = time.time() + COUNTDOWN
                    sender.send_task("celery_app.count", (number, at), countdown=COUNTDOWN)
                else:
                    sender.send_task("celery_app.count", (number,))
                while moments and moments[0] <= number:
                    place = len(moments)
                    moments.pop(0)
                    until("progress", lambda: len(counted(tmp_path)) * 4 >= number)  # noqa: B023
                    (one, two)[place % 2].restart()
                    if (place + 1) % (4 if LONG else 2) == 0 and server.restart:
                        server.restart()
            until("every task", lambda: len(counted(tmp_path)) == TASKS, 1200)
            one.kill()
            ran = counted(tmp_path)
            assert set(ran) == set(range(TASKS))
            until("the end of the last", lambda: left(server.url) == 0)
            assert two.stop() == 0
        print(f"{store}: {TASKS} tasks ran {sum(ran.values())} times", file=sys.stderr)


def left(url: str) -> int:
    with penstock.open(url) as broker:
        return broker["celery"].stats().messages
