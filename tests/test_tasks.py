"""Tasks: their names, what their annotations say, over HTTP, under asyncio, in transactions, and `penstock work`."""

from __future__ import annotations

import asyncio
import json
import pickle
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from enum import IntEnum
from pathlib import Path
from threading import Thread
from typing import Any, Literal, NewType
from uuid import UUID

import apsw
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock
from penstock import BadInput, BadMessage, BadName, Broker, NoResult, QueueNotFound, TaskFailed, Unsupported
from penstock.server import BackgroundServer, ServerSettings
from penstock.server.tokens import read_tokens
from penstock.tasks.outcome import MAX_RESULT, settings_of
from penstock.tasks.shapes import Misfit, find_shape
from penstock.testing.http import SETTINGS
from penstock.testing.serving import until
from penstock.testing.tasking import Colour, Item, Order, Tasking, run

SECRET = "a-secret-of-some-length"
PENSTOCK = [sys.executable, "-m", "penstock.cli"]


@pytest.fixture
def broker() -> Iterator[Broker]:
    with penstock.open("memory:") as broker:
        yield broker


class TestOverHttp(Tasking):
    @pytest.fixture(params=["memory", "sqlite", "vsqs"])
    def broker(self, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Broker]:
        url = {"memory": "memory:"}.get(request.param, f"{request.param}:///{tmp_path}/queue")
        with penstock.open(url) as local, BackgroundServer(local, SETTINGS) as server, penstock.open(server.url) as remote:
            yield remote


# names


def module_level() -> None: ...


def test_a_task_is_named_by_its_function_and_module(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    assert broker.task(queue="q")(module_level).name == "test_tasks.module_level"
    assert broker.task(queue="q", name="mine")(module_level).name == "mine"
    main = type("Main", (), {"__spec__": None, "__file__": "/srv/shop.py"})
    monkeypatch.setitem(sys.modules, "__main__", main)
    monkeypatch.setattr(module_level, "__module__", "__main__")
    assert broker.task(queue="q")(module_level).name == "shop.module_level", "the worker imports the file under its name"
    assert broker.task(queue="q")(module_level).__doc__ == module_level.__doc__
    assert sorted(task.name for task in broker.tasks) == ["mine", "shop.module_level", "test_tasks.module_level"]


def generate() -> Iterator[int]:
    yield 1


@pytest.mark.parametrize(
    ("function", "given", "words"),
    [
        (lambda: None, {}, "is defined in a function, where no worker finds it: give it a name="),
        (generate, {}, "is a generator"),
        (5, {}, "a task is a function, not 5"),
        (print, {}, "a task is a function"),
        (module_level, {"name": ""}, "the name of a task has 1 to 500 printable characters, not ''"),
        (module_level, {"name": "x" * 501}, "has 1 to 500"),
        (module_level, {"results": 0}, "results 0 is not between 1"),
        (module_level, {"serializer": 5}, "serializer 5 has no dumps"),
        (module_level, {"retry": "twice"}, "retry must be a RetryPolicy"),
        (module_level, {"queue": "a/b"}, "queue name 'a/b'"),
        (module_level, {"queue": "x" * 125, "results": 5}, "has 133 characters"),
    ],
)
def test_what_cannot_be_a_task_is_refused(broker: Broker, function: Any, given: dict[str, Any], words: str) -> None:
    with pytest.raises(BadInput, match=words):
        broker.task(**{"queue": "q"} | given)(function)
    assert len(broker.tasks) == 0


def test_two_functions_with_one_name_are_refused(broker: Broker) -> None:
    broker.task(queue="q", name="x")(module_level)
    again = broker.task(queue="p", name="x")(module_level)
    assert broker.tasks.get("x") is again, "its module was imported again"
    with pytest.raises(BadInput, match="there are two tasks with the name 'x'"):
        broker.task(queue="q", name="x")(generate.__class__(module_level.__code__, {"__name__": "other"}))


# values


class Size(IntEnum):
    SMALL = 1


@dataclass
class Strict:
    number: int

    def __post_init__(self) -> None:
        if self.number < 0:
            raise ValueError("it is negative")


Customer = NewType("Customer", int)
VALUES: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (int, st.integers(-(2**70), 2**70)),
    (float, st.floats(allow_nan=False, allow_infinity=False)),
    (str, st.text()),
    (bytes, st.binary()),
    (datetime, st.datetimes(timezones=st.just(UTC) | st.none())),
    (date, st.dates()),
    (time, st.times()),
    (timedelta, st.timedeltas(timedelta(days=-9999), timedelta(days=9999))),
    (UUID, st.uuids()),
    (list[int | None], st.lists(st.integers() | st.none())),
    (tuple[int, ...], st.lists(st.integers()).map(tuple)),
    (tuple[str, bool], st.tuples(st.text(), st.booleans())),
    (set[str], st.sets(st.text())),
    (dict[str, list[bytes]], st.dictionaries(st.text(), st.lists(st.binary()))),
    (Colour, st.sampled_from(Colour)),
    (Size | None, st.sampled_from(Size) | st.none()),
    (Literal["a", 2], st.sampled_from(["a", 2])),
    (Customer, st.integers()),
    (bool | int | str | list[str], st.booleans() | st.integers() | st.text() | st.lists(st.text())),
    (Item, st.builds(Item, st.text(), st.decimals(allow_nan=False), st.just([Item("part", 1)]))),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("kind", "values"), [each for each in VALUES if each[0] is not Item], ids=lambda each: repr(each)[:40])
