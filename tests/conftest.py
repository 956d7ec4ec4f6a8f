"""The servers that tests share: started on first use, stopped at the end. In CI a missing server is a failure."""

from __future__ import annotations

import os
import re
import secrets
import sys
import zlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings
from starting import start

from penstock.queue.retention import Tender
from penstock.testing.servers import QUICK_JAVA, DatabaseServer, MariadbServer, MemcachedServer, PostgresqlServer

if TYPE_CHECKING:
    from browser import Windows
    from playwright.sync_api import Browser
    from pyspark.sql import SparkSession

settings.register_profile("busy", deadline=None, suppress_health_check=list(HealthCheck))
settings.load_profile("busy")  # how long an example takes is the machine's affair


def pytest_configure() -> None:
    """One seed for the random plans of a run; the processes that xdist starts inherit it."""
    os.environ.setdefault("PENSTOCK_SEED", str(secrets.randbelow(2**32)))


def pytest_report_header() -> str:
    return f"random plans: PENSTOCK_SEED={os.environ['PENSTOCK_SEED']}"


@pytest.fixture(autouse=True)
def cleared_at_once(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test sees depends on its own calls: its brokers clear queues in them. Child processes do so in threads."""
    if request.path.name != "test_retention.py":
        monkeypatch.setattr("penstock.broker.Tender", lambda *, beside: Tender(beside=False))


@pytest.fixture(autouse=True)
def only_requests(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a test's own requests use the store, so that it can count them: its servers do not look for jobs or schedules, and
    write no history of queues."""
    runner = sys.modules.get("penstock.server.jobs.runner")
    if runner is not None and not request.path.name.startswith(("test_sqs_", "test_jobs", "test_page")):
        monkeypatch.setattr(runner.JobRunner, "start", lambda _: None)
    scheduling = sys.modules.get("penstock.server.scheduling")
    if scheduling is not None and not request.path.name.startswith(("test_schedules", "test_page_browser")):
        monkeypatch.setattr(scheduling.Scheduling, "start", lambda _: None)
    history = sys.modules.get("penstock.server.page.history")
    if history is not None and not request.path.name.startswith("test_page"):
        monkeypatch.setattr(history.QueueHistory, "start", lambda _: None)


@pytest.fixture(scope="session")
def postgresql() -> Iterator[DatabaseServer]:
    yield from start(PostgresqlServer)


@pytest.fixture(scope="session")
def mariadb() -> Iterator[DatabaseServer]:
    yield from start(MariadbServer)


@pytest.fixture(scope="session")
def memcached() -> Iterator[MemcachedServer]:
    yield from start(MemcachedServer)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """One session for all tests in this process, since it is slow to start."""
    from penstock.spark.session import session

    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    found = session(
        "local[2]",
        name="tests",
        spark__sql__shuffle__partitions="2",
        spark__sql__warehouse__dir=str(tmp_path_factory.mktemp("warehouse")),
        spark__local__dir=str(tmp_path_factory.mktemp("spark")),
        spark__sql__streaming__pollingDelay="10ms",
        spark__driver__extraJavaOptions=QUICK_JAVA,
    )
    found.sparkContext.setLogLevel("OFF")
    yield found
    found.stop()


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """Of one module: its event loop must not be there for tests of others."""
    from browser import chromium

    with chromium() as found:
        yield found


@pytest.fixture
def windows(chromium: Browser) -> Iterator[Windows]:
    from browser import windows

    with windows(chromium) as opened:
        yield opened


SERVERS = {"chromium", "postgresql", "mariadb", "memcached"}
WITH_SERVERS = {
    "test_bench",
    "test_bench_brokers",
    "test_bench_sqs",
    "test_celery",
    "test_django",
    "test_docs",
    "test_dramatiq",
    "test_kombu",
    "test_mysql",
    "test_nodes",
    "test_postgresql",
    "test_server_faults",
    "test_sqs_celery",
    "test_sqs_clients",
}
"""Modules that start servers, or need other programs, without a fixture that shows it."""
CONTRACTS = {f"test_{name}" for name in ["memory", "sqlite", "vsqs", "spool", "postgresql", "mysql", "memcached", "dialects"]}
"""Modules whose tests share nothing but a server, so that any worker may run any of them."""
PORTION = 20
SLOW = (
    "each_message_comes_once",
    "killed_at",
    "killed_between",
    "killed_and_frozen",
    "where_a_system_call_fails",
    "an_interrupt_at_any_instant",
    "a_signal_at_any_moment",
    "a_signal_handler_that_sends",
    "random_calls",
    "cancellations_at_random",
    "after_kill_9",
    "power_cut",
    "children_forked",
    "get_each_message_once",
    "does_not_grow_the_disk",
    "damaged_file",
    "examples_of_the_manual",
    "fuzzing_finds",
    "lease_is_extended_while",
    "a_stranger",
    "of_a_busy_store",
    "a_store_in_use",
    "what_is_wrong_with_rows",
    "celery_promises",
)
"""Words in the names of tests that take more than a few seconds on some store."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests that are slow or need a server or Spark, and group what one xdist worker must run together.

    A worker takes a group at a time, in the order of the list. The longest come first, so that none is left for the end."""
    weights: dict[str, int] = {}
    places: dict[str, int] = {}
    for item in items:
        module = item.path.stem
        params = getattr(getattr(item, "callspec", None), "params", {}).values()
        needed = {*getattr(item, "fixturenames", ()), *(value for value in params if isinstance(value, str))}
        slow = any(words in item.name for words in SLOW)
        if "spark" in item.path.parts:
            item.add_marker(pytest.mark.spark)
            # A timeout in the middle of a call leaves Spark's connection with an answer unread: all later tests would fail.
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(900))
            shares = "spark" in needed
            group, weight = (f"spark {zlib.crc32(module.encode()) % 2}", 4) if shares else (module, 3)
        elif module in CONTRACTS:
            place = places[module] = places.get(module, 0) + 1
            group, weight = (
                (f"{module} {re.sub('[^a-z0-9_]', ' ', item.name)}", 2) if slow else (f"{module} {place // PORTION}", 0)
            )
        else:
            group, weight = module, 1
        if slow:
            item.add_marker(pytest.mark.slow)
        if SERVERS & needed or module in WITH_SERVERS or "memcached" in module:
            item.add_marker(pytest.mark.server)
        item.add_marker(pytest.mark.xdist_group(group))
        weights[item.nodeid] = weight
    items.sort(key=lambda item: -weights[item.nodeid])
