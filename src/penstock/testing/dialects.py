"""The dialect suite: the server in front of any store, assembled from its chapters."""

from __future__ import annotations

from penstock.testing.http import ServerFixtures
from penstock.testing.mqcore import MqCore
from penstock.testing.mqs import MqsMessages, MqsQueues
from penstock.testing.serving import Serving


class DialectContract(MqsQueues, MqsMessages, MqCore, Serving, ServerFixtures):
    """Give it a fixture ``url`` that names a new, empty store."""