def test_a_value_comes_back_from_json_as_it_was(kind: Any, values: st.SearchStrategy[Any]) -> None:
    shape = find_shape(kind)

    @given(values)
    def check(value: Any) -> None:
        written = shape.pack(value)
        assert type(json.dumps(written)) is str
        read = shape.unpack(json.loads(json.dumps(written)))
        assert (read, type(read)) == (value, type(value))

    check()


@pytest.mark.parametrize(
    ("kind", "raw", "words"),
    [
        (int, 1.0, "1.0 is not an int"),
        (int, True, "True is not an int"),
        (float, "1", "'1' is not a number"),
        (str, None, "None is not text"),
        (bool, 1, "1 is not True or False"),
        (bytes, "é", "is not bytes"),
        (datetime, "yesterday", "'yesterday' is not a datetime"),
        (datetime, 5, "5 is not a datetime"),
        (timedelta, 1e300, "is not a timedelta"),
        (UUID, "x", "'x' is not a UUID"),
        (list[int], [1, "a"], r"\[1\]: 'a' is not an int"),
        (tuple[int, str], [1], r"\[1\] is not a tuple of 2 values"),
        (tuple[int, str], "ab", "'ab' is not a tuple of 2 values"),
        (set[str], "ab", "'ab' is not a list"),
        (set[Any], [[1]], "is not a list for a set"),
        (dict[str, int], {"a": "b"}, r"\['a'\]: 'b' is not an int"),
        (Colour, "green", "'green' is not one of 'red', 2"),
        (Size, True, "True is not one of 1"),
        (Literal["a"], "b", "'b' is not one of 'a'"),
        (int | None, "x", "'x' is not int | None"),
        (Item, {"name": "a", "price": "1", "size": 2}, "a Item has no 'size'"),
        (Item, {"name": "a"}, "missing 1 required positional argument: 'price'"),
        (Item, {"name": "a", "price": "1", "parts": [{"name": 1}]}, r"\.parts\[0\]\.name: 1 is not text"),
        (Item, [], "is not an object for a Item"),
        (Strict, {"number": -1}, "it is negative"),
        (Order, {"id": 5}, r"\.id: 5 is not a UUID"),
    ],
)
def test_a_value_that_does_not_fit_is_named_with_its_place(kind: Any, raw: Any, words: str) -> None:
    with pytest.raises(Misfit, match=words):
        find_shape(kind).unpack(raw)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (Path, "cannot be written as JSON: use a dataclass or a plain type, or give the task a serializer"),
        (datetime | str, "two of its types are both a text there"),
        (Item | dict[str, int], "two of its types are both a object there"),
        (dict[int, str], "its keys are text"),
        ({"not": "a type"}, "argument 'value'"),
        ("Nowhere", "cannot be resolved: name 'Nowhere' is not defined"),
    ],
)
def test_an_annotation_that_json_has_no_place_for_is_refused_before_anything_is_sent(
    broker: Broker, kind: Any, words: str
) -> None:
    def take(value: Any) -> None: ...

    take.__annotations__["value"] = kind
    task = broker.task(queue="q", name="take")(take)
    with pytest.raises(BadInput, match=words):
        task.send(1)
    with pytest.raises(BadInput, match=words):
        broker.task_worker()
    assert "q" not in broker


