"""Penstock: a durable message queue that runs anywhere Python runs."""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

from penstock.broker import Broker, Listing, open  # noqa: A004
from penstock.errors import (
    BadInput,
    BadMessage,
    BadName,
    BadSetting,
    BadURL,
    ClaimError,
    ClaimLapsed,
    MissingExtra,
    NoResult,
    OutcomeUnknown,
    PenstockError,
    QueueExists,
    QueueNotFound,
    ReaderSetBack,
    ScheduleNotFound,
    SegmentLost,
    StoreBusy,
    StoreClosed,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreUnreachable,
    StoreVersion,
    TaskFailed,
    Unsupported,
    WriterSetBack,
)
from penstock.message import (
    Claim,
    Death,
    Draft,
    Message,
    Mode,
    Receipt,
    Redrive,
    Redriven,
    RetryPolicy,
    Sent,
    Settings,
    State,
    Stats,
)
from penstock.queue.protocol import Queue
from penstock.retries import Reject, Retry
from penstock.workers.consumer import Consumer
from penstock.workers.producer import Producer

if _TYPE_CHECKING:
    from penstock.aio.broker import AsyncBroker, aopen
    from penstock.aio.message import AsyncMessage
    from penstock.aio.queue import AsyncQueue
    from penstock.schedules.schedule import Schedule
    from penstock.tasks.task import Task

__version__ = "0.1.0"

__all__ = [
    "AsyncBroker",
    "AsyncMessage",
    "AsyncQueue",
    "BadInput",
    "BadMessage",
    "BadName",
    "BadSetting",
    "BadURL",
    "Broker",
    "Claim",
    "ClaimError",
    "ClaimLapsed",
    "Consumer",
    "Death",
    "Draft",
    "Listing",
    "Message",
    "MissingExtra",
    "Mode",
    "NoResult",
    "OutcomeUnknown",
    "PenstockError",
    "Producer",
    "Queue",
    "QueueExists",
    "QueueNotFound",
    "ReaderSetBack",
    "Receipt",
    "Redrive",
    "Redriven",
    "Reject",
    "Retry",
    "RetryPolicy",
    "Schedule",
    "ScheduleNotFound",
    "SegmentLost",
    "Sent",
    "Settings",
    "State",
    "Stats",
    "StoreBusy",
    "StoreClosed",
    "StoreCorrupt",
    "StoreError",
    "StoreFull",
    "StoreReadOnly",
    "StoreUnreachable",
    "StoreVersion",
    "Task",
    "TaskFailed",
    "Unsupported",
    "WriterSetBack",
    "aopen",
    "open",
]

_LATER = {
    "AsyncBroker": "aio.broker",
    "AsyncMessage": "aio.message",
    "AsyncQueue": "aio.queue",
    "aopen": "aio.broker",
    "Schedule": "schedules.schedule",
    "Task": "tasks.task",
}
"""What is imported when it is first used: most programs do without asyncio, schedules or tasks."""


def __getattr__(name: str) -> _Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(_import_module(f"penstock.{_LATER[name]}"), name)
