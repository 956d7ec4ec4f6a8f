"""How the command line is read: the parser that all commands share, and the values that options take."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, NoReturn, Protocol

from penstock.broker import Broker
from penstock.errors import BadInput

StoreCommand = Callable[[argparse.Namespace, Broker], int]
PlainCommand = Callable[[argparse.Namespace], int]
"""A command that opens the store itself, if it needs one."""


class Parser(argparse.ArgumentParser):
    """Options may stand anywhere among the arguments, and a mistake is one line like every other error."""

    _mixing = False

    def error(self, message: str) -> NoReturn:
        raise BadInput(f"{message} (see: {self.prog} --help)")

    def parse_known_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        # `send jobs --delay 5 hello`: argparse gives up on BODY at the first option, unless it is told to mix. Mixing calls
        # this method again, and cannot be done by a parser of subcommands.
        if self._mixing or self._subparsers is not None:
            return super().parse_known_args(args, namespace)
        self._mixing = True
        try:
            return self.parse_known_intermixed_args(args, namespace)
        finally:
            self._mixing = False


class Commands(Protocol):
    def __call__(self, name: str, run: StoreCommand, help: str) -> Parser: ...


class PlainCommands(Protocol):
    def __call__(self, name: str, run: PlainCommand, help: str) -> Parser: ...


def seconds(text: str) -> float:
    try:
        return int(text)
    except ValueError:
        return float(text)


def deadline(text: str) -> float | datetime:
    try:
        return seconds(text)
    except ValueError:
        pass
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is neither seconds nor a time such as 2030-01-31T12:00Z") from None


def deduplication(text: str) -> bool | float:
    if text in ("off", "on"):
        return text == "on"
    try:
        return seconds(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not off, on or a number of seconds") from None


def redrive(text: str) -> tuple[str, int]:
    name, _, receives = text.rpartition(":")
    try:
        return name, int(receives)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not DLQ:N, such as jobs-dead:5") from None


def retry(text: str) -> dict[str, Any]:
    """The fields of a retry policy; the rules check their values."""
    found: dict[str, Any] = {}
    for part in text.split(","):
        name, equals, value = part.strip().partition("=")
        if not equals or name in found:
            raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE,…, such as attempts=5,delay=2,curve=linear")
        try:
            found[name] = value if name == "curve" else None if value == "none" else seconds(value)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r}: {value!r} is not a number") from None
    return found


def label(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=TEXT")
    return name, value
