"""Clients of Amazon SQS as their users have them, unmodified, against `penstock serve` on SQLite."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqs_clients import NEW, NODE, OLD, require_clients, run
from test_serve import serving


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One server for all: each program has queues of its own."""
    require_clients()
    store = tmp_path_factory.mktemp("sqs") / "queue.db"
    with serving(f"sqlite:///{store}", "--access-log", "off") as (_, url):
        yield url


@pytest.mark.parametrize(
    ("interpreter", "program"),
    [
        pytest.param(NEW, "with_boto3.py", id="boto3, JSON"),
        pytest.param(OLD, "with_boto3.py", id="boto3 1.26, Query"),
        pytest.param(NEW, "with_aiobotocore.py", id="aiobotocore"),
        pytest.param(NEW, "with_aws_cli.py", id="aws CLI"),
        pytest.param(NEW, "with_kombu.py", id="kombu"),
        pytest.param(NEW, "with_dramatiq.py", id="dramatiq-sqs"),
        pytest.param(NEW, "with_pyqs.py", id="pyqs"),
        pytest.param(NODE, "with_javascript.mjs", id="client-sqs, sqs-consumer and sqs-producer"),
    ],
)
def test_a_client_of_sqs_finds_what_it_expects(interpreter: Path, program: str, url: str, tmp_path: Path) -> None:
    run(interpreter, program, url, tmp_path)