def test_annotations_may_name_what_comes_later(broker: Broker) -> None:
    broker.task(queue="q")(later).send(Later(5))
    assert run(broker).processed == 1


def later(value: Later) -> None:
    assert value == Later(5)


@dataclass
class Later:
    number: int


def test_arguments_that_do_not_fit_are_refused_by_the_send(broker: Broker) -> None:
    @broker.task(queue="q", name="take")
    def take(number: int, colour: Colour | None = None, anything: Any = None) -> None: ...

    take.send(1)
    for args, options, words in [
        ((), {}, "missing a required argument: 'number'"),
        ((1, None, 3, 4), {}, "too many positional arguments"),
        ((1,), {"size": 1}, "unexpected keyword argument 'size'"),
        (("1",), {}, "number: '1' is not an int"),
        ((True,), {}, "number: True is not an int"),
        ((1, "red"), {}, "colour: 'red' is not a Colour"),
        ((1,), {"anything": [{"a": (1,)}]}, r"anything\[0\]\['a'\]: \(1,\) is a tuple"),
        ((1,), {"anything": float("nan")}, "it cannot be written as JSON"),
    ]:
        with pytest.raises(BadMessage, match=words):
            take.send(*args, **options)  # type: ignore[arg-type]
    assert broker["q"].stats().messages == 1


def test_a_serializer_takes_the_place_of_json(broker: Broker) -> None:
    got: list[Any] = []

    @broker.task(queue="q", name="take", serializer=pickle, results=60)
    def take(value: Any, *, other: Any = None) -> Any:
        got.append((value, other))
        return {value}

    sent = take.send(Colour.RED, other={1, 2})
    broker["q"].send(b'{"task": "take", "args": ["by another program"]}')
    assert run(broker).processed == 2
    assert got == [(Colour.RED, {1, 2}), ("by another program", None)]
    assert sent.result() == {Colour.RED}
    with pytest.raises(BadMessage, match="the serializer cannot write it"):
        take.send(lambda: None)


@pytest.mark.parametrize("kind", ["plain", "coroutine"])
def test_a_task_that_raises_what_ends_programs_is_an_attempt_that_failed(broker: Broker, kind: str) -> None:
    ran: list[int] = []

    def leave() -> None:
        ran.append(1)
        raise SystemExit(3) if len(ran) == 1 else asyncio.CancelledError

    async def leave_soon() -> None:
        leave()

    task = broker.task(queue="q", name="leave")(leave if kind == "plain" else leave_soon)
    other = broker.task(queue="q", name="other")(lambda: ran.append(2))
    task.send()
    task.send()
    other.send()
    assert (run(broker).retried, ran) == (2, [1, 1, 2])


def test_a_worker_takes_the_tasks_of_the_queues_that_were_chosen(broker: Broker) -> None:
    ran: list[str] = []
    for name in ("a", "b", "c"):
        broker.task(queue=name, name=name)(lambda name=name: ran.append(name)).send()
    assert broker.task_worker(["a", "c"]).queues == ["a", "c"]
    assert run(broker, queues=["a", "c"]).processed == 2
    assert sorted(ran) == ["a", "c"]
    with pytest.raises(BadInput, match="no task is of queue 'd'; there are tasks of a, b, c"):
        broker.task_worker(["d"])


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("returned", "words"),
    [
        ("x" * MAX_RESULT, f"the limit is {MAX_RESULT}"),
        ({1, 2}, "is a set, which JSON does not have"),
        (nested(5000), "it is nested too deeply"),
    ],
)
def test_a_result_that_cannot_be_kept_does_not_run_the_task_again(broker: Broker, returned: Any, words: str) -> None:
    task = broker.task(queue="q", name="big", results=60)(lambda: returned)
    sent = task.send()
    assert run(broker).processed == 1
    with pytest.raises(TaskFailed, match=f"it has run, but what it returned cannot be kept: .*{words}"):
        sent.result()


class NoOffset(tzinfo):
    def utcoffset(self, _: datetime | None) -> timedelta:
        raise LookupError("no such zone")


def test_a_result_that_cannot_even_be_read_does_not_run_the_task_again(broker: Broker) -> None:
    @broker.task(queue="q", name="when", results=60)
    def when() -> datetime:
        return datetime(2030, 1, 1, tzinfo=NoOffset())

    sent = when.send()
    assert run(broker).processed == 1
    with pytest.raises(TaskFailed, match="it has run, but what it returned cannot be kept: LookupError: no such zone"):
        sent.result()


