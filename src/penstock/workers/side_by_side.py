"""Several consumers in one process, each in a thread of its own."""

from __future__ import annotations

import signal
from collections.abc import Generator, Sequence
from dataclasses import asdict
from threading import Thread, current_thread, main_thread

from penstock.guarded import guarded
from penstock.workers.consumer import Consumer, Tally


def run_all(consumers: Sequence[Consumer], *, until_empty: bool = False) -> Tally:
    """Work until one of them is stopped, or SIGTERM or Ctrl-C arrives; what one of them raises ends all. With ``until_empty``,
    until a round of all has found nothing: a callback may send to a queue that was empty. Returns what was done in all."""
    if len(consumers) == 1:
        return consumers[0].run(until_empty=until_empty)
    errors: list[BaseException] = []

    def run(consumer: Consumer) -> None:
        try:
            consumer.run(until_empty=until_empty)
        except BaseException as error:  # it is raised in the caller's thread
            errors.append(error)
        if errors or not until_empty:
            for each in consumers:
                each.stop()

    with _stopped_by_signals(consumers):
        while True:
            before = total(consumers)
            threads = [Thread(target=run, args=(each,), name=f"consumer of {each.queue.name}") for each in consumers]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            if errors:
                raise errors[0]
            tally = total(consumers)
            if not until_empty or tally == before or any(each.stopped for each in consumers):
                return tally


def total(consumers: Sequence[Consumer]) -> Tally:
    tallies = [asdict(each.tally) for each in consumers]
    return Tally(**{name: sum(tally[name] for tally in tallies) for name in asdict(Tally())})


@guarded
def _stopped_by_signals(consumers: Sequence[Consumer]) -> Generator[None]:
    if current_thread() is not main_thread():
        yield
        return

    def stop(*_: object) -> None:
        for consumer in consumers:
            consumer.stop()

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
