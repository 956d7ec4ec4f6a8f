"""The SQLite store keeps the contract, also between processes."""

from pathlib import Path

import pytest

from penstock.testing import SharedStoreContract, StoreContract


class TestSqlite(StoreContract, SharedStoreContract):
    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        return f"sqlite:///{tmp_path}/queue.db"
