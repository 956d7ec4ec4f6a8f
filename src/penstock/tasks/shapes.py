"""What an annotation says of a value: how it is written as JSON, and how it is read and checked again.

    plain       None, bool, int, float, str, and list, dict, Any of such: as they are
    as text     datetime, date, time, UUID, Decimal; bytes as base64
    as number   timedelta, in seconds
    as values   enums (their value), Literal
    of others   list, tuple, set, dict with text as keys, X | None and other unions, dataclasses

The values of a union must differ in JSON, as a number and a text do: otherwise a reader could not tell which one it has.
"""

from __future__ import annotations

import base64
import dataclasses
import types
import typing
from collections import abc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from functools import lru_cache
from typing import Any
from uuid import UUID

from penstock.errors import BadInput
from penstock.policy import shown

ALL = frozenset({"null", "boolean", "number", "text", "list", "object"})
"""The kinds of values that JSON has."""


class Misfit(ValueError):
    """A value is not what its annotation says."""


@dataclass(frozen=True, slots=True)
class JsonShape:
    """``kinds``: what its values are in JSON; ``plain``: they are written as they are."""

    kinds: frozenset[str]
    pack: Callable[[Any], Any]
    unpack: Callable[[Any], Any]
    plain: bool = False


def kind_of(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int() | float():
            return "number"
        case str():
            return "text"
        case list():
            return "list"
    return "object"


def within(where: str, convert: Callable[[Any], Any], value: object) -> Any:
    """Convert a part of a value, and name the place if that fails."""
    try:
        return convert(value)
    except Misfit as error:
        gap = "" if str(error).startswith(("[", ".")) else ": "
        raise Misfit(f"{where}{gap}{error}") from None


@contextmanager
def limited_depth() -> Iterator[None]:
    """Around the conversion of a whole value."""
    try:
        yield
    except RecursionError:
        raise Misfit("it is nested too deeply") from None


def _is_not(value: object, what: str) -> Misfit:
    return Misfit(f"{shown(value)} is not {what}")


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list):
        return [within(f"[{place}]", _plain, item) for place, item in enumerate(value)]
    if isinstance(value, dict):
        return {_key(name): within(f"[{name!r}]", _plain, item) for name, item in value.items()}
    raise Misfit(
        f"{shown(value)} is a {type(value).__name__}, which JSON does not have: annotate it, if there is a type for it"
    )


def _key(name: object) -> str:
    if not isinstance(name, str):
        raise Misfit(f"the key {shown(name)} is not text")
    return name


def _check(kind: type | types.UnionType, what: str) -> Callable[[Any], Any]:
    def check(value: Any) -> Any:
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise _is_not(value, what)
        return value

    return check


def _scalar(kind: type, what: str, json: str, pack: Callable[[Any], Any], unpack: Callable[[Any], Any]) -> JsonShape:
    check, check_json = _check(kind, what), _check(str if json == "text" else int | float, what)

    def read(raw: Any) -> Any:
        try:
            return unpack(check_json(raw))
        except Misfit:
            raise
        except (ValueError, ArithmeticError):
            raise _is_not(raw, what) from None

    return JsonShape(frozenset({json}), lambda value: pack(check(value)), read)


def _same(json: str, kind: type | types.UnionType, what: str) -> JsonShape:
    check = _check(kind, what)
    return JsonShape(frozenset({json}), check, check, plain=True)


def _date(value: date) -> str:
    if isinstance(value, datetime):
        raise _is_not(value, "a date")
    return value.isoformat()


