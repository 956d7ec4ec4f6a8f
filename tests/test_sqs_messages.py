"""Messages in the SQS dialect, in both protocols, against a live server on each store."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.testing.servers import PostgresqlServer
from penstock.testing.sqs_receiving import SqsReceiving, SqsSettling
from penstock.testing.sqs_sending import SqsBatches, SqsSending

URLS = {"memory": "memory:", "sqlite": "sqlite:///{}/queue.db", "vsqs": "vsqs:///{}/vsqs", "spool": "spool:///{}/spool"}


class Messages(SqsSending, SqsBatches, SqsReceiving, SqsSettling):
    """What every store keeps."""


@pytest.mark.parametrize("store", URLS)
class TestSqs(Messages):
    @pytest.fixture
    def url(self, store: str, tmp_path: Path) -> str:
        return URLS[store].format(tmp_path)


class TestSqsOnPostgresql(Messages):
    @pytest.fixture
    def url(self, postgresql: PostgresqlServer) -> str:
        return postgresql.new_url()
