"""Who calls a store: the program, or a signal handler that interrupted a call of the same thread.

If a handler sends while its thread is in a batch, the send would join that batch and return before the commit. So the store
refuses it. It recognises a handler by the stack: between the verb and the function that opened the batch, a function is running
that is registered as a handler.
"""

from __future__ import annotations

import inspect
import signal
import sys
from functools import partial
from threading import get_ident, main_thread
from types import CodeType, FrameType
from typing import Any

from penstock.errors import StoreBusy

INSIDE = ("penstock.stores.", "penstock.guarded", "penstock.patience")


def find_caller() -> FrameType | None:
    """The frame that called the store; None in threads where no signal handler runs."""
    if get_ident() != main_thread().ident:
        return None
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and str(frame.f_globals.get("__name__")).startswith(INSIDE):
        frame = frame.f_back
    return frame


def refuse_handlers(store: object, opener: FrameType | None) -> None:
    """In a verb that would join an open batch of this thread: raises `StoreBusy` if a signal handler called it."""
    frame = find_caller() if opener is not None else None
    while frame is not None and frame is not opener:
        if _is_foreign(frame) and _is_handler(frame.f_code):
            raise StoreBusy(
                f"{store} is in the middle of a call of this very thread, which a signal handler has interrupted; nothing was "
                "done. Use the store after the handler has returned, or from another thread"
            )
        frame = frame.f_back


def _is_foreign(frame: FrameType) -> bool:
    name = str(frame.f_globals.get("__name__"))
    return not name.startswith("penstock.") or name.startswith("penstock.testing") or name == "__main__"


def _is_handler(code: CodeType) -> bool:
    for number in signal.valid_signals():
        handler: Any = signal.getsignal(number)
        while isinstance(handler, partial):
            handler = handler.func
        if callable(handler) and not inspect.isroutine(handler):
            handler = type(handler).__call__
        if getattr(handler, "__code__", None) is code:
            return True
    return False
