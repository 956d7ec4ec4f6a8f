"""The arguments and the result of a task: checked, written and read by the annotations of its function, or by a serializer."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

from penstock.errors import BadInput
from penstock.tasks.call import Serializer, TaskCall, dump, load
from penstock.tasks.shapes import ANYTHING, JsonShape, Misfit, find_hints, find_shape, limited_depth, within

RETURN = "return"


class Signature:
    """Annotations are read when they are first needed: they may name what the module defines later."""

    def __init__(self, name: str, function: Callable[..., Any], serializer: Serializer | None) -> None:
        self._name = name
        self._function = function
        self._serializer = serializer
        self._bound = inspect.signature(function)

    @cached_property
    def _shapes(self) -> dict[str, JsonShape]:
        hints = find_hints(self._function)
        return {name: self._shape(name, hints) for name in self._bound.parameters}

    def _shape(self, name: str, hints: Mapping[str, Any]) -> JsonShape:
        if name not in hints:
            return ANYTHING
        try:
            return find_shape(hints[name])
        except (BadInput, TypeError) as error:  # an annotation may be any object
            what = "what it returns" if name == RETURN else f"argument {name!r}"
            raise BadInput(f"task {self._name!r}: {what}: {error}") from None

    @cached_property
    def _result(self) -> JsonShape:
        return self._shape(RETURN, find_hints(self._function))

    def check(self, *, results: bool) -> None:
        """Whether all annotations are known: a worker finds that out before it begins."""
        if self._serializer is None:
            _ = self._shapes
            if results:
                _ = self._result

    def write(self, args: Sequence[Any], kwargs: Mapping[str, Any], results: float | None) -> TaskCall:
        """`Misfit` if they are not what the function takes."""
        bound = self._bind(args, kwargs)
        if self._serializer is not None:
            return TaskCall(self._name, data=dump(self._serializer, (list(args), dict(kwargs))), results=results)
        self._convert(bound, lambda shape: shape.pack)
        return TaskCall(self._name, list(bound.args), bound.kwargs, results=results)

    def read(self, call: TaskCall) -> inspect.BoundArguments:
        if self._serializer is None:
            if call.data is not None:
                raise Misfit("its arguments were written by a serializer, and this task has none")
            bound = self._bind(call.args, call.kwargs)
            self._convert(bound, lambda shape: shape.unpack)
            return bound
        if call.data is None:
            return self._bind(call.args, call.kwargs)
        loaded = load(self._serializer, call.data)
        try:
            args, kwargs = loaded
        except (TypeError, ValueError):
            raise Misfit("the serializer has not answered with the arguments") from None
        return self._bind(args, kwargs)

    def _bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> inspect.BoundArguments:
        try:
            return self._bound.bind(*args, **kwargs)
        except TypeError as error:
            raise Misfit(str(error)) from None

    @limited_depth()
    def _convert(self, bound: inspect.BoundArguments, verb: Callable[[JsonShape], Callable[[Any], Any]]) -> None:
        for name, value in bound.arguments.items():
            convert, kind = verb(self._shapes[name]), self._bound.parameters[name].kind
            if kind is inspect.Parameter.VAR_POSITIONAL:
                bound.arguments[name] = tuple(within(f"{name}[{at}]", convert, each) for at, each in enumerate(value))
            elif kind is inspect.Parameter.VAR_KEYWORD:
                bound.arguments[name] = {key: within(key, convert, each) for key, each in value.items()}
            else:
                bound.arguments[name] = within(name, convert, value)

    @limited_depth()
    def write_result(self, value: Any) -> Any:
        """As JSON has it; bytes, if a serializer has written it."""
        return self._result.pack(value) if self._serializer is None else dump(self._serializer, value)

    @limited_depth()
    def read_result(self, written: Any) -> Any:
        if self._serializer is None:
            return self._result.unpack(written)
        return load(self._serializer, written) if isinstance(written, bytes) else written
