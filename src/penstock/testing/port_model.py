"""The contract's chapter of random verbs: below the rules, a store's queues must answer like the memory store's.

`penstock.testing.model` plays what users call. This plays the port itself: what the queue above rarely asks for, such as a
claim of messages visible since an instant, stale settings, a slice of a purge, or a mark that counts for a while.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock import policy
from penstock.broker import open_local
from penstock.errors import PenstockError
from penstock.message import FOREVER, SECOND, Death, Entry, Message, Receipt, Settings, Settlement, State
from penstock.stores.memory import MemoryStore
from penstock.stores.ports import Store
from penstock.stores.requests import Claiming, Deleting, Moving

EXAMPLES = 60
START = 1_800_000_000 * SECOND
MARKS = {None: 0, b"c1": FOREVER, b"k2": FOREVER, b"w3": 20}
"""Marks, and the seconds for which each counts."""
serial = itertools.count()

queues = st.sampled_from(["one", "one", "two"])
places = st.lists(st.integers(0, 5), max_size=3)
moments = st.sampled_from([0, 1, 5, 30])
readers = st.sampled_from(["r", "s"])
groups = st.sampled_from([None, "g", "g", "h"])
steps = st.one_of(
    st.tuples(
        st.just("insert"), queues, st.lists(st.tuples(st.sampled_from(list(MARKS)), moments, groups), min_size=1, max_size=4)
    ),
    st.tuples(st.just("insert"), st.just("one"), st.lists(st.tuples(st.none(), st.just(0), groups), min_size=3, max_size=3)),
    st.tuples(
        *(st.just("claim"), queues, st.integers(1, 4), moments, st.none() | moments, st.booleans(), st.booleans(), places)
    ),
    st.tuples(st.just("take"), queues, st.integers(1, 3), st.booleans()),
    st.tuples(st.just("refuse"), queues),
    st.tuples(st.just("extend"), queues, places, moments, st.booleans(), st.none() | st.sampled_from(["late", "ö\u2028\\"])),
    st.tuples(st.just("delete"), queues, places, st.none() | moments, st.booleans()),
    st.tuples(st.just("move"), queues, places, st.booleans()),
    st.tuples(st.just("set_aside"), queues, places),
    st.tuples(st.just("amend"), queues, places),
    st.tuples(st.just("purge"), queues, st.integers(1, 3)),
    st.tuples(st.just("sweep"), queues),
    st.tuples(st.just("advance"), moments),
    st.tuples(st.just("hold"), readers, st.integers(0, 3), st.integers(1, 3)),
    st.tuples(st.just("confirm"), readers, st.integers(0, 3)),
    st.tuples(st.just("settle"), readers, st.integers(0, 3)),
    st.tuples(st.just("give_back"), readers, st.none() | st.integers(0, 3)),
)
plans = st.lists(steps, min_size=10, max_size=40)


class PortPlayer:
    """Plays a plan on the queues of one store; ids and names are translated to the plan's."""

    def __init__(self, store: Store, suffix: str, *, grouped: bool) -> None:
        self.store = store
        self.known = Settings(groups=grouped)
        self.stale = Settings(groups=grouped, visibility=31)
        """Settings that no queue has."""
        self.suffix = suffix
        self.now = START
        self.ids: dict[tuple[str, str], int] = {}
        self.hands: dict[str, list[Message]] = {"one": [], "two": []}
        for name in self.hands:
            store.save(name + suffix, self.known, create=True)
        self.queues = {name: store.queue(name + suffix) for name in self.hands}

    def play(self, step: tuple[Any, ...]) -> object:
        verb, *arguments = step
        act: Callable[..., object] = getattr(self, verb)
        try:
            return self.plain(act(*arguments))
        except (PenstockError, KeyError) as error:
            return type(error).__name__

    def insert(self, name: str, given: list[tuple[bytes | None, int, str | None]]) -> object:
        self.advance(0.01)  # stores whose ids are instants order the messages of two queues by them
        entries = []
        for number, (mark, delay, group) in enumerate(given):
            counts = MARKS[mark]
            until = counts if counts in (0, FOREVER) else self.at(counts)
            visible_at, body = self.at(delay), b"%d" % number
            entries.append(Entry(body, "text/plain", {}, self.now, visible_at, self.at(1000), None, None, group, mark, until))
        sent = self.queues[name].insert(entries, self.now, self.known)
        return sent and [(self.place(name, each.id), each.duplicate) for each in sent]

    def claim(
        self, name: str, limit: int, hidden: int, since: int | None, knows: bool, together: bool, places: list[int]
    ) -> list[Message] | tuple[object, ...]:
        deleting = Deleting(self.chosen(name, places), self.settlement(5)) if places else None
        by = None if since is None else self.now - since * SECOND
        known = self.known if knows or deleting else None
        holder = "h" if knows else None
        claiming = Claiming(limit, self.now, self.at(hidden), known, holder, None, by, deleting, together)
        answer = self.queues[name].claim(claiming)
        assert answer is not None
        self.hands[name] = (answer.messages + self.hands[name])[:6]
        return answer.messages, answer.deleted

    def take(self, name: str, limit: int, together: bool) -> object:
        """Claim and settle in one batch, as a receive at most once does."""
        with self.store.batch():
            answer = self.queues[name].claim(Claiming(limit, self.now, None, self.known, together=together))
            assert answer is not None
            return answer.messages, self.queues[name].delete(answer.messages, self.settlement(None))

    def refuse(self, name: str) -> object:
        """By settings that are not the queue's, nothing happens."""
        queue, entry = self.queues[name], Entry(b"", "", {}, self.now, self.now, FOREVER, None, None, None, None, 0)
        answers: list[object] = [
            queue.insert([entry], self.now, self.stale),
            queue.claim(Claiming(9, self.now, self.at(5), self.stale)),
        ]
        if self.hands[name]:
            deleting = Deleting(self.hands[name], self.settlement(None))
            answers.append(queue.claim(Claiming(9, self.now, self.at(5), self.stale, deleting=deleting)))
            answers.append(queue.delete(self.hands[name], self.settlement(None), self.stale))
        return answers

    def extend(self, name: str, places: list[int], hidden: int, release: bool, error: str | None) -> object:
        error = error if release else None
        return self.queues[name].extend(self.chosen(name, places), self.at(hidden), release=release, error=error)

    def delete(self, name: str, places: list[int], keep: int | None, knows: bool) -> object:
        return self.queues[name].delete(self.chosen(name, places), self.settlement(keep), self.known if knows else None)

    def move(self, name: str, places: list[int], dies: bool) -> object:
        target = "two" if name == "one" else "one"
        chosen = self.chosen(name, places)
        death = Death(name, "max_receives", 3, self.now) if dies else None
        with self.store.batch():
            moving = Moving(target + self.suffix, self.now, self.at(1000), death, policy.readmit)
            return self.queues[name].move(chosen, moving)

    def set_aside(self, name: str, places: list[int]) -> object:
        return self.queues[name].set_aside(self.chosen(name, places))

    def amend(self, name: str, places: list[int]) -> object:
        return self.queues[name].history.amend(self.chosen(name, places), State.FAILED, "late")

    def purge(self, name: str, limit: int) -> object:
        """A part, and then the rest: no order is promised."""
        return self.queues[name].purge(limit), self.queues[name].purge(99)

    def sweep(self, name: str) -> object:
        while self.queues[name].sweep(self.now).more:
            pass
        return None

    def advance(self, seconds: float) -> None:
        self.now += round(seconds * SECOND)

    def hold(self, reader: str, epoch: int, limit: int) -> object:
        """As a named claim is made: only for an epoch that has none and is not settled."""
        one = self.queues["one"]
        with self.store.batch():
            settled, claims = one.readers.held(reader)
            if (settled is not None and epoch <= settled) or epoch in [claim.epoch for claim in claims]:
                return None
            answer = one.claim(Claiming(limit, self.now, self.at(30), self.known, reader))
            assert answer is not None
            one.readers.hold(reader, epoch, answer.messages, self.at(30))
        return [self.place("one", each.id) for each in one.readers.read(reader, epoch, 0, 9)]

    def confirm(self, reader: str, epoch: int) -> object:
        return self.with_claim(reader, epoch, lambda: self.queues["one"].readers.confirm(reader, epoch))

    def settle(self, reader: str, epoch: int) -> object:
        return self.with_claim(reader, epoch, lambda: self.queues["one"].readers.settle(reader, epoch, self.settlement(None)))

    def give_back(self, reader: str, epoch: int | None) -> object:
        return self.with_claim(reader, epoch, lambda: self.queues["one"].readers.give_back(reader, epoch, self.now))

    def with_claim(self, reader: str, epoch: int | None, act: Callable[[], object]) -> object:
        """Only of a claim that is in force: the queue above asks for no other."""
        with self.store.batch():
            claims = self.queues["one"].readers.held(reader)[1]
            if epoch is not None and epoch not in [claim.epoch for claim in claims if claim.lapses_at > self.now]:
                return None
            return act()

    def look(self) -> object:
        """Everything that can be seen of both queues."""
        return [self.plain(self.look_at(name)) for name in self.queues]

    def look_at(self, name: str) -> object:
        queue = self.queues[name]
        first = queue.browse(1, now=self.now)
        position = (first[0].visible_at, first[0].number) if first else (self.now, 0)
        count, low, high = queue.span()
        return [
            queue.browse(99),
            queue.browse(2),
            *(queue.browse(99, state=state) for state in (State.QUEUED, State.CONSUMED, State.DAMAGED)),
            queue.browse(99, now=self.now, after=position),
            queue.scan(low, high + 1, 99),
            count,
            queue.history.browse(99),
            queue.history.span()[0],
            queue.marked().lasting,
            [
                (found.lasting, self.place(name, found.id or "") if found.lasting else None)
                for found in map(queue.marked, filter(None, MARKS))
            ],
            dataclasses.asdict(queue.count(self.now)),
            queue.due(),
        ]

    def at(self, seconds: float) -> int:
        return self.now + round(seconds * SECOND)

    def settlement(self, keep: int | None) -> Settlement:
        return Settlement(State.PROCESSED, self.now, None, None if keep is None else self.at(keep + 1))

    def chosen(self, name: str, places: list[int]) -> list[Any]:
        """Messages that were claimed, each once; the last one by its id alone."""
        hands = {message.id: message for message in self.hands[name]}
        found = [each for place, each in enumerate(hands.values()) if place in places]
        return [*found[:-1], *(Receipt(each.queue, each.id, None) if 5 in places else each for each in found[-1:])]

    def plain(self, answer: object) -> object:
        if isinstance(answer, list | tuple):
            return [self.plain(part) for part in answer]
        if isinstance(answer, Message):
            fields = {field.name: getattr(answer, field.name) for field in dataclasses.fields(answer) if field.compare}
            name = answer.queue.removesuffix(self.suffix)
            return fields | {"id": self.place(name, answer.id), "number": 0, "queue": name}
        return answer

    def place(self, queue: str, id: str) -> int:
        return self.ids.setdefault((queue, id), len(self.ids))


class PortModel:
    by_arrival = False
    """Whether a message that was moved comes last in its new queue, whenever it was sent."""

    def test_random_verbs_of_the_port_are_answered_as_the_specification_does(self, url: str) -> None:
        with open_local(url) as subject:
            memory = MemoryStore(ordered=subject.store.ordered, by_arrival=self.by_arrival)

            @settings(max_examples=EXAMPLES, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
            @given(st.booleans(), plans)
            def run(grouped: bool, plan: list[tuple[Any, ...]]) -> None:
                suffix, grouped = f"-{next(serial)}", grouped and subject.store.groups
                players = [PortPlayer(store, suffix, grouped=grouped) for store in (memory, subject.store)]
                for step in plan:
                    expected, actual = (player.play(step) for player in players)
                    assert actual == expected, step
                    expected, actual = (player.look() for player in players)
                    assert actual == expected, ("after", step)

            run()
