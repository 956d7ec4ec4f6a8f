"""Faults under frameworks: what their workers hold, acknowledge and route."""

from __future__ import annotations

from planted import Mutant


def kombu(name: str, tests: str, *changes: tuple[str, str, str]) -> Mutant:
    return Mutant(name, tests, changes, ("tests/test_kombu.py",))


def dramatiq(name: str, tests: str, *changes: tuple[str, str, str]) -> Mutant:
    return Mutant(name, tests, changes, ("tests/test_dramatiq.py",))


def django(name: str, tests: str, *changes: tuple[str, str, str]) -> Mutant:
    return Mutant(name, tests, changes, ("tests/test_django.py",))


def traced(name: str, tests: str, *changes: tuple[str, str, str]) -> Mutant:
    return Mutant(name, tests, changes, ("tests/test_opentelemetry.py",))


FAULTS = [
    kombu(
        "a worker of a framework extends no lease",
        "lease_is_extended",
        ("contrib/keeping.py", "            leases.renew()\n", "            pass\n"),
    ),
    kombu(
        "a busy consumer of kombu receives one message at a time",
        "when_half_of",
        ("contrib/kombu/channel.py", "max(0.0, patience))", "0.0)"),
    ),
    kombu(
        "a busy consumer of kombu runs out of messages before it receives again",
        "when_half_of",
        ("contrib/kombu/channel.py", "(most + 1) // 2", "most"),
    ),
    kombu(
        "a consumer of kombu is not woken when there is room again",
        "when_half_of",
        ("contrib/kombu/channel.py", "self._room(intake) >= intake.enough for", "self._room(intake) > intake.enough for"),
    ),
    kombu(
        "a consumer of kombu that has ended takes the next reply",
        "has_ended_leaves",
        ("contrib/kombu/intake.py", "            release(queue, messages)\n            return []\n", "            pass\n"),
    ),
    kombu(
        "acknowledgements are dropped while the server is away",
        "acknowledgements_wait",
        ("contrib/keeping.py", "left += [(settle, message) for message in messages]", "pass"),
    ),
    kombu(
        "a forked child settles what its parent holds",
        "forked_child",
        ("contrib/kombu/channel.py", "            self._unacked.clear()\n", ""),
    ),
    kombu(
        "a task that is due later is delivered at once",
        "every_store and memory",
        ("contrib/kombu/envelope.py", 'delay=_delay(headers.get("eta"), now)', "delay=None"),
    ),
    kombu(
        "more is held than prefetched",
        "as_many_are_held",
        (
            "contrib/kombu/channel.py",
            "room if intake.no_ack or not self._prefetch else min(room, self._prefetch - self._used)",
            "room",
        ),
    ),
    kombu(
        "a closed channel keeps what waits in its inbox",
        "closed_channel",
        ("contrib/kombu/channel.py", "left = self.connection.inbox.remove(intake)", "left = []"),
    ),
    kombu(
        "a closed channel keeps what was not acknowledged",
        "closed_channel",
        (
            "contrib/kombu/channel.py",
            "        for tag in list(self._unacked):\n            self._answer(tag, release)\n        if self.connection",
            "        if self.connection",
        ),
    ),
    kombu(
        "a purge also removes what consumers hold",
        "purge_leaves",
        ("contrib/kombu/channel.py", 'found.peek(LOOK, state="queued")', "found.peek(LOOK)"),
    ),
    kombu(
        "a late reply makes a queue that nobody reads",
        "gets_tasks_only",
        ("contrib/kombu/channel.py", '            if "task" in message["headers"]:\n', "            if True:\n"),
    ),
    kombu(
        "a consumer whose queue was deleted waits for ever",
        "deleted_under_its_consumer",
        ("contrib/kombu/intake.py", "                self.owner.declare_again(self.name)\n", "                pass\n"),
    ),
    kombu(
        "a queue that somebody reads expires",
        "queues_expire",
        ("contrib/kombu/bindings.py", "pulse.at - pulse.due_at > max(binding.expires, LEAST_EXPIRES) * SECOND", "True"),
    ),
    kombu(
        "queues without readers are kept for ever",
        "queues_expire",
        ("contrib/kombu/bindings.py", "pulse.at - message.sent_at > max(binding.expires, FORGOTTEN_AFTER) * SECOND", "False"),
    ),
    kombu(
        "an error in a callback stops the deliveries to an event loop",
        "error_in_a_callback",
        ("contrib/kombu/transport.py", "            if len(self.inbox):\n                self._ring()\n", "            pass\n"),
    ),
    kombu(
        "old events are delivered",
        "old_event",
        ("contrib/kombu/channel.py", "        if not self._is_old(intake.name, message):\n", "        if True:\n"),
    ),
    kombu(
        "two names of kombu become one",
        "queue_of_its_own",
        ("contrib/kombu/bindings.py", ' and "%" not in queue', ""),
    ),
    kombu(
        "kombu does not know the scheme",
        "without_an_import",
        (
            "contrib/kombu/__init__.py",
            '"penstock.contrib.kombu.transport:Transport"',
            '"penstock.contrib.kombu.transport:None"',
        ),
    ),
    dramatiq(
        "a delayed message of Dramatiq is visible at once",
        "only_when_it_is_due",
        ("contrib/dramatiq.py", "delay=None if delay is None else max(0, delay) / MILLISECONDS", "delay=None"),
    ),
    dramatiq(
        "a dead letter of Dramatiq is only deleted",
        "every_store and memory",
        ("contrib/dramatiq.py", "dead.send_many([letter], ", "dict(letter=letter, "),
    ),
    dramatiq(
        "an actor's message comes again while it runs",
        "lease_is_extended",
        ("contrib/dramatiq.py", "        self._keeper.hold(messages)\n", ""),
    ),
    dramatiq(
        "a consumer of Dramatiq holds more than it may",
        "no_more_than_it_may",
        ("contrib/dramatiq.py", "            room = self._prefetch - len(self._out)\n", "            room = self._prefetch\n"),
    ),
    dramatiq(
        "a consumer of Dramatiq keeps what nobody has",
        "no_more_than_it_may",
        ("contrib/dramatiq.py", "        self._keeper.done(release, *left)\n", ""),
    ),
    dramatiq(
        "a worker of Dramatiq ends before all is settled",
        "no_more_than_it_may",
        ("contrib/dramatiq.py", "        self._keeper.flush()\n", ""),
    ),
    Mutant(
        "what has not begun is given back when something has ended",
        "not_begun_is_given_back",
        (("workers/executors.py", "        return cancelled or (wait(", "        return (wait("),),
        ("tests/test_runners.py",),
    ),
    Mutant(
        "a coroutine that has not begun is given back when another has ended",
        "not_begun_is_given_back",
        (("workers/executors.py", "        self._loop.call_soon_threadsafe(self._cancel_waiting)\n", ""),),
        ("tests/test_runners.py",),
    ),
    django(
        "a worker of Django ends when it starts before its server",
        "starts_before_its_server",
        ("contrib/django/running.py", "            if not patient:\n", "            if True:\n"),
    ),
    django(
        "a task is sent although its transaction is rolled back",
        "djangos_own_database",
        ("contrib/django/backend.py", ".in_atomic_block", ".closed_in_transaction"),
    ),
    django(
        "a task of Django runs before it is due",
        "until_it_is_due",
        ("contrib/django/backend.py", '"application/json", delay=delay)', '"application/json")'),
    ),
    django(
        "a task of Django that raises runs again",
        "does_not_run_again",
        (
            "contrib/django/running.py",
            "        except BaseException as error:\n            path",
            "        except OSError as error:\n            path",
        ),
    ),
    django(
        "old results of Django's tasks stay",
        "result_expires",
        ("contrib/django/running.py", "            self._clear(now)\n", "            pass\n"),
    ),
    django(
        "an expired result of a task of Django is shown",
        "result_expires",
        ("contrib/django/backend.py", " and found.expires_at > timezone.now()", ""),
    ),
    django(
        "a message that is no task is dropped",
        "no_task_stays",
        (
            "contrib/django/running.py",
            "        finally:\n            close_old_connections()\n",
            "        except Exception:\n            pass\n",
        ),
    ),
    Mutant(
        "a connection with cursors of its own is joined by these",
        "rolled_back_was_never_sent and postgresql",
        (
            (
                "stores/postgresql/driver.py",
                "psycopg.Cursor(session.connection, row_factory=tuple_row)",
                "session.connection.cursor(row_factory=tuple_row)",
            ),
        ),
        ("tests/test_joining.py",),
    ),
    traced(
        "a message does not carry the context of its sender",
        "carries_the_context and memory",
        (
            "contrib/opentelemetry/instrumentor.py",
            "[stamp(draft, carrier) for draft in batch], *arguments, **options)",
            "batch, *arguments, **options)",
        ),
    ),
    traced(
        "the verbs of the bridge have spans beside those of its tasks",
        "asyncio",
        ("contrib/opentelemetry/instrumentor.py", '        self._exchange(Commits, "_work", _working_for_others)\n', ""),
    ),
    traced(
        "a context makes a message too large",
        "takes_no_room",
        (
            "contrib/opentelemetry/spans.py",
            "for name, value in attributes.items()) > MAX_MESSAGE",
            "for name, value in attributes.items()) > 10 * MAX_MESSAGE",
        ),
    ),
    traced(
        "a context replaces another",
        "takes_no_room",
        ("contrib/opentelemetry/spans.py", "made.attributes.keys() & carrier.keys() or ", ""),
    ),
    traced(
        "a producer's messages have the context of their batch",
        "own_sender",
        ("contrib/opentelemetry/instrumentor.py", '        self._exchange(Producer, "push", _pushing)\n', ""),
    ),
    traced(
        "a callback that fails is a span that succeeded",
        "callback_is_a_span",
        (
            "contrib/opentelemetry/spans.py",
            "            fail(span, error)\n            raise\n        finally",
            "            raise\n        finally",
        ),
    ),
    traced(
        "a poll that finds nothing is a span",
        "receive_of_nothing",
        ("contrib/opentelemetry/spans.py", "        if messages:\n", "        if True:\n"),
    ),
    traced(
        "methods stay exchanged",
        "nothing_is_left",
        ("contrib/opentelemetry/instrumentor.py", "            setattr(owner, name, method)\n", "            pass\n"),
    ),
    traced(
        "a batch of Spark ends when it is planned",
        "batch_of_spark",
        (
            "contrib/opentelemetry/spark.py",
            "            try:\n                return partitions(stream, start, end)\n",
            "            try:\n                span.end()\n                return partitions(stream, start, end)\n",
        ),
    ),
]
