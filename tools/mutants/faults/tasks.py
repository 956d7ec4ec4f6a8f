"""Faults in tasks, and in finding a message."""

from __future__ import annotations

from planted import Mutant

TASK, RUNNING, WORKER = "tasks/task.py", "tasks/running.py", "tasks/worker.py"
SHAPES, SIGNATURE, OUTCOME = "tasks/shapes.py", "tasks/signature.py", "tasks/outcome.py"
CONSUMER, FINDING = "workers/consumer.py", "queue/finding.py"


def contract(name: str, tests: str, *changes: tuple[str, str, str], store: str = "memory") -> Mutant:
    """A fault that the contract of a store finds."""
    return Mutant(f"tasks: {name}", tests, changes, (f"tests/test_{store}.py",))


def alone(name: str, tests: str, *changes: tuple[str, str, str]) -> Mutant:
    """A fault that does not depend on the store."""
    return Mutant(f"tasks: {name}", tests, changes, ("tests/test_tasks.py",))


FAULTS = [
    contract(
        "what cannot be run is tried again",
        "cannot_be_run_is_given_up",
        (RUNNING, "            raise Reject(f", "            raise ValueError(f"),
    ),
    contract(
        "the worker takes arguments as they are in JSON",
        "arguments_arrive",
        (SIGNATURE, "self._convert(bound, lambda shape: shape.unpack)", "pass"),
    ),
    contract(
        "the queue of a task forgets it after four days",
        "made_for_its_first_task",
        (TASK, 'SETTINGS = {"retention": MAX_NUMBER}', "SETTINGS: dict[str, int] = {}"),
    ),
    contract(
        "a queue that was deleted is not made again",
        "made_for_its_first_task",
        (TASK, "self._found = None  # it was deleted", "pass"),
    ),
    contract("each coroutine has a loop", "share_one_event_loop", (RUNNING, "if self._loop is None:", "if True:")),
    contract(
        "a policy of the send is not preferred",
        "has_its_own_retry_policy",
        (TASK, 'options.get("retry") or self.retry', "self.retry"),
    ),
    contract(
        "nobody is told of a task that failed for good",
        "failed_for_good_says_so",
        (WORKER, "given_up=runner.given_up", "given_up=None"),
    ),
    contract(
        "nobody is told of what fails at most once",
        "at_most_once_a_task",
        (
            CONSUMER,
            "        self._count(failed=1)\n        self._tell_given_up(message, reason)\n",
            "        self._count(failed=1)\n",
        ),
    ),
    contract(
        "a task that will be tried again is told as failed",
        "failed_for_good_says_so",
        (CONSUMER, "if done is Retried.GIVEN_UP:", "if done is Retried.AGAIN:"),
    ),
    contract("the first result stays", "later_run_leaves", (RUNNING, "if sent.duplicate:", "if False:")),
    contract(
        "a result does not expire",
        "a_result_expires",
        (OUTCOME, "message.deadline_at is not None and message.deadline_at <= now", "False"),
    ),
    contract(
        "the longest expiry does not count",
        "a_result_expires",
        (RUNNING, "if known.retention < expiry:", "if False:"),
    ),
    contract(
        "all results are kept",
        "only_who_wants",
        (
            RUNNING,
            "        if call.results is not None:\n            self._results.keep(m",
            "        if True:\n            self._results.keep(m",
        ),
        (RUNNING, "self._written(task, value), call.results)", "self._written(task, value), call.results or 60)"),
    ),
    contract(
        "a message is found by a key that is another's",
        "found_by_its_key",
        (FINDING, "marks.of_key(key)", 'marks.of_key(b"k")'),
    ),
    contract(
        "found: the holder of a lapsed lease is shown",
        "found_by_its_id",
        ("queue/queue.py", "return None if found is None else self._let_lapse([found])[0]", "return found"),
    ),
    alone(
        "arguments are not checked by the send",
        "refused_by_the_send",
        (SIGNATURE, "self._convert(bound, lambda shape: shape.pack)", "pass"),
    ),
    alone(
        "a program's tasks are named __main__",
        "named_by_its_function",
        (TASK, 'if module == "__main__":', "if False:"),
    ),
    alone(
        "two tasks may have one name",
        "two_functions_with_one_name",
        ("tasks/registry.py", "_place(known) != _place(task)", "False"),
    ),
    alone("True is a number", "refused_by_the_send", (SHAPES, " or (isinstance(value, bool) and kind is not bool)", "")),
    alone(
        "a union may be ambiguous",
        "json_has_no_place_for",
        (SHAPES, "if other is not part and not (other.plain and part.plain):", "if False:"),
    ),
    alone(
        "a worker begins with annotations that it does not know",
        "json_has_no_place_for",
        (WORKER, "            task.definition.signature.check(", "            str("),
    ),
    alone(
        "SystemExit ends a worker",
        "raises_what_ends_programs",
        (RUNNING, "except BaseException as error:  # it must", "except GeneratorExit as error:  # it must"),
    ),
    alone(
        "deeply nested values stop what converts them",
        "nested or cannot_be_kept or whatever_a_message",
        (SHAPES, "except RecursionError:", "except ZeroDivisionError:"),
    ),
    alone(
        "a task runs again because its result has an error of its own",
        "cannot_even_be_read",
        (RUNNING, "except Exception as error:  # whatever", "except (Misfit, PenstockError) as error:  # whatever"),
    ),
    alone(
        "a worker makes queues that are there",
        "may_create_no_queue",
        (WORKER, "find_or_create(broker, name, SETTINGS)", "broker.create(name, exist_ok=True, **SETTINGS)"),
    ),
    alone(
        "a worker makes a queue of results that is there",
        "may_create_no_queue",
        (
            RUNNING,
            "find_or_create(self._broker, self._name, settings_of(expiry))",
            "self._broker.create(self._name, exist_ok=True, **settings_of(expiry))",
        ),
    ),
    alone(
        "a result may have no queue",
        "results_that_have_no_queue",
        (TASK, "if results is not None:\n            check", "if False:\n            check"),
    ),
    contract("a task is never unique", "unique_is_sent_once", (TASK, '"retry": retry, "unique": unique,', '"retry": retry,')),
    alone(
        "a coroutine's task is never unique",
        "coroutines_send_tasks",
        ("aio/task.py", '"retry": retry, "unique": unique,', '"retry": retry,'),
    ),
    alone("the chosen queues do not count", "queues_that_were_chosen", (WORKER, "if not chosen or name in chosen", "")),
    alone("a result of any size is kept", "cannot_be_kept", (OUTCOME, "if len(packed) > MAX_RESULT:", "if False:")),
    alone(
        "a queue is made inside the caller's transaction",
        "when_the_caller_commits",
        (TASK, "make=connection is None", "make=True"),
    ),
    alone(
        "a queue of results may be any queue",
        "made_for_something_else",
        (RUNNING, "if not suits(known):", "if False:"),
    ),
]
