"""The dialect suite, against a live server on each store that serves one machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.broker import STORES
from penstock.testing import DialectContract

URLS = {"memory": "memory:", "sqlite": "sqlite:///{}/queue.db", "vsqs": "vsqs:///{}/vsqs", "spool": "spool:///{}/spool"}


@pytest.mark.parametrize("store", [name for name in URLS if name in STORES])
class TestDialects(DialectContract):
    @pytest.fixture
    def url(self, store: str, tmp_path: Path) -> str:
        return URLS[store].format(tmp_path)
