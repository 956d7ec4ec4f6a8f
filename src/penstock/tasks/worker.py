"""A worker of tasks: consumers of their queues in one process."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Protocol

from penstock.errors import BadInput
from penstock.tasks.registry import Tasks
from penstock.tasks.running import TaskCallback, TaskLoop
from penstock.tasks.task import SETTINGS, TaskQueues, find_or_create
from penstock.workers.consumer import Consumer, Tally
from penstock.workers.side_by_side import run_all


class TaskBroker(TaskQueues, Protocol):
    @property
    def tasks(self) -> Tasks: ...

    def consumer(self, name: str, *, schedules: bool = True, **options: Any) -> Consumer: ...


class TaskWorker:
    """Runs the tasks of a broker. Made by `Broker.task_worker`."""

    def __init__(self, broker: TaskBroker, queues: Collection[str] | None = None, **options: Any) -> None:
        """Of these ``queues``, or of all that have tasks. The options are those of a consumer."""
        for task in broker.tasks:
            task.definition.signature.check(results=task.definition.results is not None)
        self._loop = TaskLoop()
        self._consumers = [
            self._consumer(broker, name, schedules=place == 0, **options)
            for place, name in enumerate(find_queues(broker.tasks, queues))
        ]

    def _consumer(self, broker: TaskBroker, name: str, **options: Any) -> Consumer:
        find_or_create(broker, name, SETTINGS)
        consumer = broker.consumer(name, **{"batch_size": max(1, options.get("workers", 1)), **options})
        runner = TaskCallback(name, broker, broker.tasks, self._loop)
        consumer.process(runner, given_up=runner.given_up)
        return consumer

    @property
    def queues(self) -> list[str]:
        return [consumer.queue.name for consumer in self._consumers]

    def stop(self) -> None:
        """Make `run` return: tasks that have begun are finished, and the others given back."""
        for consumer in self._consumers:
            consumer.stop()

    def run(self, *, until_empty: bool = False) -> Tally:
        """Work until stopped, by `stop`, SIGTERM or Ctrl-C; with ``until_empty``, until there is no task left to take."""
        try:
            return run_all(self._consumers, until_empty=until_empty)
        finally:
            self._loop.close()


def find_queues(tasks: Tasks, chosen: Collection[str] | None) -> Sequence[str]:
    known = sorted({task.queue for task in tasks})
    if not known:
        raise BadInput("there are no tasks: define some with @broker.task(queue=…), in a module that is imported")
    for name in chosen or ():
        if name not in known:
            raise BadInput(f"no task is of queue {name!r:.200}; there are tasks of {', '.join(known)}")
    return [name for name in known if not chosen or name in chosen]
