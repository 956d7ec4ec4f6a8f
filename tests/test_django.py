"""Django's task framework on Penstock: in this process, with its worker, in a transaction of Django's database, and kill -9."""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from framework_workers import APPS, LONG, SEARCH, WorkerProgram, counted, notes, until
from test_celery import server_of
from test_serve import serving

import penstock
from penstock.testing.servers import DatabaseServer, free_port

TASKS = 1000 if LONG else 100
KILLS = 10 if LONG else 1
COUNTDOWN = 5.0


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The project, set up in this process."""
    import django
    from django.core.management import call_command
    from django.db import connections

    folder = tmp_path_factory.mktemp("site")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DJANGO_SETTINGS_MODULE", "shop_site.settings")
        patch.setenv("APP_FOLDER", str(folder))
        patch.setenv("APP_URL", f"sqlite:///{folder}/tasks.db")
        patch.syspath_prepend(str(APPS))
        django.setup()
        call_command("migrate", verbosity=0)
        yield folder
    from penstock.contrib.django.stores import STORES

    STORES.close()
    connections.close_all()


@pytest.fixture
def tasks(site: Path) -> Iterator[Any]:
    """The module of tasks, with nothing in the queues."""
    from shop_site import tasks

    yield tasks
    for queue in backend().store:
        queue.purge()


def backend() -> Any:
    from penstock.contrib.django.framework import task_backends

    return task_backends["default"]


def run_all(**options: Any) -> str:
    from io import StringIO

    from django.core.management import call_command

    said = StringIO()
    call_command("penstock_worker", until_empty=True, stdout=said, **options)
    return said.getvalue()


def test_a_task_is_ready_then_successful_with_its_value(tasks: Any) -> None:
    result = tasks.add.enqueue(1, y=2)
    assert (result.status.value, result.args, result.kwargs, result.attempts) == ("READY", [1], {"y": 2}, 0)
    assert tasks.add.get_result(result.id).status.value == "READY"
    assert run_all() == "ran 1 tasks\n"
    result.refresh()
    assert (result.status.value, result.return_value, result.attempts) == ("SUCCESSFUL", 3, 1)
    assert result.enqueued_at <= result.started_at <= result.finished_at
    assert backend().store["default"].stats().messages == 0


@pytest.mark.parametrize(("name", "kind", "words"), [("fail", ValueError, "no such order"), ("odd", TypeError, "Unsupported")])
def test_a_task_that_raises_has_failed_and_does_not_run_again(tasks: Any, name: str, kind: type, words: str) -> None:
    result = getattr(tasks, name).enqueue()
    run_all()
    result.refresh()
    assert result.status.value == "FAILED"
    (error,) = result.errors
    assert error.exception_class is kind
    assert words in error.traceback
    assert backend().store["default"].stats().messages == 0


def test_a_coroutine_and_a_task_with_a_context_run_too(tasks: Any) -> None:
    async def enqueue() -> Any:
        return await tasks.later.aenqueue(5)

    later, told = asyncio.run(enqueue()), tasks.tell.enqueue("word")
    assert run_all(threads=2) == "ran 2 tasks\n"
    later.refresh()
    told.refresh()
    assert later.return_value == 5
    assert told.return_value == ["word", 1, told.id]


def test_a_task_waits_in_the_store_until_it_is_due(tasks: Any) -> None:
    result = tasks.add.using(run_after=datetime.now(UTC) + timedelta(hours=1)).enqueue(1, 1)
    assert run_all() == "ran 0 tasks\n"
    stats = backend().store["default"].stats()
    assert (stats.visible, stats.delayed) == (0, 1)
    result.refresh()
    assert result.status.value == "READY"


def test_a_task_that_runs_is_running(tasks: Any) -> None:
    result = tasks.add.enqueue(1, 1)
    (message,) = backend().store["default"].receive(holder="worker 7")
    result.refresh()
    assert (result.status.value, result.worker_ids) == ("RUNNING", ["worker 7"])
    message.release()


def test_a_result_expires_and_an_unknown_one_does_not_exist(tasks: Any) -> None:
    from django.utils import timezone

    from penstock.contrib.django.framework import TaskResultDoesNotExist
    from penstock.contrib.django.models import FinishedTask

    for id in ("nonsense", "12345678-9abc-8def-8000-000000000001"):
        with pytest.raises(TaskResultDoesNotExist):
            backend().get_result(id)
    result = tasks.add.enqueue(1, 1)
    run_all()
    FinishedTask.objects.update(expires_at=timezone.now())
    with pytest.raises(TaskResultDoesNotExist):
        result.refresh()
    tasks.add.enqueue(1, 1)
    run_all()
    assert FinishedTask.objects.count() == 1, "the old one is gone"


def test_a_message_that_is_no_task_stays_in_the_queue(tasks: Any) -> None:
    queue = backend().queue("default")
    for body in (
        b"\xff",
        b"[]",
        b'{"task": "shop_site.none", "args": [], "kwargs": {}}',
        b'{"task": "os.path.join", "args": []}',
    ):
        queue.send(body)
    result = tasks.add.enqueue(1, 1)
    run_all()
    result.refresh()
    assert result.return_value == 2
    assert queue.stats().delayed == 4


def test_a_signal_tells_of_each_step(tasks: Any) -> None:
    from penstock.contrib.django.framework import signals

    heard: list[str] = []

    def hear(sender: type, task_result: Any, **_: Any) -> None:
        heard.append(task_result.status.value)
        if task_result.status.value == "RUNNING":
            raise ValueError("the trouble of a listener is not the task's")

    heralds = (signals.task_enqueued, signals.task_started, signals.task_finished)
    for herald in heralds:
        herald.connect(hear)
    try:
        tasks.add.enqueue(1, 1)
        run_all()
    finally:
        for herald in heralds:
            herald.disconnect(hear)
    assert heard == ["READY", "RUNNING", "SUCCESSFUL"]


def test_what_is_wrong_with_the_settings_is_said(site: Path) -> None:
    from django.core.exceptions import ImproperlyConfigured

    from penstock.contrib.django import PenstockBackend

    for options in ({}, {"url": "memory:", "database": "default"}, {"url": "memory:", "colour": "red"}):
        with pytest.raises(ImproperlyConfigured, match="OPTIONS has a url or a database"):
            PenstockBackend("default", {"OPTIONS": options})
    with pytest.raises(ImproperlyConfigured, match="on PostgreSQL only"):
        _ = PenstockBackend("default", {"OPTIONS": {"database": "default"}}).store
    same = PenstockBackend("default", {"OPTIONS": {"url": f"sqlite:///{site}/site.db"}})
    assert [error.id for error in same.check()] == ["penstock.E002"]
    assert list(backend().check()) == []
    folder = PenstockBackend("default", {"OPTIONS": {"url": f"vsqs:///{site}/folder"}})
    with pytest.raises(penstock.Unsupported, match="vsqs"):
        folder.get_result("1")


def test_the_migrations_are_those_of_the_models(site: Path) -> None:
    from django.core.management import call_command

    call_command("makemigrations", "penstock", check=True, dry_run=True, verbosity=0)


def test_without_django_the_error_names_the_extra() -> None:
    program = (
        "import sys; sys.modules['django'] = None\n"
        "import penstock\n"
        "try:\n    from penstock.contrib.django import framework\n"
        "except penstock.MissingExtra as error:\n    print(error)"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout == 'penstock.contrib.django needs an optional library: pip install "penstock[django]"\n'


TRANSACTION = """
import django; django.setup()
from django.core.management import call_command
from django.db import connection, transaction
from shop_site.tasks import add
from penstock.contrib.django.framework import task_backends
call_command("migrate", verbosity=0)
store = task_backends["default"].store
connection.cursor().execute("CREATE TABLE invoice (number INTEGER)")

