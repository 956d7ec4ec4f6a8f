"""The memory store keeps the contract; it is the specification."""

import pytest

from penstock.testing import StoreContract
from penstock.testing.forked import Forked
from penstock.testing.interrupted import Interrupted


class TestMemory(StoreContract, Interrupted, Forked):
    @pytest.fixture
    def url(self) -> str:
        return "memory:"
