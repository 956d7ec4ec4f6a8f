"""The dialect suite: the server in front of any store, assembled from its chapters."""

from __future__ import annotations

from penstock.testing.http import ServerFixtures
from penstock.testing.mqcore import MqCoreChapter
from penstock.testing.mqs import MqsMessages, MqsQueues
from penstock.testing.selecting import SelectingChapter
from penstock.testing.serving import ServingChapter
from penstock.testing.sqs import SqsQueues


class DialectContract(MqsQueues, MqsMessages, MqCoreChapter, SqsQueues, SelectingChapter, ServingChapter, ServerFixtures):
    """Give it a fixture ``url`` that names a new, empty store."""
