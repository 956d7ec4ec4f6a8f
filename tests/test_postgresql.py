"""The PostgreSQL store keeps the contract: between threads, processes and nodes, and through kill -9."""

import pytest

from penstock.testing import SharedStoreContract, StoreContract
from penstock.testing.servers import PostgresqlServer


class TestPostgresql(StoreContract, SharedStoreContract):
    @pytest.fixture
    def url(self, postgresql: PostgresqlServer) -> str:
        return postgresql.new_url()