NOTHING = JsonShape(frozenset({"null"}), _check(types.NoneType, "None"), _check(types.NoneType, "None"), plain=True)
ANYTHING = JsonShape(ALL, _plain, _plain, plain=True)
SCALARS: dict[Any, JsonShape] = {
    None: NOTHING,
    types.NoneType: NOTHING,
    Any: ANYTHING,
    object: ANYTHING,
    bool: _same("boolean", bool, "True or False"),
    int: _same("number", int, "an int"),
    float: _same("number", int | float, "a number"),
    str: _same("text", str, "text"),
    bytes: _scalar(
        bytes, "bytes", "text", lambda value: base64.b64encode(value).decode(), lambda raw: base64.b64decode(raw, validate=True)
    ),
    datetime: _scalar(datetime, "a datetime", "text", datetime.isoformat, datetime.fromisoformat),
    date: _scalar(date, "a date", "text", _date, date.fromisoformat),
    time: _scalar(time, "a time", "text", time.isoformat, time.fromisoformat),
    timedelta: _scalar(timedelta, "a timedelta", "number", timedelta.total_seconds, lambda raw: timedelta(seconds=raw)),
    UUID: _scalar(UUID, "a UUID", "text", str, UUID),
    Decimal: _scalar(Decimal, "a Decimal", "text", str, Decimal),
}
LISTS: dict[Any, type] = {list: list, set: set, frozenset: frozenset, abc.Sequence: list, abc.Set: set}
OBJECTS = (dict, abc.Mapping)


@lru_cache(maxsize=1000)
def find_shape(kind: Any) -> JsonShape:
    """The shape of an annotation; `BadInput` for one that JSON has no place for."""
    if isinstance(kind, typing.NewType):
        return find_shape(kind.__supertype__)
    if kind in SCALARS:
        return SCALARS[kind]
    base, inner = typing.get_origin(kind) or kind, typing.get_args(kind)
    if base in (typing.Union, types.UnionType):
        return _union([find_shape(each) for each in inner], kind)
    if base is typing.Literal:
        return _literal(inner)
    if base is tuple and inner and inner[-1] is not ...:
        return _fixed([find_shape(each) for each in inner if each != ()])
    if base is tuple:
        return _many(tuple, find_shape(inner[0] if inner else Any))
    if base in LISTS:
        return _many(LISTS[base], find_shape(inner[0] if inner else Any))
    if base in OBJECTS:
        return _mapping(*inner or (str, Any))
    if isinstance(kind, type) and issubclass(kind, Enum):
        return _enum(kind)
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        return _dataclass(kind)
    raise BadInput(f"{shown(kind)} cannot be written as JSON: use a dataclass or a plain type, or give the task a serializer")


def _many(kind: type, item: JsonShape) -> JsonShape:
    accepted = list | tuple if kind in (list, tuple) else set | frozenset
    check, check_json = _check(accepted, f"a {kind.__name__}"), _check(list, "a list")

    def convert(values: Any, each: Callable[[Any], Any]) -> list[Any]:
        return [within(f"[{place}]", each, value) for place, value in enumerate(values)]

    def unpack(raw: Any) -> Any:
        try:
            return kind(convert(check_json(raw), item.unpack))
        except TypeError:  # of a set
            raise _is_not(raw, f"a list for a {kind.__name__}") from None

    return JsonShape(frozenset({"list"}), lambda value: convert(check(value), item.pack), unpack)


def _fixed(items: list[JsonShape]) -> JsonShape:
    def convert(values: Any, accepted: tuple[type, ...], packing: bool) -> list[Any]:
        if not isinstance(values, list | tuple) or not isinstance(values, accepted) or len(values) != len(items):
            raise _is_not(values, f"a tuple of {len(items)} values")
        pairs = enumerate(zip(items, values, strict=True))
        return [within(f"[{place}]", item.pack if packing else item.unpack, value) for place, (item, value) in pairs]

    return JsonShape(
        frozenset({"list"}), lambda value: convert(value, (list, tuple), True), lambda raw: tuple(convert(raw, (list,), False))
    )


