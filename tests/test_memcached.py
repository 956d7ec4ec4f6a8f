"""The memcached store keeps the contract."""

import pytest

from penstock.testing import SharedStoreContract, UngroupedStoreContract
from penstock.testing.forked import Forked
from penstock.testing.interrupted import Interrupted
from penstock.testing.servers import MemcachedServer


class TestMemcached(UngroupedStoreContract, SharedStoreContract, Interrupted, Forked):
    interrupts = (150, 100)

    @pytest.fixture
    def url(self, memcached: MemcachedServer) -> str:
        return memcached.new_url()
