"""The dialect suite: the server in front of any store, assembled from its chapters."""

from __future__ import annotations

from penstock.testing.http import ServerFixtures
from penstock.testing.mqcore import MqCoreChapter
from penstock.testing.mqs import MqsMessages, MqsQueues
from penstock.testing.serving import ServingChapter


class DialectContract(MqsQueues, MqsMessages, MqCoreChapter, ServingChapter, ServerFixtures):
    """Give it a fixture ``url`` that names a new, empty store."""
