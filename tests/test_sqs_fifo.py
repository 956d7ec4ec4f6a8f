"""FIFO queues in the SQS dialect, in both protocols, against a live server on each store with groups."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.testing.servers import PostgresqlServer
from penstock.testing.sqs_fifo import SqsFifoReceiving, SqsFifoSending, SqsWithoutGroups

URLS = {"memory": "memory:", "sqlite": "sqlite:///{}/queue.db", "vsqs": "vsqs:///{}/vsqs", "spool": "spool:///{}/spool"}


@pytest.mark.parametrize("store", ["memory", "sqlite"])
class TestFifo(SqsFifoSending, SqsFifoReceiving):
    @pytest.fixture
    def url(self, store: str, tmp_path: Path) -> str:
        return URLS[store].format(tmp_path)


class TestFifoOnPostgresql(SqsFifoSending, SqsFifoReceiving):
    @pytest.fixture
    def url(self, postgresql: PostgresqlServer) -> str:
        return postgresql.new_url()


@pytest.mark.parametrize("store", ["vsqs", "spool"])
class TestWithoutGroups(SqsWithoutGroups):
    @pytest.fixture
    def url(self, store: str, tmp_path: Path) -> str:
        return URLS[store].format(tmp_path)
