"""Every error that Penstock raises; nothing foreign leaks through the public API.

PenstockError
├── BadInput (ValueError)         the caller's value is wrong; nothing was changed
│   ├── BadName                   a queue's, reader's or group's name
│   ├── BadSetting                a queue setting
│   ├── BadMessage                a body, an attribute, a delay, …
│   └── BadURL                    a store's address
├── QueueNotFound (LookupError)
├── ScheduleNotFound (LookupError)
├── QueueExists
├── Unsupported                   this store cannot do that
├── ClaimError
│   ├── ClaimLapsed               a tentative claim was not confirmed in time; its messages are visible again
│   └── ReaderSetBack             a reader asks for an epoch that it has already settled
├── WriterSetBack                 a writer publishes other messages as a batch that it has published already
├── TaskFailed                    a task whose result is asked for has failed for good
├── NoResult (TimeoutError)       a task has no result yet, or none any more
├── StoreError                    the storage below failed; the operation did not succeed
│   ├── StoreBusy                 another process held a lock for too long
│   ├── StoreFull                 no space left
│   ├── SegmentLost               a staged segment of a batch is missing or incomplete; nothing was published
│   ├── StoreReadOnly
│   ├── StoreCorrupt
│   ├── StoreVersion              written by a newer Penstock
│   ├── StoreUnreachable          no connection to the server, or it was lost; nothing was done
│   ├── OutcomeUnknown            the connection was lost before the answer came, and the outcome could not be determined
│   └── StoreClosed
└── MissingExtra (ImportError)    an optional library is not installed
"""


class PenstockError(Exception):
    """The root of the tree."""


class BadInput(PenstockError, ValueError):
    pass


class BadName(BadInput):
    pass


class BadSetting(BadInput):
    pass


class BadMessage(BadInput):
    pass


class BadURL(BadInput):
    pass


class QueueNotFound(PenstockError, LookupError):
    def __init__(self, name: str) -> None:
        super().__init__(f"there is no queue {name!r}")
        self.name = name


class ScheduleNotFound(PenstockError, LookupError):
    def __init__(self, name: str) -> None:
        super().__init__(f"there is no schedule {name!r}")
        self.name = name


class QueueExists(PenstockError):
    def __init__(self, name: str) -> None:
        super().__init__(f"queue {name!r} already exists")
        self.name = name


class Unsupported(PenstockError):
    pass


class ClaimError(PenstockError):
    pass


class ClaimLapsed(ClaimError):
    pass


class ReaderSetBack(ClaimError):
    pass


class WriterSetBack(PenstockError):
    pass


class TaskFailed(PenstockError):
    pass


class NoResult(PenstockError, TimeoutError):
    pass


class StoreError(PenstockError):
    pass


class StoreBusy(StoreError):
    pass


class StoreFull(StoreError):
    pass


class SegmentLost(StoreError):
    pass


class StoreReadOnly(StoreError):
    pass


class StoreCorrupt(StoreError):
    pass


class StoreVersion(StoreError):
    pass


class StoreUnreachable(StoreError):
    pass


class OutcomeUnknown(StoreError):
    pass


class StoreClosed(StoreError):
    pass


class MissingExtra(PenstockError, ImportError):
    def __init__(self, what: str, extra: str) -> None:
        super().__init__(f'{what} needs an optional library: pip install "penstock[{extra}]"')
        self.extra = extra
