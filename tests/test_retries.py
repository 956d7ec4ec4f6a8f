"""When a message comes again whose handler has failed: the policy, and what a handler raises."""

from __future__ import annotations

import json
import os
import pickle
import signal
from dataclasses import replace
from pathlib import Path

import pytest

import penstock
from penstock import BadInput, BadMessage, BadSetting, Broker, Draft, Message, Reject, Retry, RetryPolicy, Settings
from penstock.broker import open_local
from penstock.documents import to_document, to_draft
from penstock.message import MAX_NUMBER, SECOND, Curve, Retried
from penstock.operations.lines import export_lines
from penstock.policy import check_retry, next_attempt
from penstock.retries import read_failure
from penstock.server import BackgroundServer, ServerSettings
from penstock.server.tokens import read_tokens
from penstock.stores.encoding import Head, pack_head, pack_settings
from penstock.testing import FakeClock
from penstock.testing.http import Http

SETTINGS = ServerSettings(port=0, access_log=False)
ONCE = RetryPolicy(2, delay=0, jitter=0)


def delays(retry: RetryPolicy, count: int, chance: float = 0) -> list[float | None]:
    return [next_attempt(retry, failures, chance) for failures in range(1, count + 1)]


def test_each_curve_grows_in_its_way_up_to_the_cap() -> None:
    how = {"attempts": 6, "delay": 10, "max_delay": 70, "jitter": 0}
    assert delays(RetryPolicy(curve=Curve.FIXED, **how), 5) == [10, 10, 10, 10, 10]
    assert delays(RetryPolicy(curve=Curve.LINEAR, **how), 5) == [10, 20, 30, 40, 50]
    assert delays(RetryPolicy(curve=Curve.EXPONENTIAL, **how), 5) == [10, 20, 40, 70, 70]


def test_a_message_is_given_up_after_its_last_attempt() -> None:
    assert delays(RetryPolicy(1), 1) == [None]
    assert delays(RetryPolicy(3, delay=5, jitter=0), 4) == [5, 10, None, None]


def test_without_a_limit_a_message_comes_again_for_ever() -> None:
    assert delays(RetryPolicy(None, delay=1, max_delay=8, jitter=0), 6) == [1, 2, 4, 8, 8, 8]
    assert next_attempt(RetryPolicy(None, jitter=0), MAX_NUMBER, 0) == 3600


def test_jitter_makes_a_delay_shorter_by_at_most_its_part() -> None:
    retry = RetryPolicy(delay=100, curve=Curve.FIXED, jitter=0.5)
    assert [next_attempt(retry, 1, chance) for chance in (0, 0.5, 0.9)] == [100, 75, pytest.approx(55)]


@pytest.mark.parametrize(
    ("retry", "words"),
    [
        (5, "retry must be a RetryPolicy, or None, not 5"),
        ({"tries": 5}, "a retry policy has no 'tries'; it has attempts, curve, delay, jitter, max_delay"),
        (RetryPolicy(0), "the attempts of retry 0 is not between 1 and"),
        (RetryPolicy(2.5), "the attempts of retry must be a whole number, not float: 2.5"),  # type: ignore[arg-type]
        (RetryPolicy(delay=-1), "the delay of retry -1 is not between 0 and"),
        (RetryPolicy(max_delay=float("nan")), "the max_delay of retry nan is not between 0 and"),
        (RetryPolicy(jitter=1.5), "the jitter of retry must be a number from 0 to 1, not 1.5"),
        (RetryPolicy(jitter=True), "the jitter of retry must be a number from 0 to 1, not True"),
        (RetryPolicy(curve="steep"), "the curve of retry 'steep' is not one of fixed, linear, exponential"),  # type: ignore[arg-type]
    ],
)
def test_a_policy_out_of_range_is_named(retry: object, words: str) -> None:
    with penstock.open("memory:") as broker:
        queue = broker.create("orders")
        with pytest.raises(BadSetting) as setting:
            queue.update(retry=retry)
        with pytest.raises(BadMessage) as message:
            queue.send_many([b"x", Draft(b"y", retry=retry)])  # type: ignore[arg-type]
        assert words in str(setting.value)
        assert words in str(message.value)
        assert (queue.settings.retry, queue.stats().messages) == (None, 0)


