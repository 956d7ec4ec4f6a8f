"""When a message comes again whose handler has failed: the policy, and what a handler raises."""

from __future__ import annotations

import pickle

import pytest

import penstock
from penstock import BadInput, BadMessage, BadSetting, Draft, Reject, Retry, RetryPolicy
from penstock.message import MAX_NUMBER, Curve
from penstock.policy import check_retry, next_attempt


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
