"""The contract's chapter on interrupts: Ctrl-C, or a time limit that raises from a signal handler, at any instant of any verb.

    python -m penstock.testing.interrupted URL exact|timer|handler SEED COUNT

It interrupts COUNT verbs, and after each it uses the store at once, also from another thread, while the interrupt is still
being handled. Now and then, and in the end, the account must be exact. ``exact`` raises at one of the points where CPython
checks for signals, chosen by the seed, so that a run can be repeated. ``timer`` has the kernel send real signals, which also
arrive while a verb waits for a disk or a server. ``handler`` is like ``exact``, but the signal handler sends a message before
it raises.
"""

from __future__ import annotations

import dis
import random
import signal
import subprocess
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from threading import Thread
from types import CodeType, FrameType
from typing import Any, ClassVar

import penstock
from penstock import Broker, Message, Queue, StoreBusy
from penstock.testing.clock import FakeClock

LOOKS = frozenset(dis.opmap[name] for name in ("CALL", "CALL_KW", "CALL_FUNCTION_EX", "JUMP_BACKWARD") if name in dis.opmap)
"""The instructions that end with a check for signals, besides the start of each function."""
GENERATOR = 0x20
EXACT, TIMED, HANDLED = 600, 400, 300
ROUND = 20
"""Interrupts between two checks of the account, which empty the queues: with long queues most interrupts are slow and alike."""
READER = "reader"


class Interrupted:
    interrupts: ClassVar = (EXACT, TIMED)
    """How many interrupts of each kind; fewer where each costs a new connection to a server."""

    def test_an_interrupt_at_any_instant_leaves_the_store_usable_and_the_account_exact(self, url: str) -> None:
        run(url, "exact", self.interrupts[0])

    def test_a_signal_at_any_moment_leaves_the_store_usable_and_the_account_exact(self, url: str) -> None:
        run(url, "timer", self.interrupts[1])


def run(url: str, way: str, count: int) -> None:
    """Run in a separate process: signals go to the main thread, and pytest uses them itself."""
    seed = random.randrange(10**6)
    arguments = [sys.executable, "-m", "penstock.testing.interrupted", url, way, str(seed), str(count)]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, f"{' '.join(arguments[1:])}\n{done.stdout[-4000:]}{done.stderr[-4000:]}"


class Handled:
    handled: ClassVar = HANDLED
    """How many signals; fewer where each costs a new connection to a server."""

    def test_a_signal_handler_that_sends_is_answered_only_what_is_true(self, url: str) -> None:
        run(url, "handler", self.handled)


class Exact:
    """Raises at the n-th check for signals of the code inside."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._known: dict[str, int] = {}
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)

    def arm(self, verb: str) -> None:
        self._verb = verb
        known = self._known.get(verb, 0)
        self._left = self._chance.randrange(1, known + 2) if known and self._chance.random() < 0.8 else -1
        self._looks = 0
        self._raised = False
        self._last: dict[FrameType, int] = {}
        self._from_python: FrameType | None = None
        sys.settrace(self._trace)

    def disarm(self) -> None:
        sys.settrace(None)
        if not self._raised:
            self._known[self._verb] = max(self._looks, int(self._known.get(self._verb, 0) * 0.8))

    def _trace(self, frame: FrameType, event: str, _: object) -> Any:
        if frame.f_code is Exact.disarm.__code__:
            return None
        if event == "call":
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
            if not frame.f_code.co_flags & GENERATOR:  # a generator that is closed starts without a check
                self._look()
        elif event == "exception":
            self._last.pop(frame, None)  # a call that fails ends without a check
        elif event == "return":
            self._last.pop(frame, None)
            # A Python function called from Python returns without a check.
            self._from_python = None if frame.f_code.co_flags & GENERATOR else frame.f_back
        elif event == "opcode":
            code, place = frame.f_code, frame.f_lasti
            last = self._last.get(frame, -1)
            # We raise one instruction too late, which is equivalent only if the same handler catches it.
            looked = last >= 0 and code.co_code[last] in LOOKS and self._from_python is not frame
            if looked and handler(code, last) == handler(code, place):
                self._look()
            self._from_python = None
            self._last[frame] = place
        return self._trace

    def _look(self) -> None:
        self._looks += 1
        self._left -= 1
        if self._left == 0:
            self._raised = True
            signal.raise_signal(signal.SIGUSR1)
            sys.settrace(None)  # one interrupt a verb: stop tracing
            raise KeyboardInterrupt


@cache
def handler(code: CodeType, place: int) -> int | None:
    """Where an exception raised at this place is caught."""
    entries = dis._parse_exception_table(code)  # type: ignore[attr-defined]
    return next((entry.target for entry in entries if entry.start <= place < entry.end), None)


class Timer:
    """Has the kernel send a signal within the usual duration of the verb."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._known: dict[str, float] = {}
        self._armed = False
        signal.signal(signal.SIGALRM, self._handle)

    def _handle(self, *_: object) -> None:
        if self._armed:
            raise KeyboardInterrupt

    def arm(self, verb: str) -> None:
        self._verb, self._begun = verb, time.monotonic()
        known = self._known.get(verb, 0)
        if known and self._chance.random() < 0.8:
            self._armed = True
            signal.setitimer(signal.ITIMER_REAL, self._chance.uniform(1e-6, known))

    def disarm(self) -> None:
        if not self._armed:
            self._known[self._verb] = max(time.monotonic() - self._begun, self._known.get(self._verb, 0) * 0.8)
        self._armed = False
        signal.setitimer(signal.ITIMER_REAL, 0)


