"""The memcached store keeps the contract."""

import pytest

from penstock.testing import SharedStoreContract, UngroupedStoreContract
from penstock.testing.forked import Forked
from penstock.testing.servers import MemcachedServer


class TestMemcached(UngroupedStoreContract, SharedStoreContract, Forked):
    @pytest.fixture
    def url(self, memcached: MemcachedServer) -> str:
        return memcached.new_url()