def test_arguments_that_are_nested_too_deeply_are_refused_by_the_send(broker: Broker) -> None:
    @broker.task(queue="q", name="take")
    def take(anything: Any) -> None: ...

    with pytest.raises(BadMessage, match="task 'take' cannot be called so: it is nested too deeply"):
        take.send(nested(5000))
    assert "q" not in broker


def test_results_that_have_no_queue_are_refused_by_the_send(broker: Broker) -> None:
    task = broker.task(queue="q" * 125)(module_level)
    assert task.send().duplicate is False
    with pytest.raises(BadName, match="has 133 characters"):
        task.send_with(results=60).send()


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b'{"task": "take", "kwargs": {"number": 1, "size": 2}}', "unexpected keyword argument 'size'"),
        (b'{"task": "take", "args": [], "kwargs": {}}', "missing a required argument: 'number'"),
        (b'{"task": "take", "data": "AAAA"}', "this task has none"),
        (b'{"task": "take", "data": 5}', "its data or its results cannot be read"),
        (b'{"task": "take", "args": [1], "results": -1}', "its data or its results cannot be read"),
        (b'{"task": "take", "args": {}}', "its args must be a list"),
        (b'{"task": "pickled", "data": "AAAA"}', "the serializer cannot read it"),
        (b'{"task": "pickled", "data": "TksBLg=="}', "the serializer has not answered with the arguments"),
        (b'{"task": 5}', "it is no call of a task"),
        (b"[" * 100_000, "it is not JSON"),
        (b'{"task": "any", "args": [' + b"[" * 900 + b"]" * 900 + b"]}", "it is nested too deeply"),
        (b"\xff", "it is not JSON"),
        (b"", "it is not JSON"),
    ],
)
def test_whatever_a_message_says_it_is_run_or_given_up(broker: Broker, body: bytes, words: str) -> None:
    queue = broker.create("q", history=600)

    @broker.task(queue="q", name="take")
    def take(number: int) -> None:
        raise AssertionError("it must not run")

    @broker.task(queue="q", name="any")
    def take_any(value: Any) -> None:
        raise AssertionError("it must not run")

    broker.task(queue="q", name="pickled", serializer=pickle)(take.function)
    queue.send(body)
    assert run(broker).failed == 1
    assert words in str(queue.settled()[0].reason)


def test_the_same_task_is_sent_to_another_store(broker: Broker) -> None:
    task = broker.task(queue="q")(module_level)
    with penstock.open("memory:") as other:
        task.on(other).send()
        assert (other["q"].stats().messages, "q" in broker) == (1, False)


