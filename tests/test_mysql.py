"""The MySQL store keeps the contract, on MariaDB: between threads, processes and nodes, and through kill -9."""

import pytest

from penstock.testing import SharedStoreContract, StoreContract
from penstock.testing.servers import MariadbServer


class TestMariadb(StoreContract, SharedStoreContract):
    @pytest.fixture
    def url(self, mariadb: MariadbServer) -> str:
        return mariadb.new_url()