class Account:
    """What was asked of the store, and what it answered."""

    def __init__(self, broker: Broker, chance: random.Random, clock: FakeClock) -> None:
        self.broker, self.chance, self.clock = broker, chance, clock
        broker.create("dead")
        self.orders = broker.create("orders", redrive=("dead", 2), visibility=30)
        self.dead = broker["dead"]
        self.once = broker.create("once", deduplicate=True)
        self.lined: Queue | None = broker.create("lined", groups=True) if broker.store.groups else None
        self.claimed = broker.create("claimed")
        self.quiet = broker.create("quiet")
        self.made = 0
        self.epoch = 0
        self.tried: set[str] = set()
        self.sent: set[str] = set()
        self.held: list[Message] = []
        self.leaving: set[str] = set()
        """Removals that were requested but not answered."""
        self.left: set[str] = set()
        """Removals that the store confirmed."""
        self.asked: list[str] = []
        """What this verb is to remove; unknown if it is not answered."""

    def body(self) -> bytes:
        self.made += 1
        self.tried.add(f"{self.made}")
        return f"{self.made}".encode()

    def send(self) -> None:
        body = self.body()
        self.orders.send(body)
        self.sent.add(body.decode())

    def handle(self, *_: object) -> None:
        """A signal handler that sends: its answer must hold, whatever happens to the interrupted verb."""
        body = self.body()
        with suppress(StoreBusy):
            self.chance.choice([self.orders, self.claimed]).send(body)
            self.sent.add(body.decode())

    def send_many(self) -> None:
        bodies = [self.body() for _ in range(self.chance.choice([2, 5, 20]))]
        self.orders.send_many(bodies)
        self.sent.update(body.decode() for body in bodies)

    def send_once(self) -> None:
        """If interrupted, send again with the same key: the message must be there once."""
        body = self.body()
        try:
            self.once.send(body, key=body)
        finally:
            self.once.send(body, key=body)
            self.sent.add(body.decode())

    def send_lined(self) -> None:
        if self.lined is not None:
            body = self.body()
            self.lined.send(body, group=self.chance.choice("abc"))
            self.sent.add(body.decode())

    def send_claimed(self) -> None:
        bodies = [self.body() for _ in range(3)]
        self.claimed.send_many(bodies)
        self.sent.update(body.decode() for body in bodies)

    def receive(self) -> None:
        queue = self.chance.choice([self.orders, self.lined or self.orders, self.once])
        self.held += queue.receive(self.chance.choice([1, 5]), together=self.chance.choice([True, False]))

    def wait(self) -> None:
        assert self.quiet.receive(wait=self.chance.choice([0.0005, 0.003])) == []

    def take(self) -> None:
        """At most once: a message received without an answer is gone."""
        self.asked = [message.text for message in self.orders.peek(50)]
        taken = self.orders.receive(self.chance.choice([1, 3]), mode="at_most_once")
        self.left.update(message.text for message in taken)

    def delete(self) -> None:
        if self.held:
            message = self.held.pop(self.chance.randrange(len(self.held)))
            self.asked = [message.text]
            if self.broker[message.queue].delete(message):
                self.left.add(message.text)

    def delete_many(self) -> None:
        mine = [message for message in self.held if message.queue == "orders"][:5]
        self.held = [message for message in self.held if message not in mine]
        self.asked = [message.text for message in mine]
        gone = self.orders.delete_many(mine)
        self.left.update(message.text for message, done in zip(mine, gone, strict=True) if done)

    def exchange(self) -> None:
        mine = [message for message in self.held if message.queue == "orders"][:3]
        self.held = [message for message in self.held if message not in mine]
        self.asked = [message.text for message in mine]
        gone, taken = self.orders.exchange(mine, 3)
        self.left.update(message.text for message, done in zip(mine, gone, strict=True) if done)
        self.held += taken

    def extend(self) -> None:
        if self.held:
            message = self.chance.choice(self.held)
            self.broker[message.queue].extend(message, 60)

    def release(self) -> None:
        if self.held:
            message = self.held.pop()
            self.broker[message.queue].release(message)

    def look(self) -> None:
        self.orders.peek(5)
        self.orders.stats()

    def change(self) -> None:
        self.orders.update(visibility=self.chance.choice([20, 30]))

    def redrive(self) -> None:
        self.dead.redrive()

    def claim(self) -> None:
        self.epoch += 1
        self.claimed.claim(READER, self.epoch, 4)
        self.claimed.confirm(READER, self.epoch)
        # This also settles an earlier claim whose settling was interrupted, unless it has lapsed.
        held = [claim for claim in self.claimed.readers()[READER] if claim.lapses_at > self.clock()]
        self.asked = read = [message.text for claim in held for message in self.claimed.read(READER, claim.epoch)]
        self.claimed.settle(READER, self.epoch)
        self.left.update(read)

    def give_up(self) -> None:
        self.claimed.give_up(READER)

    def interrupted(self) -> None:
        """Without an answer, what this verb was to remove may or may not be there."""
        self.leaving.update(self.asked)

    def check(self) -> None:
        """Empty all queues: exactly what had to be there was there, and it is now removed."""
        queues = [queue for queue in (self.orders, self.dead, self.once, self.lined, self.claimed) if queue is not None]
        self.claimed.give_up(READER)
        there: Counter[str] = Counter()
        for queue in queues:
            while True:
                self.clock.advance(100)  # later than any visibility
                messages = [*queue.receive(1000)]
                if not messages and queue is self.orders:
                    messages = self.dead.receive(1000)
                if not messages:
                    break
                there.update(message.text for message in messages)
                for home in {message.queue for message in messages}:
                    gone = self.broker[home].delete_many([message for message in messages if message.queue == home])
                    assert all(gone), "what was received cannot be deleted"
            assert queue.stats().messages == 0, f"{queue.stats()} of {queue.name}: nobody can receive these"
        self.held = []
        twice = [body for body, count in there.items() if count > 1]
        assert not twice, f"doubled: {twice}"
        lost = self.sent - there.keys() - self.left - self.leaving
        assert not lost, f"answered sends were lost: {sorted(lost, key=int)}"
        back = there.keys() & self.left
        assert not back, f"deleted messages came back: {sorted(back, key=int)}"
        assert there.keys() <= self.tried
        self.left.update(there)


