"""The MySQL store keeps the contract, on MariaDB: between threads, processes and nodes, and through kill -9."""

import pytest

from penstock.testing import SharedStoreContract, StoreContract
from penstock.testing.forked import Forked
from penstock.testing.interrupted import Handled, Interrupted
from penstock.testing.port_model import PortModel
from penstock.testing.servers import MariadbServer


class TestMariadb(StoreContract, SharedStoreContract, PortModel, Interrupted, Handled, Forked):
    interrupts = (150, 100)
    handled = 150

    @pytest.fixture
    def url(self, mariadb: MariadbServer) -> str:
        return mariadb.new_url()