def test_a_policy_can_be_written_as_a_mapping() -> None:
    assert check_retry({"attempts": None, "curve": "fixed"}) == RetryPolicy(None, curve=Curve.FIXED)


def test_what_a_handler_raises_can_be_pickled_and_says_what_is_wrong_with_it() -> None:
    for raised in (Retry(), Retry(5), Retry(after=0, reason="busy"), Reject("no such customer")):
        copy = pickle.loads(pickle.dumps(raised))
        assert type(copy) is type(raised)
        assert vars(copy) == vars(raised)
        assert str(copy) == str(raised)
    with pytest.raises(BadInput, match="after -1 is not between 0 and"):
        Retry(-1)


def test_the_reason_of_a_handler_is_cut_to_the_limit_of_reasons() -> None:
    """An error instead would be taken for the handler's own, and the message would come again."""
    assert len(Reject("ö" * 5000).reason.encode()) == len(str(Retry(reason="ö" * 5000)).encode()) == 4096
    assert str(Reject(ValueError("no such customer"))) == "no such customer"


def test_an_error_is_kept_as_text_whatever_it_is() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    assert read_failure("late").error == "late"
    assert read_failure(Mute()).error == "Mute, which cannot be told (RuntimeError)"
    assert read_failure(ValueError("\udcff" + "ö" * 5000)).error.startswith("ValueError: ?ö")
    assert len(read_failure(ValueError("ö" * 5000)).error.encode()) == 4096


# in other processes


def act_as_told(payload: bytes, message: Message) -> None:
    match payload:
        case b"retry":
            raise Retry(after=300, reason="busy")
        case b"reject":
            raise Reject("no use")
        case b"die":
            os.kill(os.getpid(), signal.SIGKILL)
        case _:
            raise OSError("no")


def test_what_a_callback_in_another_process_raises_has_its_meaning() -> None:
    clock = FakeClock()
    with penstock.open("memory:", clock=clock) as broker:
        dead = broker.create("dead")
        queue = broker.create("orders", redrive=("dead", 9), retry=replace(ONCE, delay=5))
        queue.send_many([b"retry", b"reject", b"other"])
        consumer = broker.consumer("orders", kind="processes", visibility=3600)
        consumer.process(act_as_told)
        tally = consumer.run(until_empty=True)
        assert (tally.retried, tally.failed) == (2, 1)
        waiting = {each.body: (each.visible_at - clock.now, each.error) for each in queue.peek(9)}
        assert waiting == {b"retry": (300 * SECOND, "busy"), b"other": (5 * SECOND, "OSError: no")}
        assert [each.death and each.death.reason for each in dead.peek()] == ["rejected: no use"]


def test_under_a_policy_a_callback_that_takes_its_process_down_has_failed() -> None:
    with penstock.open("memory:") as broker:
        dead = broker.create("dead")
        queue = broker.create("orders", redrive=("dead", 9), retry=ONCE, visibility=3600)
        queue.send(b"die")
        consumer = broker.consumer("orders", kind="processes")
        consumer.process(act_as_told)
        tally = consumer.run(until_empty=True)
        assert (tally.retried, tally.failed) == (1, 1)
        assert [each.death and each.death.reason for each in dead.peek()] == ["attempts: took its process down"]
        queue.update(retry=None)
        queue.send(b"die")
        assert consumer.run(until_empty=True) == tally  # nothing but the lease tells that it was not processed
        assert [each.state.name for each in queue.peek()] == ["CONSUMED"]


# over HTTP


def test_over_http_a_consumer_applies_the_same_policies() -> None:
    clock = FakeClock()
    with (
        open_local("memory:", clock=clock) as local,
        BackgroundServer(local, SETTINGS) as server,
        penstock.open(server.url) as broker,
    ):
        dead = broker.create("dead")
        queue = broker.create("orders", redrive=("dead", 9), retry=replace(ONCE, delay=5))
        assert queue.settings.retry == replace(ONCE, delay=5)
        queue.send(b"reject")
        queue.send(b"other", retry=RetryPolicy(3, 7, Curve.FIXED, jitter=0))
        consumer = broker.consumer("orders")
        consumer.process(act_as_told)
        tally = consumer.run(until_empty=True)
        assert (tally.retried, tally.failed) == (1, 1)
        (waiting,) = queue.peek(9)
        assert (waiting.visible_at - clock.now, waiting.failures, waiting.error) == (7 * SECOND, 1, "OSError: no")
        (letter,) = dead.peek()
        assert letter.death is not None
        assert (letter.death.reason, letter.death.receives) == ("rejected: no use", 1)
        clock.advance(7)
        (held,) = queue.receive()
        assert queue.bury(held, "by hand") is True
        assert queue.retry(held, "late") is Retried.STALE
        with pytest.raises(BadMessage, match="without a reason"):
            queue.bury(held, None)  # type: ignore[arg-type]


