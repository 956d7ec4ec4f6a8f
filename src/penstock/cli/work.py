"""The command work: runs the tasks of a module, or a function for each message of a queue, in processes of their own."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import asdict
from importlib import import_module
from multiprocessing.connection import Connection
from types import ModuleType
from typing import Any

import penstock
from penstock.broker import Broker
from penstock.cli.output import complain, emit
from penstock.cli.parser import PlainCommands, StoreCommand, seconds
from penstock.cli.supervisor import SourceFiles, Supervisor
from penstock.errors import BadInput, PenstockError
from penstock.message import Mode
from penstock.policy import check_count
from penstock.tasks.task import Task
from penstock.tasks.worker import find_queues
from penstock.workers.consumer import Tally

BATCH = 10


def add(command: PlainCommands, with_store: Callable[[Namespace, StoreCommand], int]) -> None:
    def run(args: Namespace) -> int:
        return run_tasks(args) if args.function is None else with_store(args, run_function)

    parser = command(
        "work", run, "run the tasks of a module, or a function for each message of a queue, until Ctrl-C or SIGTERM"
    )
    parser.add_argument("name", metavar="MODULE[:BROKER]|NAME", help="the module that has tasks; or a queue, for a function")
    parser.add_argument("function", metavar="MODULE:FUNCTION", nargs="?", help="called with the payload and the message")
    parser.add_argument("--queue", dest="queues", metavar="NAME", action="append", help="only its tasks (again for more)")
    parser.add_argument("--workers", metavar="N", type=int, default=1, help="processes (1)")
    parser.add_argument("--threads", metavar="N", type=int, default=1, help="functions at a time in each, for each queue (1)")
    parser.add_argument("--batch-size", metavar="N", type=int, help="messages to take at a time (10; of tasks: --threads)")
    parser.add_argument("--mode", choices=[mode.value for mode in Mode], help="at_most_once settles a message when it is taken")
    parser.add_argument(
        "--visibility", metavar="S", type=seconds, help="seconds of a lease; it is extended for as long as the function runs"
    )
    parser.add_argument(
        "--no-help", dest="helping", action="store_false", help="take only messages of its own share of the queue"
    )
    parser.add_argument("--until-empty", action="store_true", help="end when there is nothing left to take")
    parser.add_argument("--reload", action="store_true", help="start again when the module's files change: for development")


def run_function(args: Namespace, broker: Broker) -> int:
    if args.queues or args.reload:
        raise BadInput("--queue and --reload are for the tasks of a module")
    check_count(args.workers, "workers", 1, 1000, BadInput)
    find(args.function)
    options = {"batch_size": BATCH, **_options(args)}
    broker.consumer(args.name, **options)  # what is wrong with them is better told once than by every worker
    task = (args.store, args.name, args.function, options, args.until_empty)
    return _tell(args, {"name": args.name}, Supervisor(args.workers, work, task).run())


def run_tasks(args: Namespace) -> int:
    check_count(args.workers, "workers", 1, 1000, BadInput)
    if args.reload and args.until_empty:
        raise BadInput("--reload works until it is stopped, and cannot end with --until-empty")
    if args.store_given:
        raise BadInput("the broker of the module says where its tasks are: --store is for NAME MODULE:FUNCTION")
    with find_broker(args.name) as broker:
        queues, options = find_queues(broker.tasks, args.queues), _options(args)
        if getattr(broker, "kind", "") == "memory":
            raise BadInput("a store in memory is in one process, and workers are others; use a file or a database")
        broker.task_worker(queues, **options)  # what is wrong is better told once than by every worker
    files = SourceFiles(args.name.partition(":")[0]) if args.reload else None
    tally = Supervisor(args.workers, work_tasks, (args.name, queues, options, args.until_empty), files).run()
    return _tell(args, {"module": args.name, "queues": list(queues)}, tally)


def _options(args: Namespace) -> dict[str, Any]:
    chosen = {"batch_size": args.batch_size, "mode": args.mode, "visibility": args.visibility}
    given = {name: value for name, value in chosen.items() if value is not None}
    return {**given, "workers": args.threads, "helping": args.helping}


def _tell(args: Namespace, about: dict[str, Any], tally: Tally) -> int:
    if args.json:
        emit({**about, **asdict(tally)})
    else:
        parts = {"processed": tally.processed, "retried": tally.retried, "failed": tally.failed, "lost": tally.lost}
        print(", ".join(f"{count} {what}" for what, count in parts.items()))
    return 0


def find(function: str) -> Callable[..., Any]:
    """The callback that MODULE:FUNCTION names; the module may be in the current folder."""
    module, colon, name = function.partition(":")
    if not colon or not module or not name:
        raise BadInput(f"{function!r:.200} is not MODULE:FUNCTION, such as tasks:handle")
    found = _look_up(_import(module, function), name, function)
    if not callable(found):
        raise BadInput(f"{function!r:.200} is not a function")
    return found  # type: ignore[no-any-return]


def find_broker(place: str) -> Broker:
    """The broker whose tasks MODULE, or MODULE:BROKER, defines."""
    module, colon, name = place.partition(":")
    if not module or (colon and not name):
        raise BadInput(f"{place!r:.200} is not MODULE or MODULE:BROKER, such as shop.tasks")
    found = _import(module, place)
    if name:
        broker = _look_up(found, name, place)
        if not isinstance(broker, Broker):
            raise BadInput(f"{place!r:.200} is not a broker, such as penstock.open(…) returns")
        return broker
    values = [value.broker if isinstance(value, Task) else value for value in vars(found).values()]
    brokers = {id(value): value for value in values if isinstance(value, Broker)}
    if len(brokers) != 1:
        many = "more than one broker: name it, as in MODULE:BROKER" if brokers else "no broker, and no tasks of one"
        raise BadInput(f"module {module!r:.200} has {many}")
    return next(iter(brokers.values()))


def _import(module: str, place: str) -> ModuleType:
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        return import_module(module)
    except PenstockError:
        raise
    except ImportError as error:
        raise BadInput(f"{place!r:.200} cannot be found: {error}") from error
    except Exception as error:
        raise BadInput(f"module {module!r:.200} cannot be imported: {type(error).__name__}: {error}") from error


def _look_up(module: ModuleType, name: str, place: str) -> Any:
    found: Any = module
    try:
        for part in name.split("."):
            found = getattr(found, part)
    except AttributeError as error:
        raise BadInput(f"{place!r:.200} cannot be found: {error}") from None
    return found


def work(end: Connection, url: str, name: str, function: str, options: dict[str, Any], until_empty: bool) -> None:
    """One worker: a process with a consumer of its own."""
    try:
        with penstock.open(url) as broker:
            consumer = broker.consumer(name, **options)
            consumer.process(find(function))
            end.send(consumer.run(until_empty=until_empty))
    except PenstockError as error:
        complain(str(error))
        sys.exit(1)


def work_tasks(end: Connection, place: str, queues: Sequence[str], options: dict[str, Any], until_empty: bool) -> None:
    """One worker of tasks."""
    try:
        with find_broker(place) as broker:
            end.send(broker.task_worker(queues, **options).run(until_empty=until_empty))
    except PenstockError as error:
        complain(str(error))
        sys.exit(1)
