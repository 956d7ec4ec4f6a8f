"""The faults that are planted, a file for each part of the code."""

from __future__ import annotations

from planted import Mutant

from faults import (
    access,
    aio,
    contrib,
    control,
    databases,
    files,
    memcached,
    operations,
    others,
    page,
    page_data,
    page_messages,
    page_views,
    retries,
    schedules,
    service,
    setup,
    sinks,
    spark,
    sqlite,
    sqs,
    sqs_messages,
    sqs_moves,
    sqs_queues,
    tasks,
    workers,
)

PARTS = (
    access,
    aio,
    contrib,
    control,
    databases,
    files,
    memcached,
    operations,
    others,
    page,
    page_data,
    page_messages,
    page_views,
    retries,
    schedules,
    service,
    setup,
    sinks,
    spark,
    sqlite,
    sqs,
    sqs_messages,
    sqs_moves,
    sqs_queues,
    tasks,
    workers,
)
MUTANTS: list[Mutant] = [fault for part in PARTS for fault in part.FAULTS]
