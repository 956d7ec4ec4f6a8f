"""The tasks of a broker."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import ParamSpec, TypeVar

from penstock.errors import BadInput
from penstock.message import RetryPolicy
from penstock.tasks.call import Serializer
from penstock.tasks.task import Task, TaskQueues, define

P = ParamSpec("P")
R = TypeVar("R")


class Tasks:
    """By name. A module that is imported again defines its tasks anew."""

    def __init__(self, broker: TaskQueues) -> None:
        self._broker = broker
        self._by_name: dict[str, Task[..., object]] = {}

    def __iter__(self) -> Iterator[Task[..., object]]:
        return iter(self._by_name.values())

    def __len__(self) -> int:
        return len(self._by_name)

    def get(self, name: str) -> Task[..., object] | None:
        return self._by_name.get(name)

    def define(
        self,
        *,
        queue: str,
        name: str | None,
        retry: RetryPolicy | None,
        results: float | None,
        serializer: Serializer | None,
    ) -> Callable[[Callable[P, R]], Task[P, R]]:
        def decorate(function: Callable[P, R]) -> Task[P, R]:
            definition = define(function, queue=queue, name=name, retry=retry, results=results, serializer=serializer)
            task = Task(function, definition, self._broker)
            known = self._by_name.get(task.name)
            if known is not None and _place(known) != _place(task):
                raise BadInput(f"there are two tasks with the name {task.name!r:.200}: {known.function!r}, {function!r}")
            self._by_name[task.name] = task
            return task

        return decorate


def _place(task: Task[..., object]) -> tuple[str | None, str]:
    function = task.function
    return function.__module__, function.__qualname__
