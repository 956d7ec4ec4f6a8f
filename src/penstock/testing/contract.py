"""The whole contract, assembled from its chapters."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import penstock
from penstock.broker import Broker
from penstock.queue.protocol import Queue
from penstock.testing.awaiting import Awaiting
from penstock.testing.cancelling import Cancelling, CancellingGroups, CancellingInside
from penstock.testing.catalogue import CatalogueChapter
from penstock.testing.claims import Claims
from penstock.testing.claims_at_once import ClaimsAtOnce
from penstock.testing.clock import FakeClock
from penstock.testing.consuming import Consuming, Producing
from penstock.testing.crashes import Crashes
from penstock.testing.duplicates import Duplicates, SetsChapter
from penstock.testing.file_crashes import FileCrashes
from penstock.testing.finding import Finding
from penstock.testing.groups import Groups, GroupsRefused
from penstock.testing.history import HistoryChapter
from penstock.testing.holding import Holding
from penstock.testing.limiting import Limiting, LimitingAcross, LimitingGroups, LimitingLive
from penstock.testing.model import Model
from penstock.testing.pausing import Pausing, PausingAcross, PausingInside, PausingLive
from penstock.testing.power import PowerLoss
from penstock.testing.publish_crashes import PublishCrashes
from penstock.testing.publishing import PublishingChapter, StagedSegments
from penstock.testing.races import ProcessRaces, ThreadRaces
from penstock.testing.receiving import ReceivingChapter
from penstock.testing.redriving import Redriving, RedrivingGroups
from penstock.testing.refusals import Refusals
from penstock.testing.retrying import Retrying, RetryingAcross, RetryingGroups
from penstock.testing.scheduling import SchedulesAcross, Scheduling
from penstock.testing.sending import SendingChapter
from penstock.testing.settling import SettlingChapter
from penstock.testing.stepping import Stepping, SteppingAcross
from penstock.testing.steps import StepCrashes
from penstock.testing.tasking import Tasking, TaskingAcross, TaskingInside
from penstock.testing.together import Together
from penstock.testing.unique import Unique, UniqueGroups, UniqueLive
from penstock.testing.waking import Waking, WakingAcross


class Fixtures:
    @pytest.fixture
    def clock(self) -> FakeClock:
        return FakeClock()

    @pytest.fixture
    def broker(self, url: str, clock: FakeClock) -> Iterator[Broker]:
        with penstock.open(url, clock=clock) as broker:
            yield broker

    @pytest.fixture
    def queue(self, broker: Broker) -> Queue:
        return broker.create("orders")


class _Contract(
    CatalogueChapter,
    SendingChapter,
    ReceivingChapter,
    SettlingChapter,
    Holding,
    Finding,
    Pausing,
    PausingLive,
    PausingInside,
    Cancelling,
    CancellingInside,
    Unique,
    UniqueLive,
    Limiting,
    LimitingLive,
    Duplicates,
    SetsChapter,
    Redriving,
    HistoryChapter,
    Claims,
    ClaimsAtOnce,
    PublishingChapter,
    StagedSegments,
    Refusals,
    Waking,
    Awaiting,
    ThreadRaces,
    Model,
    Producing,
    Consuming,
    Retrying,
    Scheduling,
    Tasking,
    TaskingInside,
    Stepping,
    Fixtures,
):
    """What every store does."""


class StoreContract(
    _Contract, Groups, Together, RedrivingGroups, RetryingGroups, CancellingGroups, UniqueGroups, LimitingGroups
):
    """The whole contract; give it a fixture ``url`` that names a new, empty store."""


class UngroupedStoreContract(_Contract, GroupsRefused):
    """The contract of a store that does not support ordered groups."""


class SharedStoreContract(
    ProcessRaces,
    Crashes,
    WakingAcross,
    PausingAcross,
    LimitingAcross,
    RetryingAcross,
    SchedulesAcross,
    TaskingAcross,
    SteppingAcross,
):
    """The contract of a store that several processes may open at the same ``url``."""


class DurableStoreContract(StepCrashes, PowerLoss):
    """The contract of a store that writes files.

    It takes a fixture ``make_url_in``, which names a new store in a folder."""


class FilesStoreContract(FileCrashes, PublishCrashes, PowerLoss):
    """The contract of a store that keeps each message in a file, so that a batch is not atomic.

    It takes a fixture ``make_url_in``, which names a new store in a folder."""

    @pytest.fixture(autouse=True)
    def _no_wait_for_locks(self, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
        """A sender adds the time that it waited for the queue's lock to the clock. Random calls use a fake clock, and on a busy
        machine those real milliseconds would order ids differently from the plan."""
        if "random_calls" in request.node.name:
            monkeypatch.setattr("penstock.stores.files.sending.micros", lambda _: 0)