def test_a_token_that_may_only_count_buries_nothing() -> None:
    secrets = {"count": "a-secret-that-counts", "receive": "a-secret-that-receives"}
    tables = [{"name": scope, "secret": secret, "scopes": [scope]} for scope, secret in secrets.items()]
    settings = replace(SETTINGS, tokens=read_tokens(tables, "here", ""))
    with open_local("memory:") as local, BackgroundServer(local, settings) as server:
        queue = local.create("orders")
        queue.send(b"x")
        (message,) = queue.receive()
        receipt = {"Receipt": {"queue": "orders", "id": message.id, "delivery": message.delivery}}
        given = {"arguments": {"message": receipt, "reason": "why"}}
        for secret in secrets.values():  # the second one may, but has not received this message itself
            http = Http(server.url, {"Authorization": f"Bearer {secret}"})
            assert http("POST", "/penstock/queues/orders/bury", given).status == 403
        assert queue.stats().messages == 1


# what is stored, and shown


def test_what_has_no_policy_and_no_failure_is_stored_as_before() -> None:
    assert "retry" not in pack_settings(Settings())
    assert "retry" in pack_settings(Settings(retry=RetryPolicy()))
    assert pack_head(Head("application/octet-stream", {})) is None
    assert pack_head(Head("text/plain", {"a": "1"})) == b'{"type":"text/plain","attributes":{"a":"1"}}'


@pytest.mark.parametrize("scheme", ["vsqs", "spool"])
def test_a_store_of_files_writes_nothing_beside_a_message_that_never_failed(tmp_path: Path, scheme: str) -> None:
    with penstock.open(f"{scheme}:///{tmp_path}/queue") as broker:
        queue = broker.create("orders", history=60)
        queue.send(b"plain")
        queue.receive()[0].release()
        assert not list(tmp_path.rglob("head/*"))
        queue.receive()[0].release(0, "no")
        assert len(list(tmp_path.rglob("head/*"))) == 1
        queue.receive()[0].delete()
        assert not list(tmp_path.rglob("head/*"))
        (record,) = [path for path in tmp_path.rglob("settled/*") if path.is_file()]
        assert b'"failures"' not in record.read_bytes()  # an older version would take it for damage
        assert [(message.failures, message.error) for message in queue.settled()] == [(1, "no")]


def test_an_exported_message_keeps_its_policy_and_begins_without_failures(broker: Broker) -> None:
    queue = broker.create("orders")
    queue.send(b"x", retry=ONCE)
    queue.receive()[0].release(0, "no")
    document = to_document(queue.peek()[0])
    assert (document["failures"], document["error"], document["retry"]["attempts"]) == (1, "no", 2)
    assert to_draft(document, document["visible_at"]) == Draft(b"x", retry=ONCE)
    queue.send(b"plain")
    failed, plain = (json.loads(exported.line or "") for exported in export_lines(queue))
    assert ("failures" in failed, "failures" in plain) == (True, False)
    with pytest.raises(BadMessage, match="the attempts of retry 0"):
        to_draft({**document, "retry": {"attempts": 0}}, 0)


def test_a_schedule_s_messages_have_its_policy() -> None:
    clock, found = FakeClock(), []
    with penstock.open("memory:", clock=clock) as broker:
        broker.create("reports")
        broker.schedule("often", queue="reports", every=10, body=Draft(b"x", retry=ONCE))
        (schedule,) = broker.schedules()
        assert schedule.draft.retry == ONCE
        clock.advance(10)
        consumer = broker.consumer("reports", heartbeat=0.01)

        @consumer.process
        def handle(payload: bytes, message: Message) -> None:
            found.append(message.retry)
            consumer.stop()

        consumer.run()
        assert found == [ONCE]


@pytest.fixture
def broker() -> Broker:
    return penstock.open("memory:")
