"""Dramatiq, on each of its brokers."""

from __future__ import annotations

import dramatiq

from penstock.bench.frameworks.apps.surroundings import address, kind, note

REDIS = "redis"

if kind() == REDIS:
    from dramatiq.brokers.redis import RedisBroker

    broker = RedisBroker(url=address())
else:
    from penstock.contrib.dramatiq import PenstockBroker

    broker = PenstockBroker(address())
dramatiq.set_broker(broker)


@dramatiq.actor  # type: ignore[untyped-decorator]
def empty() -> None:
    note()


def send() -> None:
    empty.send()