VERBS: dict[str, Callable[[Account], None]] = {
    verb.__name__: verb
    for verb in (
        Account.send,
        Account.send_many,
        Account.send_once,
        Account.send_lined,
        Account.send_claimed,
        Account.receive,
        Account.wait,
        Account.take,
        Account.delete,
        Account.delete_many,
        Account.exchange,
        Account.extend,
        Account.release,
        Account.look,
        Account.change,
        Account.redrive,
        Account.claim,
        Account.give_up,
    )
}
WEIGHTS = {"send": 4, "send_many": 3, "receive": 4, "delete": 3, "claim": 3}


def elsewhere(act: Callable[[], None]) -> None:
    """Run it in another thread, which would hang on a lock that the interrupted thread has kept."""
    failed: list[BaseException] = []

    def run() -> None:
        try:
            act()
        except BaseException as error:
            failed.append(error)

    thread = Thread(target=run, daemon=True)
    thread.start()
    thread.join(60)
    assert not thread.is_alive(), "another thread waits for a lock that the interrupted one has kept"
    if failed:
        raise failed[0]


def main(url: str, way: str, seed: int, count: int) -> None:
    chance = random.Random(seed)
    interrupter = Timer(chance) if way == "timer" else Exact(chance)
    clock = FakeClock()
    with penstock.open(url, clock=clock) as broker:
        account = Account(broker, chance, clock)
        if way == "handler":
            signal.signal(signal.SIGUSR1, account.handle)
        done = interrupts = 0
        while interrupts < count and done < 20 * count:
            name = chance.choices(list(VERBS), [WEIGHTS.get(verb, 1) for verb in VERBS])[0]
            clock.advance(chance.choice([0.001] * 20 + [40]))
            done += 1
            account.asked = []
            try:
                interrupter.arm(name)
                VERBS[name](account)
                interrupter.disarm()
            except (KeyboardInterrupt, RuntimeError) as interrupt:
                # An interrupt inside threading.Condition.wait, such as that of Thread.start, comes out as a RuntimeError.
                if not isinstance(interrupt, KeyboardInterrupt) and not isinstance(interrupt.__context__, KeyboardInterrupt):
                    raise
                interrupter.disarm()
                interrupts += 1
                account.interrupted()
                try:
                    account.send()  # while its traceback is still alive
                    elsewhere(account.send)
                except BaseException:
                    sys.stdout.write(f"interrupt {interrupts}, in {name}, had come here:\n")
                    traceback.print_tb(interrupt.__traceback__, file=sys.stdout)
                    raise
                if interrupts % ROUND == 0:
                    account.check()
        account.check()
        sys.stdout.write(f"{interrupts} interrupts of {done} verbs, {len(account.sent)} sent, {len(account.left)} settled\n")
        assert interrupts > count // 4, f"only {interrupts} interrupts"


if __name__ == "__main__":
    url, way, seed, count = sys.argv[1:]
    main(url, way, int(seed), int(count))
