"""The contract's chapter of random calls: the store must answer like the memory store, step by step.

Some plans are the same in every run, others are new in each. The environment variable PENSTOCK_SEED, an integer, replays those
of an earlier run; PENSTOCK_PLANS sets their number.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import secrets
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from penstock import Broker, Claim, Draft, Message, PenstockError, Queue, Reject, Retry, RetryPolicy
from penstock.broker import LocalBroker, open_local
from penstock.message import FOREVER, Curve
from penstock.stores.memory import MemoryStore
from penstock.testing.clock import FakeClock

EXAMPLES = 80
PLANS = int(os.environ.get("PENSTOCK_PLANS", "40"))
SEED = int(os.environ.get("PENSTOCK_SEED") or secrets.randbelow(2**32))
HOLDERS = [None, "h", "another", None, "one more"]
"""Chosen by the number of messages received."""
serial = itertools.count()

small = st.integers(0, 3)
seconds = st.sampled_from([0, 1, 5, 30, 31])
drafts = st.builds(
    lambda unique, **given: Draft(**given, unique=unique and given["key"] is not None),
    unique=st.booleans(),
    body=st.sampled_from([b"", b"a", b"b", b"\x00\xff"]),
    content_type=st.sampled_from(["application/octet-stream", "text/plain"]),
    attributes=st.sampled_from([{}, {"n": 1, "t": "x", "b": b"\x00"}]),
    delay=st.none() | seconds,
    visibility=st.none() | seconds,
    deadline=st.none() | seconds,
    key=st.none() | st.sampled_from(["k", "l"]),
    group=st.none() | st.sampled_from(["g", "h"]),
    retry=st.none() | st.just(RetryPolicy(2, 5, Curve.LINEAR, 8, 0.5)),
)
queues = st.sampled_from(["main", "dead"])
sends = st.tuples(st.just("send"), queues, st.lists(drafts, min_size=1, max_size=4))
receives = st.tuples(
    st.just("receive"),
    queues,
    st.integers(1, 4),
    st.none() | seconds,
    st.sampled_from([None, "at_most_once"]),
    st.booleans(),
)
members = st.sampled_from(["a", b"b"])
updates = st.one_of(
    st.sampled_from([{"visibility": 0}, {"retention": 20}, {"redrive": None}, {"history": 0}]),
    st.sampled_from([{"retry": {"attempts": 1}}, {"retry": {"attempts": None, "delay": 5, "curve": "fixed"}}]),
    st.sampled_from([{"deduplicate": False}, {"deduplicate": True}, {"deduplicate": 20}]),
    st.sampled_from([{"max_in_flight": 1}, {"max_in_flight": None}]),
    st.sampled_from([{"labels": {"a": "1"}}, {"labels": {"a": None}}, {"labels": {"b": "2", "a": "3"}, "delay": 0}]),
)
# The steps of a plan. A message is chosen by its place among those received so far.
steps = st.one_of(
    sends,
    receives,
    sends.map(lambda step: ("send", "main", *step[2:])),  # the most informative steps, so there are more of them
    receives.map(lambda step: ("receive", "main", *step[2:])),
    receives.map(lambda step: ("receive", "main", 4, 0, *step[4:])),
    st.tuples(st.just("delete"), st.lists(small, min_size=1, max_size=3)),
    st.tuples(st.just("extend"), small, seconds),
    st.tuples(st.just("release"), small, seconds, st.none() | st.sampled_from(["late", "ö\n"])),
    st.tuples(st.just("retry"), small, st.sampled_from([Retry(3, "busy"), Reject("no"), "late", "late"])),
    st.tuples(st.just("fail"), small),
    st.tuples(st.just("cancel"), small),
    st.tuples(st.just("cancel_key"), st.sampled_from(["k", "l"])),
    st.tuples(st.just("find"), small),
    st.tuples(st.just("find_key"), st.sampled_from(["k", "l"])),
    st.tuples(st.just("advance"), seconds),
    st.tuples(st.just("update"), updates),
    st.tuples(st.just("redrive"), st.none() | st.just("main"), st.none() | st.integers(1, 2)),
    st.tuples(st.just("purge"), queues),
    st.tuples(st.just("bury")),
    st.tuples(st.just("sadd"), members),
    st.tuples(st.just("spop")),
    st.tuples(st.just("sismember"), members),
    st.tuples(st.just("claim"), st.sampled_from(["r", "s"]), small, st.integers(1, 3)),
    st.tuples(st.just("confirm"), st.sampled_from(["r", "s"]), small),
    st.tuples(st.just("read"), st.sampled_from(["r", "s"]), small),
    st.tuples(st.just("settle"), st.sampled_from(["r", "s"]), small),
    st.tuples(st.just("give_up"), st.sampled_from(["r", "s"])),
)
configurations = st.fixed_dictionaries(
    {
        "visibility": st.sampled_from([0, 5, 30]),
        "retention": st.sampled_from([10, 1000]),
        "delay": st.sampled_from([0, 0, 5]),
        "deduplicate": st.sampled_from([False, True, 20]),
        "history": st.sampled_from([0, 60]),
        "labels": st.sampled_from([{}, {"b": "x"}]),
        "groups": st.booleans(),
        "mode": st.sampled_from(["at_least_once", "at_least_once", "at_most_once"]),
        "most": st.sampled_from([1, 2]),  # receives before a message becomes a dead letter
        "strict": st.booleans(),  # whether the dead letter queue deduplicates
    }
)


class Player:
    """Plays a plan on one store; ids and names are translated to the plan's."""

    def __init__(self, broker: Broker, clock: FakeClock, suffix: str, *, pause: float = 0) -> None:
        """``pause``: seconds that pass with each send, since stores whose ids are instants order two queues by them."""
        self.broker = broker
        self.clock = clock
        self.suffix = suffix
        self.pause = pause
        self.places: dict[tuple[str, str], int] = {}
        self.hands: list[Message] = []
        self.lapses: dict[tuple[str, int], int] = {}
        """When each claim lapses."""

    def start(self, configuration: dict[str, Any]) -> None:
        dead, most = {"groups": configuration["groups"], "deduplicate": configuration["strict"]}, configuration["most"]
        main = {name: value for name, value in configuration.items() if name not in ("strict", "most")}
        self.dead = self.broker.create(f"dead{self.suffix}", **dead)
        self.main = self.broker.create(f"main{self.suffix}", **main, redrive=(self.dead.name, most))

    def play(self, step: tuple[Any, ...]) -> object:
        verb, *arguments = step
        play: Callable[..., object] = getattr(self, f"play_{verb}", None) or getattr(self.main, verb)
        try:
            return self.plain(play(*arguments))
        except PenstockError as error:
            return type(error).__name__, str(error).replace(self.suffix, "")

    def play_send(self, name: str, batch: list[Draft]) -> object:
        self.clock.advance(self.pause)
        queue = getattr(self, name)
        return [(self.place(queue.name, sent.id), sent.duplicate) for sent in queue.send_many(batch)]

    def play_receive(self, name: str, limit: int, visibility: float | None, mode: str | None, together: bool = False) -> object:
        how = {"visibility": visibility, "mode": mode, "holder": HOLDERS[limit], "together": together}
        messages = getattr(self, name).receive(limit, **how)
        self.hands = (messages + self.hands)[:8]
        return messages

    def play_delete(self, places: list[int]) -> object:
        chosen = [self.hands[place] for place in places if place < len(self.hands)]
        return [
            queue.delete_many([message for message in chosen if message.queue == queue.name])
            for queue in (self.main, self.dead)
        ]

    def play_extend(self, place: int, visibility: float) -> object:
        return [message.extend(visibility) for message in self.hands[place : place + 1]]

    def play_release(self, place: int, delay: float, error: str | None) -> object:
        return [message.release(delay, error) for message in self.hands[place : place + 1]]

    def play_retry(self, place: int, error: Retry | Reject | str) -> object:
        held = [(getattr(self, each.queue.removesuffix(self.suffix)), each) for each in self.hands[place : place + 1]]
        return [int(queue.retry(message, error, chance=lambda: 0.5)) for queue, message in held]

    def play_fail(self, place: int) -> object:
        return [self.main.fail(message, "no") for message in self.hands[place : place + 1] if message.queue == self.main.name]

    def play_claim(self, reader: str, epoch: int, limit: int) -> object:
        claim = self.main.claim(reader, epoch, limit)
        self.lapses[reader, epoch] = claim.lapses_at
        return claim

    def play_confirm(self, reader: str, epoch: int) -> object:
        claim = self.main.confirm(reader, epoch)
        self.lapses[reader, epoch] = claim.lapses_at
        return claim

    def play_settle(self, reader: str, epoch: int) -> object:
        """Not a claim that has lapsed: a store that has cleared it away does not refuse that any more."""
        return None if self.lapses.get((reader, epoch), FOREVER) <= self.clock.now else self.main.settle(reader, epoch)

    def play_cancel(self, place: int) -> object:
        """One that was received, or that nobody has received yet."""
        seen = [*self.hands, *self.main.peek(4)][place : place + 1]
        return [queue.cancel(message.id) for message in seen for queue in (self.main, self.dead) if message.queue == queue.name]

    def play_cancel_key(self, key: str) -> object:
        return self.main.cancel(key=key)

    def play_find(self, place: int) -> object:
        seen = [*self.hands, *self.main.peek(4)][place : place + 1]
        return [queue.find(message.id) for message in seen for queue in (self.main, self.dead) if message.queue == queue.name]

    def play_find_key(self, key: str) -> object:
        return self.main.find(key=key)

    def play_advance(self, seconds: float) -> None:
        self.clock.advance(seconds)

    def play_update(self, changes: dict[str, Any]) -> object:
        settings = self.main.update(**changes)
        return settings.visibility, dict(settings.labels)

    def play_sadd(self, member: str | bytes) -> object:
        self.clock.advance(self.pause)
        return self.main.sadd(member)

    def play_redrive(self, to: str | None, limit: int | None) -> object:
        redriven = self.dead.redrive(limit, to=to and self.main.name)
        return int(redriven), redriven.duplicates, redriven.homeless

    def play_bury(self) -> object:
        """Receive without deleting until every visible message dies."""
        return [self.main.receive(4, visibility=0, mode="at_least_once") for _ in range(3)]

    def play_purge(self, name: str) -> object:
        return getattr(self, name).purge()

    def look(self) -> object:
        """Everything that can be seen of both queues."""
        return [
            (
                self.plain(queue.peek(100)),
                self.plain(queue.settled()),
                dataclasses.asdict(queue.stats()),
                dict(queue.settings.labels),
                queue.scard(),
                self.claims(queue),
            )
            for queue in (self.main, self.dead)
        ]

    def claims(self, queue: Queue) -> dict[str, list[Claim]]:
        """The claims that stand; lapsed ones may be cleared away sooner or later."""
        return {
            reader: [claim for claim in claims if claim.lapses_at > self.clock.now]
            for reader, claims in queue.readers().items()
        }

    def plain(self, answer: object) -> object:
        if isinstance(answer, list):
            return [self.plain(part) for part in answer]
        if isinstance(answer, Message):
            fields = {field.name: getattr(answer, field.name) for field in dataclasses.fields(answer) if field.compare}
            death = answer.death and dataclasses.replace(answer.death, queue=answer.death.queue.replace(self.suffix, ""))
            fields |= {
                "id": self.place(answer.queue, answer.id),
                "number": 0,
                "queue": answer.queue.replace(self.suffix, ""),
                "death": death,
            }
            return fields
        return answer

    def place(self, queue: str, id: str) -> int:
        """The number of an id in this plan. Ids are local to a queue, and a message that moves may get another."""
        return self.places.setdefault((queue, id), len(self.places))


