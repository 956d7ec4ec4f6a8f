"""Move tasks in the SQS dialect, in both protocols, against a live server on each store."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.testing.servers import PostgresqlServer
from penstock.testing.sqs_moves import SqsFifoMoves, SqsMoves

URLS = {"memory": "memory:", "sqlite": "sqlite:///{}/queue.db", "vsqs": "vsqs:///{}/vsqs", "spool": "spool:///{}/spool"}


@pytest.mark.parametrize("store", URLS)
class TestSqsMoves(SqsMoves):
    @pytest.fixture
    def url(self, store: str, tmp_path: Path) -> str:
        return URLS[store].format(tmp_path)


@pytest.mark.parametrize("store", ["memory", "sqlite"])
class TestSqsFifoMoves(SqsFifoMoves):
    @pytest.fixture
    def url(self, store: str, tmp_path: Path) -> str:
        return URLS[store].format(tmp_path)


class TestSqsMovesOnPostgresql(SqsMoves, SqsFifoMoves):
    @pytest.fixture
    def url(self, postgresql: PostgresqlServer) -> str:
        return postgresql.new_url()
