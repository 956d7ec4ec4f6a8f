"""The command work: consumers in processes of their own, which are restarted when a callback kills one."""

from __future__ import annotations

import multiprocessing
import signal
import sys
import time
from argparse import Namespace
from collections.abc import Callable
from dataclasses import asdict
from importlib import import_module
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any

import penstock
from penstock.broker import Broker
from penstock.cli.output import complain, emit
from penstock.cli.parser import Commands, seconds
from penstock.errors import BadInput, PenstockError
from penstock.message import Mode
from penstock.policy import check_count
from penstock.workers.consumer import Tally

RESTART_PAUSE = 1.0


def add(command: Commands) -> None:
    parser = command("work", run_work, "call a function for each message of a queue, until Ctrl-C or SIGTERM")
    parser.add_argument("name", metavar="NAME")
    parser.add_argument("function", metavar="MODULE:FUNCTION", help="called with the payload and the message")
    parser.add_argument("--workers", metavar="N", type=int, default=1, help="consumers, each in a process of its own (1)")
    parser.add_argument("--threads", metavar="N", type=int, default=1, help="functions at a time in each (1)")
    parser.add_argument("--batch-size", metavar="N", type=int, default=10, help="messages to take at a time (10)")
    parser.add_argument("--mode", choices=[mode.value for mode in Mode], help="at_most_once settles a message when it is taken")
    parser.add_argument(
        "--visibility", metavar="S", type=seconds, help="seconds of a lease; it is extended for as long as the function runs"
    )
    parser.add_argument(
        "--no-help", dest="helping", action="store_false", help="take only messages of its own share of the queue"
    )
    parser.add_argument("--until-empty", action="store_true", help="end when there is nothing left to take")


def run_work(args: Namespace, broker: Broker) -> int:
    check_count(args.workers, "workers", 1, 1000, BadInput)
    find(args.function)
    options = {
        "batch_size": args.batch_size,
        "workers": args.threads,
        "mode": args.mode,
        "visibility": args.visibility,
        "helping": args.helping,
    }
    broker.consumer(args.name, **options)  # what is wrong with them is better told once than by every worker
    tally = Supervisor(args.workers, (args.store, args.name, args.function, options, args.until_empty)).run()
    if args.json:
        emit({"name": args.name, **asdict(tally)})
    else:
        parts = {"processed": tally.processed, "retried": tally.retried, "failed": tally.failed, "lost": tally.lost}
        print(", ".join(f"{count} {what}" for what, count in parts.items()))
    return 0


def find(function: str) -> Callable[..., Any]:
    """The callback that MODULE:FUNCTION names; the module may be in the current folder."""
    module, colon, name = function.partition(":")
    if not colon or not module or not name:
        raise BadInput(f"{function!r:.200} is not MODULE:FUNCTION, such as tasks:handle")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        found: Any = import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise BadInput(f"{function!r:.200} cannot be found: {error}") from None
    if not callable(found):
        raise BadInput(f"{function!r:.200} is not a function")
    return found  # type: ignore[no-any-return]


class Supervisor:
    def __init__(self, workers: int, task: tuple[Any, ...]) -> None:
        self._workers = workers
        self._task = task
        self._stopping = False
        self._context = multiprocessing.get_context("spawn")  # a fork would carry the store's connections along
        self._running: dict[SpawnProcess, Connection] = {}
        self._tally = Tally()

    def run(self) -> Tally:
        before = {number: signal.signal(number, self._stop) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            for _ in range(self._workers):
                self._start()
            while self._running:
                wait([worker.sentinel for worker in self._running], timeout=0.5)
                for worker in [worker for worker in self._running if not worker.is_alive()]:
                    self._ended(worker)
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        return self._tally

    def _start(self) -> None:
        end, far = self._context.Pipe(duplex=False)
        worker = self._context.Process(target=work, args=(far, *self._task))
        worker.start()
        far.close()
        self._running[worker] = end

    def _ended(self, worker: SpawnProcess) -> None:
        worker.join()
        end = self._running.pop(worker)
        if end.poll():
            try:
                told: Tally = end.recv()
                for name, count in asdict(told).items():
                    setattr(self._tally, name, getattr(self._tally, name) + count)
            except EOFError:  # it died without a word
                pass
        end.close()
        if worker.exitcode and not self._stopping:
            complain(f"a worker has ended with {worker.exitcode}; starting another")
            time.sleep(RESTART_PAUSE)
            if not self._stopping:
                self._start()

    def _stop(self, *_: object) -> None:
        self._stopping = True
        for worker in self._running:
            worker.terminate()


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
