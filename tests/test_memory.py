"""The memory store keeps the contract; it is the specification."""

import pytest

from penstock.testing import StoreContract


class TestMemory(StoreContract):
    @pytest.fixture
    def url(self) -> str:
        return "memory:"