def rows():
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM invoice")
        return cursor.fetchone()[0], store["default"].stats().messages

add.enqueue(0, 0)
assert rows() == (0, 1), "without a transaction, at once"
try:
    with transaction.atomic():
        add.enqueue(1, 1)
        connection.cursor().execute("INSERT INTO invoice VALUES (1)")
        raise ZeroDivisionError
except ZeroDivisionError:
    assert rows() == (0, 1), "rolled back together"
with transaction.atomic():
    kept = add.enqueue(2, 2)
    try:
        with transaction.atomic():
            add.enqueue(3, 3)
            raise ZeroDivisionError
    except ZeroDivisionError:
        pass
    connection.cursor().execute("INSERT INTO invoice VALUES (2)")
    assert store["default"].stats().messages == 1, "others do not see it yet"
assert rows() == (1, 2), "committed together, without what an inner block rolled back"
call_command("penstock_worker", until_empty=True)
kept.refresh()
assert kept.return_value == 4
assert rows() == (1, 0)
"""


def test_a_task_is_enqueued_in_the_transaction_of_djangos_own_database(postgresql: DatabaseServer, tmp_path: Path) -> None:
    url, _, schema = postgresql.new_url().partition("?options=")
    environment = {
        "DJANGO_SETTINGS_MODULE": "shop_site.settings",
        "APP_FOLDER": str(tmp_path),
        "APP_URL": "memory:",
        "APP_DATABASE": url,
        "APP_SEARCH": schema.replace("%3D", "="),
        "PYTHONPATH": SEARCH,
    }
    program = [sys.executable, "-c", TRANSACTION]
    ran = subprocess.run(program, env=os.environ | environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr[-4000:]


def test_the_project_of_the_manual_works(tmp_path: Path) -> None:
    """Its files, put together as its reader does."""
    page = (Path(__file__).parent.parent / "docs/django.md").read_text()
    files = dict(re.findall(r"^```python (\w+\.py)\n(.*?)^```", page, re.M | re.S))
    assert files.keys() == {"settings.py", "shop.py", "views.py", "results.py"}
    common = "DATABASES = {'default': {'ENGINE': 'django.db.backends.sqlite3', 'NAME': 'site.db'}}\nUSE_TZ = True\n"
    files["settings.py"] += common
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    program = """
import django; django.setup()
from django.core.management import call_command
call_command("migrate", verbosity=0)
call_command("check")
import views
call_command("penstock_worker", "--threads", "4", "--until-empty")
import results
"""
    environment = {"DJANGO_SETTINGS_MODULE": "settings", "PYTHONPATH": f"{tmp_path}{os.pathsep}{SEARCH}"}
    command = [sys.executable, "-c", program]
    ran = subprocess.run(command, env=os.environ | environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr[-4000:]
    assert "ran 1 tasks" in ran.stdout


def worker(folder: Path, name: str, url: str, *flags: str) -> WorkerProgram:
    command = ["django", "penstock_worker", "--threads", "2", *flags]
    environment = {"DJANGO_SETTINGS_MODULE": "shop_site.settings", "APP_VISIBILITY": "3"}
    return WorkerProgram(folder, name, *command, APP_URL=url, **environment)


def send(broker: penstock.Broker, queue: str, task: str, *arguments: Any, delay: float | None = None) -> None:
    body = json.dumps({"task": f"shop_site.tasks.{task}", "args": arguments, "kwargs": {}})
    broker.create(queue, exist_ok=True, retention=10**9).send(body.encode(), content_type="application/json", delay=delay)


def migrate(folder: Path) -> None:
    environment = {"DJANGO_SETTINGS_MODULE": "shop_site.settings", "APP_FOLDER": str(folder), "APP_URL": "memory:"}
    command = [sys.executable, "-m", "django", "migrate", "--verbosity", "0"]
    subprocess.run(command, env=os.environ | environment | {"PYTHONPATH": SEARCH}, check=True)


def test_a_worker_that_is_told_to_end_finishes_what_runs_and_gives_back_the_rest(tmp_path: Path) -> None:
    migrate(tmp_path)
    url = f"sqlite:///{tmp_path}/tasks.db"
    with penstock.open(url) as broker, worker(tmp_path, "first", url) as first:
        for number in range(6):
            send(broker, "slow", "slow", number)
        until("running tasks", lambda: len([note for note in notes(tmp_path) if note[0] == "slow"]) == 2)
        first.ask_to_stop()
        until("what was not begun is given back", lambda: broker["slow"].stats().visible == 4)
        (tmp_path / "go").touch()
        assert first.wait() == 0
        assert broker["slow"].stats().messages == 4
    assert len([note for note in notes(tmp_path) if note[0] == "slow-end"]) == 2


def test_a_worker_that_starts_before_its_server_waits_for_it(tmp_path: Path) -> None:
    migrate(tmp_path)
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with worker(tmp_path, "early", url, "--queue", "default") as early:
        until("a warning", lambda: early.says("no tasks can be had for now: there is no server at"))
        with serving(f"sqlite:///{tmp_path}/queue.db", "--port", str(port)), penstock.open(url) as broker:
            send(broker, "default", "count", 1)
            until("the task", lambda: counted(tmp_path) == {1: 1})
            assert early.stop() == 0
    with worker(tmp_path, "short", url, "--queue", "default", "--until-empty") as short:
        assert short.wait() == 1, "it was not asked to wait"
        assert short.says("CommandError: there is no server at")


@pytest.mark.parametrize("store", ["sqlite", "http"])
def test_no_task_of_django_is_lost_after_kill_9_of_workers_and_server(store: str, tmp_path: Path) -> None:
    chance = random.Random(seed := random.randrange(10**6))
    print(f"seed {seed}")
    migrate(tmp_path)
    with (
        server_of(store, tmp_path) as server,
        penstock.open(server.url) as broker,
        worker(tmp_path, "one", server.url, "--queue", "default") as one,
    ):
        moments = set(chance.sample(range(TASKS // 10, TASKS * 9 // 10), KILLS))
        for number in range(TASKS):
            later = number % 10 == 0
            send(
                broker, "default", "count", number, time.time() + COUNTDOWN if later else 0, delay=COUNTDOWN if later else None
            )
            if number in moments:
                until("progress", lambda: len(counted(tmp_path)) * 4 >= number)  # noqa: B023
                one.restart()
                if server.restart:
                    server.restart()
        until("every task", lambda: len(counted(tmp_path)) == TASKS, 1200)
        until("the end of the last", lambda: broker["default"].stats().messages == 0)
        assert one.stop() == 0
        print(f"{store}: {TASKS} tasks ran {sum(counted(tmp_path).values())} times", file=sys.stderr)
