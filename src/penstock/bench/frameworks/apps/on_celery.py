"""Celery, on each of its brokers. Tasks are acknowledged late, after they ran: otherwise every broker loses what a killed
worker was doing."""

from __future__ import annotations

from celery import Celery

from penstock.bench.frameworks.apps.surroundings import address, kind, note

RABBITMQ = "rabbitmq"

app = Celery("bench", broker=address(), set_as_current=False)
app.conf.update(
    task_acks_late=True,
    task_ignore_result=True,
    worker_hijack_root_logger=False,
    broker_connection_retry_on_startup=True,
    # Without confirms, a send to RabbitMQ waits for nothing.
    broker_transport_options={"confirm_publish": True} if kind() == RABBITMQ else {},
)


@app.task(name="empty")  # type: ignore[untyped-decorator]
def empty() -> None:
    note()


def send() -> None:
    empty.delay()