def _mapping(key: Any, value: Any) -> JsonShape:
    if key is not str and key is not Any:
        raise BadInput(f"a dict with keys of {shown(key)} cannot be written as JSON: its keys are text")
    shape, check = find_shape(value), _check(abc.Mapping, "a dict")

    def convert(values: Any, each: Callable[[Any], Any]) -> dict[str, Any]:
        return {_key(name): within(f"[{name!r:.80}]", each, item) for name, item in check(values).items()}

    return JsonShape(frozenset({"object"}), lambda given: convert(given, shape.pack), lambda raw: convert(raw, shape.unpack))


def _union(parts: list[JsonShape], kind: Any) -> JsonShape:
    readers: dict[str, JsonShape] = {}
    for part in parts:
        for name in part.kinds:
            other = readers.setdefault(name, part)
            if other is not part and not (other.plain and part.plain):
                raise BadInput(f"{shown(kind)} cannot be written as JSON: two of its types are both a {name} there")

    def pack(value: Any) -> Any:
        for part in parts:
            try:
                return part.pack(value)
            except Misfit as error:
                if part is not NOTHING:
                    last = error
        raise last if len(parts) == 2 and NOTHING in parts else _is_not(value, str(kind))

    def unpack(raw: Any) -> Any:
        errors = []
        for part in parts:
            if kind_of(raw) in part.kinds:
                try:
                    return part.unpack(raw)
                except Misfit as error:
                    errors.append(error)
        raise errors[0] if errors else _is_not(raw, str(kind))

    return JsonShape(frozenset(readers), pack, unpack, all(part.plain for part in parts))


def _literal(values: tuple[Any, ...]) -> JsonShape:
    def check(value: Any) -> Any:
        for each in values:
            if type(each) is type(value) and each == value:
                return value
        raise _is_not(value, f"one of {', '.join(map(repr, values))}")

    for value in values:
        if kind_of(value) == "object":
            raise BadInput(f"the literal {shown(value)} cannot be written as JSON")
    return JsonShape(frozenset(map(kind_of, values)), check, check, plain=True)


def _enum(kind: type[Enum]) -> JsonShape:
    values = [within(member.name, _plain, member.value) for member in kind]
    what = f"one of {', '.join(map(repr, values))}"

    def unpack(raw: Any) -> Enum:
        for member, value in zip(kind, values, strict=True):
            if type(value) is type(raw) and value == raw:
                return member
        raise _is_not(raw, what)

    check = _check(kind, f"a {kind.__name__}")
    return JsonShape(frozenset(map(kind_of, values)), lambda value: check(value).value, unpack)


def _dataclass(kind: type) -> JsonShape:
    """The shapes of its fields are found when they are needed, since they may lead back to it."""
    names = [each.name for each in dataclasses.fields(kind) if each.init]

    @lru_cache(maxsize=1)
    def shapes() -> dict[str, JsonShape]:
        hints = find_hints(kind)
        return {name: find_shape(hints[name]) for name in names}

    def pack(value: Any) -> dict[str, Any]:
        if type(value) is not kind:
            raise _is_not(value, f"a {kind.__name__}")
        return {name: within(f".{name}", shape.pack, getattr(value, name)) for name, shape in shapes().items()}

    def unpack(raw: Any) -> Any:
        if not isinstance(raw, dict):
            raise _is_not(raw, f"an object for a {kind.__name__}")
        if unknown := raw.keys() - shapes().keys():
            raise Misfit(f"a {kind.__name__} has no {min(unknown)!r:.80}")
        fields = {name: within(f".{name}", shape.unpack, raw[name]) for name, shape in shapes().items() if name in raw}
        try:
            return kind(**fields)
        except (TypeError, ValueError) as error:
            raise Misfit(f"{error}") from None

    return JsonShape(frozenset({"object"}), pack, unpack)


def find_hints(what: Any) -> dict[str, Any]:
    """The annotations of a function or a class."""
    try:
        return typing.get_type_hints(what)
    except (NameError, TypeError, AttributeError, SyntaxError) as error:
        raise BadInput(f"the annotations of {what!r:.200} cannot be resolved: {error}") from None