def test_a_queue_of_results_that_was_made_for_something_else_is_left_alone(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    broker.create("q.results")
    sent = broker.task(queue="q", results=60)(module_level).send()
    assert run(broker).processed == 1
    assert "queue 'q.results' was made for something else" in caplog.text
    with pytest.raises(NoResult):
        sent.result()


def test_a_queue_of_results_that_was_deleted_is_made_again(broker: Broker) -> None:
    task = broker.task(queue="q", results=60)(module_level)
    worker = broker.task_worker()
    task.send()
    worker.run(until_empty=True)
    broker.delete("q.results")
    sent = task.send()
    worker.run(until_empty=True)
    assert sent.result() is None


def test_a_result_is_waited_for(broker: Broker) -> None:
    sent = broker.task(queue="q", results=60)(module_level).send()
    thread = Thread(target=run, args=(broker,))
    thread.start()
    assert sent.result(timeout=240) is None
    thread.join()
    with pytest.raises(BadInput, match="timeout must be a number of seconds"):
        sent.result(timeout="x")  # type: ignore[arg-type]


def test_a_task_is_sent_when_the_caller_commits(tmp_path: Path) -> None:
    with penstock.open(f"sqlite:///{tmp_path}/queue.db") as broker:
        task = broker.task(queue="q")(module_level)
        connection = apsw.Connection(f"{tmp_path}/queue.db")
        with pytest.raises(QueueNotFound, match="'q'"):
            task.send_with(connection=connection).send()
        queue = broker.create("q")
        connection.execute("BEGIN IMMEDIATE")
        task.send_with(connection=connection).send()
        connection.execute("ROLLBACK")
        assert queue.stats().messages == 0
        connection.execute("BEGIN IMMEDIATE")
        task.send_with(connection=connection).send()
        connection.execute("COMMIT")
        assert queue.stats().messages == 1
        connection.close()


# asyncio


@contextmanager
def at(kind: str, folder: Path) -> Iterator[str]:
    """A store's URL, for its own process or over HTTP."""
    url = f"sqlite:///{folder}/queue.db"
    if kind == "sqlite":
        yield url
        return
    with penstock.open(url) as local, BackgroundServer(local, SETTINGS) as server:
        yield server.url


async def double(number: int) -> int:
    if number < 0:
        raise penstock.Reject("it is negative")
    return number * 2


@pytest.mark.parametrize("kind", ["sqlite", "http"])
def test_coroutines_send_tasks_and_await_their_results(tmp_path: Path, kind: str) -> None:
    async def main(url: str, broker: Broker) -> None:
        task = broker.task(queue="q", results=60)(double)
        async with penstock.aopen(url) as tasks:
            send = tasks.task(task)
            with pytest.raises(BadMessage, match="number: 'x' is not an int"):
                await send.send("x")  # type: ignore[arg-type]
            sent = await asyncio.gather(*(send.send(number) for number in range(20)), send.send(-1))
            later, again = [await send.send_with(delay=3600, key="k", unique=True).send(number) for number in (5, 6)]
            assert (again.duplicate, again.id) == (True, later.id)
            with pytest.raises(NoResult):
                await sent[0].result()
            running = asyncio.create_task(asyncio.to_thread(run, broker))
            assert await asyncio.gather(*(each.result(timeout=240) for each in sent[:20])) == [*range(0, 40, 2)]
            with pytest.raises(TaskFailed, match="it is negative"):
                await sent[20].result(timeout=240)
            await running
            assert (await send.result(sent[3].id), task.result(sent[3].id)) == (6, 6)
            assert (await (await tasks.queue("q")).peek())[0].id == later.id

    with at(kind, tmp_path) as url, penstock.open(url) as broker:
        asyncio.run(main(url, broker))


def test_a_worker_that_may_create_no_queue_runs_the_tasks_of_those_that_are_there(tmp_path: Path) -> None:
    tokens = read_tokens([{"secret": SECRET, "scopes": ["read", "send", "receive"], "queues": ["q", "q.results"]}], "test", "")
    settings = ServerSettings(port=0, access_log=False, tokens=tokens)
    with penstock.open("memory:") as local, BackgroundServer(local, settings) as server:
        local.create("q")
        local.create("q.results", **settings_of(60))
        with penstock.open(server.url, token=SECRET) as remote:
            sent = remote.task(queue="q", name="double", results=60)(lambda number: 2 * number).send(4)
            assert run(remote).processed == 1
            assert sent.result() == 8


def test_a_server_refuses_a_transaction(tmp_path: Path) -> None:
    with at("http", tmp_path) as url, penstock.open(url) as broker:
        broker.create("q")
        with pytest.raises(Unsupported, match="cannot join"):
            broker.task(queue="q")(module_level).send_with(connection=object()).send()


# penstock work

SHOP = """
import asyncio, os, time
import penstock
from helper import VERSION

broker = penstock.open("sqlite:///shop.db")

def note(*words):
    with open("log", "a") as log:
        log.write(" ".join(map(str, words)) + "\\n")

@broker.task(queue="mail", results=600)
def greet(name: str) -> str:
    note("greet", name, os.getpid(), VERSION)
    return f"hello {name}"

@broker.task(queue="slow", results=600)
async def nap(seconds: float) -> str:
    note("begin", os.getpid())
    await asyncio.sleep(seconds)
    note("end", os.getpid())
    return "slept"

@broker.task(queue="slow")
def die() -> None:
    if not os.path.exists("died"):
        open("died", "w").close()
        os._exit(3)
    note("alive")
"""


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module of tasks, imported here as a sender does."""
    (tmp_path / "shop.py").write_text(SHOP)
    (tmp_path / "helper.py").write_text("VERSION = 1\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("shop", "helper"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    import shop  # type: ignore[import-not-found]

    yield shop
    shop.broker.close()
    for name in ("shop", "helper"):
        monkeypatch.delitem(sys.modules, name, raising=False)


@contextmanager
def working(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    command = [*PENSTOCK, "work", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):
                process.kill()


def log() -> list[list[str]]:
    path = Path("log")
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


def leave(process: subprocess.Popen[str]) -> tuple[str, str]:
    process.send_signal(signal.SIGTERM)
    output, errors = process.communicate(timeout=240)
    assert process.returncode == 0, errors
    return output, errors


def test_work_runs_the_tasks_of_a_module_until_it_is_told_to_stop(shop: Any) -> None:
    sent = [shop.greet.send(f"n{number}") for number in range(10)]
    napped = shop.nap.send(1)
    shop.die.send()
    with working("shop", "--workers", "2", "--visibility", "1") as process:
        assert [each.result(timeout=240) for each in sent] == [f"hello n{number}" for number in range(10)]
        assert napped.result(timeout=240) == "slept"
        until(lambda: ["alive"] in log())
        output, errors = leave(process)
    assert "a worker has ended with 3; starting another" in errors
    assert "processed" in output


def test_told_to_stop_work_finishes_what_has_begun(shop: Any) -> None:
    sent, other = shop.nap.send(3), shop.nap.send(3)
    with working("shop:broker") as process:
        until(lambda: len(log()) == 1)
        leave(process)
    assert [words[0] for words in log()] == ["begin", "end"]
    assert sent.result() == "slept"
    with pytest.raises(NoResult):
        other.result()
    assert shop.broker["slow"].stats().visible == 1


def test_work_takes_the_queues_that_were_chosen(shop: Any) -> None:
    shop.greet.send("ada")
    shop.nap.send(0)
    done = subprocess.run(
        [*PENSTOCK, "work", "shop", "--queue", "mail", "--until-empty", "--json"], capture_output=True, text=True, check=True
    )
    told = json.loads(done.stdout)
    assert (told["module"], told["queues"], told["processed"]) == ("shop", ["mail"], 1)
    assert shop.broker["slow"].stats().messages == 1


def test_work_with_reload_starts_again_when_a_file_changes(shop: Any) -> None:
    def version() -> str:
        shop.greet.send("ada").result(timeout=240)
        return log()[-1][-1]

    with working("shop", "--reload") as process:
        assert version() == "1"
        Path("helper.py").write_text("VERSION = = 2\n")
        assert process.stderr is not None
        lines = [process.stderr.readline() for _ in range(3)]
        assert lines[0] == "penstock: helper.py changed; starting the workers again\n"
        assert "cannot be imported: SyntaxError" in lines[1]
        assert "a worker has ended with 1; starting another when the code changes" in lines[2]
        Path("helper.py").write_text("VERSION = 22\n")
        assert version() == "22"
        leave(process)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere"], "'nowhere' cannot be found: No module named 'nowhere'"),
        (["json"], "module 'json' has no broker, and no tasks of one"),
        (["shop:"], "is not MODULE or MODULE:BROKER"),
        (["shop:nothing"], "'shop:nothing' cannot be found"),
        (["shop:greet"], "'shop:greet' is not a broker"),
        (["shop", "--queue", "x"], "no task is of queue 'x'; there are tasks of mail, slow"),
        (["shop", "--workers", "0"], "workers 0"),
        (["shop", "--threads", "0"], "workers 0"),
        (["shop", "--reload", "--until-empty"], "--reload works until it is stopped"),
        (["shop", "--store", "memory:"], "the broker of the module says where its tasks are"),
        (["mail", "shop:greet", "--reload"], "--queue and --reload are for the tasks of a module"),
        (["broken"], "module 'broken' cannot be imported: ZeroDivisionError"),
        (["two"], "module 'two' has more than one broker: name it"),
        (["in_memory"], "a store in memory is in one process"),
        (["idle"], "there are no tasks"),
    ],
)
def test_work_names_what_is_wrong_with_tasks(shop: Any, arguments: list[str], words: str) -> None:
    Path("broken.py").write_text("1 / 0\n")
    Path("idle.py").write_text("import penstock\nbroker = penstock.open('memory:')\n")
    Path("two.py").write_text("import penstock\na, b = penstock.open('memory:'), penstock.open('memory:')\n")
    Path("in_memory.py").write_text("from idle import broker\n@broker.task(queue='q')\ndef task() -> None: ...\n")
    done = subprocess.run([*PENSTOCK, "work", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert words in done.stderr
    assert done.stderr.count("\n") == 1
