"""The memcached store keeps the contract."""

import pytest

from penstock.testing import SharedStoreContract, UngroupedStoreContract
from penstock.testing.forked import Forked
from penstock.testing.interrupted import Handled, Interrupted
from penstock.testing.servers import MemcachedServer


class TestMemcached(UngroupedStoreContract, SharedStoreContract, Interrupted, Handled, Forked):
    by_arrival = True

    interrupts = (300, 200)

    @pytest.fixture
    def url(self, memcached: MemcachedServer) -> str:
        return memcached.new_url()
