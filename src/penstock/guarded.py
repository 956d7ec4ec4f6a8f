"""Context managers that an interrupt cannot leave half open.

A signal handler may raise at almost any instant: Ctrl-C, a soft time limit. `contextlib.contextmanager` has two instants at
which that leaves the generator suspended in the middle: right after it was entered, and right before it is told to leave. The
lock or the transaction that it holds then stays until someone drops the traceback, which a notebook never does.

Here the generator belongs to the ``with`` statement alone, so that it is closed as soon as the statement is over, in whichever
way. It must clean up in a ``finally`` or an ``except BaseException`` of its own, and take locks by ``with``.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Generator
from functools import partial, wraps
from types import TracebackType
from typing import Any, Generic, ParamSpec, TypeVar

Value = TypeVar("Value")
Arguments = ParamSpec("Arguments")
Leave = Callable[[type[BaseException] | None, BaseException | None, TracebackType | None], bool | None]


class Guarded(Generic[Value]):
    """What a `guarded` function returns, for one ``with`` statement."""

    __slots__ = ("_generator",)

    def __init__(self, generator: Generator[Value]) -> None:
        self._generator = generator

    def __enter__(self) -> Value:
        try:
            value = next(self._generator)
        except BaseException:
            self._generator.close()
            raise
        return value

    @property
    def __exit__(self) -> Leave:
        # The statement holds what this returns until it is over, and nobody else does: a frame of `_leave` in a traceback has
        # only the weak reference.
        leave = partial(_leave, weakref.ref(self._generator))
        leave.generator = self._generator  # type: ignore[attr-defined]
        return leave


def guarded(function: Callable[Arguments, Generator[Value]]) -> Callable[Arguments, Guarded[Value]]:
    """As `contextlib.contextmanager`, for functions that yield once."""

    @wraps(function)
    def make(*arguments: Arguments.args, **named: Arguments.kwargs) -> Guarded[Value]:
        return Guarded(function(*arguments, **named))

    return make


def _leave(
    reference: weakref.ref[Generator[Any]],
    kind: type[BaseException] | None,  # noqa: ARG001
    error: BaseException | None,
    trace: TracebackType | None,
) -> bool | None:
    generator = reference()
    assert generator is not None
    try:
        if error is None:
            next(generator)
        else:
            generator.throw(error)
    except StopIteration as end:
        return error is not None and end is not error
    except BaseException as raised:
        if raised is error or (isinstance(error, StopIteration) and raised.__cause__ is error):
            assert error is not None
            error.__traceback__ = trace
            return False
        raise
    raise RuntimeError("a guarded function yields once")