Calls = list[tuple[tuple[Any, ...], bool]]
"""Steps, and whether to look at everything after each."""
plans = st.lists(st.tuples(steps, st.booleans()), min_size=15, max_size=50)


def compare(subject: LocalBroker, memory: LocalBroker, configuration: dict[str, Any], plan: Calls) -> None:
    """Play a plan on both stores; all answers must be the same."""
    configuration = {**configuration, "groups": configuration["groups"] and subject.store.groups}
    suffix = f"-{next(serial)}"
    players = []
    for broker in (memory, subject):
        clock = FakeClock()
        player = Player(LocalBroker(broker.store, clock=clock), clock, suffix, pause=0 if subject.store.ordered else 0.01)
        player.start(configuration)
        players.append(player)
    for step, look in [*plan, (("advance", 0), True)]:
        expected, actual = (player.play(step) for player in players)
        assert actual == expected, step
        if look:  # not always, since looking may repair what the next step should find
            expected, actual = (player.look() for player in players)
            assert actual == expected, ("after", step)


class Model:
    by_arrival = False
    """Whether a message that was moved comes last in its new queue, whenever it was sent."""

    def test_random_calls_are_answered_as_the_specification_does(self, url: str) -> None:
        self._play(url, settings(max_examples=EXAMPLES, derandomize=True))

    def test_new_random_calls_are_answered_as_the_specification_does(self, url: str) -> None:
        told = f"PENSTOCK_SEED={SEED} PENSTOCK_PLANS={PLANS} plays these plans again"
        print(told)  # noqa: T201 (pytest shows it with a failure)
        try:
            self._play(url, settings(max_examples=PLANS, database=None), SEED)
        except BaseException as error:
            error.add_note(told)
            raise

    def _play(self, url: str, how: settings, first: int | None = None) -> None:
        clock = FakeClock()
        with (
            open_local(url, clock=clock) as subject,
            LocalBroker(MemoryStore(ordered=subject.store.ordered, by_arrival=self.by_arrival), clock=clock) as memory,
        ):

            @settings(how, deadline=None, suppress_health_check=list(HealthCheck))
            @given(configurations, plans)
            def run(configuration: dict[str, Any], plan: Calls) -> None:
                compare(subject, memory, configuration, plan)

            (run if first is None else seed(first)(run))()
