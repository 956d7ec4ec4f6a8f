"""Keeps trying while a store is busy or away, so that an outage of some seconds does not end a stream."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from penstock.errors import OutcomeUnknown, StoreBusy, StoreError, StoreUnreachable
from penstock.patience import Patience

logger = logging.getLogger("penstock.spark")

Answer = TypeVar("Answer")
Passed = ParamSpec("Passed")
AWAY = (StoreBusy, StoreUnreachable, OutcomeUnknown)
PATIENCE = Patience(60)
"""For how many seconds to try again."""
PAUSE, LONGEST_PAUSE = 0.5, 5.0


def insist(act: Callable[[], Answer]) -> Answer:
    """The answer of ``act``, which is safe to repeat."""
    away: StoreError | None = None
    for _ in PATIENCE.tries(PAUSE, LONGEST_PAUSE):
        try:
            return act()
        except AWAY as error:
            if away is None:
                logger.warning("%s; trying again for up to %d seconds", error, PATIENCE.timeout)
            away = error
    assert away is not None
    raise away


def insistent(act: Callable[Passed, Answer]) -> Callable[Passed, Answer]:
    """`insist`, around every call of a function."""

    @functools.wraps(act)
    def call(*args: Passed.args, **kwargs: Passed.kwargs) -> Answer:
        return insist(lambda: act(*args, **kwargs))

    return call
