"""The SQLite store keeps the contract: between threads and processes, through kill -9 and power loss."""

from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.testing import DurableStoreContract, SharedStoreContract, StoreContract
from penstock.testing.forked import Forked
from penstock.testing.interrupted import Handled, Interrupted
from penstock.testing.port_model import PortModel


class TestSqlite(StoreContract, SharedStoreContract, DurableStoreContract, PortModel, Interrupted, Handled, Forked):
    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        return f"sqlite:///{tmp_path}/queue.db"

    @pytest.fixture
    def make_url_in(self) -> Callable[[Path], str]:
        return lambda folder: f"sqlite:///{folder}/queue.db"
