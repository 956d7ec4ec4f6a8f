"""The state machine of a connection, without any connection: what comes out depends on the bytes alone, and on nothing behind a
refusal."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import httptools
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.server.budget import Budget
from penstock.server.http import head
from penstock.server.http.chunks import MOST_CHUNKS
from penstock.server.http.conversation import AHEAD, CONTINUE, OVERHEAD, Conversation, Phase, Refusal
from penstock.server.http.request_response import Refused, Request, Response

DATE = "Thu, 01 Jan 1970 00:00:00 GMT"
KEEP = 50


@dataclass(frozen=True)
class Limits:
    max_head: int = 300
    max_body: int = 100


def admit(request: Request) -> int:
    """Some paths are refused by their head, as requests without a token are."""
    if request.segments[0] in ("401", "403"):
        raise Refused(int(request.segments[0]), "no")
    return KEEP


class Talk:
    """One connection whose requests are answered at once."""

    def __init__(self, most: int = 1 << 30) -> None:
        self.budget = Budget(most)
        self.conversation = Conversation(Limits(), self.budget, admit)
        self.events: list[tuple[object, ...]] = []
        self.served: list[Request] = []

    def feed(self, pieces: Iterable[bytes], *, end: bool = True) -> list[tuple[object, ...]]:
        for piece in pieces:
            self.conversation.receive(piece)
            self.go_on()
        if end:
            self.conversation.end()
            self.go_on()
        return self.events

    def go_on(self) -> None:
        while (event := self.conversation.next()) is not None:
            if event is CONTINUE:
                self.events.append(("continue",))
                continue
            if isinstance(event, Refusal):
                self.events.append(("refused", event.error.status))
            else:
                assert isinstance(event, Request)
                self.served.append(event)
                self.events.append((event.method, event.segments, event.query, dict(event.headers), event.body, event.length))
                self.budget.give(event.held)
            self.conversation.answer(Response(200), DATE, stopping=False)
            self.conversation.answered()


def request(body: bytes = b"", *more: bytes, method: bytes = b"POST", path: bytes = b"/q") -> bytes:
    length = b"Content-Length: %d\r\n" % len(body) if body else b""
    return b"%b %b HTTP/1.1\r\nHost: h\r\n%b%b\r\n%b" % (method, path, b"".join(line + b"\r\n" for line in more), length, body)


def chunked(pieces: Sequence[bytes], trailers: bytes = b"", extension: bytes = b"") -> bytes:
    chunks = b"".join(b"%x%b\r\n%b\r\n" % (len(piece), extension, piece) for piece in pieces if piece)
    return b"POST /q HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n%b0\r\n%b\r\n" % (chunks, trailers)


small = st.binary(max_size=30)
good = st.one_of(
    st.builds(request, small),
    st.builds(
        chunked, st.lists(small, max_size=4), st.sampled_from([b"", b"A: b\r\n"]), st.sampled_from([b"", b";x=y", b";z;w=1"])
    ),
    st.just(request(b"body", b"Expect: 100-continue")),
    st.just(request(b"", b"Connection: close", method=b"GET")),
    st.just(b"GET /a%2Fb/c?d=e HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"),
    st.just(b"\r\n" + request(b"", method=b"GET")),
)
bad = st.sampled_from(
    [
        request(path=b"/401"),
        request(b"x", path=b"/403"),
        request(b"x" * 101),
        request(b"x", b"X: " + b"y" * 300),
        request(b"", b"Expect: wonders"),
        request(b"", b"Upgrade: h2c", b"Connection: upgrade"),
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/3.0\r\nHost: h\r\n\r\n",
        b"BREW / HTTP/1.1\r\nHost: h\r\n\r\n",
        b"GET / HTTP/1.1\nHost: h\n\n",
        b"GET / HTTP/1.1\r\nHost: h\r\nX: a\rb\r\n\r\n",
        b"POST /q HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        b"POST /q HTTP/1.0\r\nConnection: keep-alive\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /q HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n",
        chunked([b"x" * 90, b"y" * 20]),
        chunked([b"x"], b"A" * 400 + b": b\r\n"),
        chunked([b"x"], extension=b";" + b"x" * 400),
        chunked([b"x"]).replace(b"1\r\nx", b"1\r\nxy"),
        chunked([b"x"]).replace(b"1\r\nx", b"1\nx"),
        chunked([b"x"]).replace(b"\r\nx", b" \r\nx"),
        chunked([b"x"], extension=b" ;x"),
        chunked([b"x"], extension=b';x="y'),
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ]
)


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """A good request with some bytes changed, cut out or doubled."""
    data = bytearray(draw(good))
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, max(0, len(data) - 1)))
        what = draw(st.integers(0, 2))
        if what == 0 and data:
            data[at] = draw(st.sampled_from(b"\r\n :;,0aA\x00\xff"))
        elif what == 1:
            del data[at : at + draw(st.integers(1, 5))]
        else:
            data[at:at] = data[at : at + draw(st.integers(1, 9))]
    return bytes(data)


stream = st.lists(st.one_of(good, good, bad, mutated(), small), min_size=1, max_size=5).map(b"".join)
cuts = st.lists(st.integers(0, 600), max_size=12)


def cut(data: bytes, places: Iterable[int]) -> list[bytes]:
    ends = sorted({place for place in places if 0 < place < len(data)})
    return [data[start:end] for start, end in zip([0, *ends], [*ends, len(data)], strict=True)]


@given(stream, cuts)
@example(b"\r\nGET / HTTP/1.1\r\nHost: h\r\n\r\n", [1])
@example(chunked([b"x"], extension=b";" + b"x" * 298), [])  # lines that are just short enough
@example(chunked([b"x"], b"A:" + b"b" * 296 + b"\r\n"), [])
def test_how_the_bytes_are_cut_makes_no_difference(data: bytes, places: list[int]) -> None:
    whole = Talk().feed([data])
    assert Talk().feed(cut(data, places)) == whole
    assert Talk().feed([data[at : at + 1] for at in range(len(data))]) == whole


@given(stream, cuts, stream)
def test_nothing_is_served_behind_a_refusal_whatever_comes(data: bytes, places: list[int], more: bytes) -> None:
    talk = Talk()
    talk.feed(cut(data, places), end=False)
    talk.conversation.refuse(Refused(408, "too slow"))  # if it has not refused by itself
    talk.go_on()
    before = list(talk.events)
    assert talk.conversation.phase is Phase.DONE
    talk.feed([more, request(b"x"), *cut(more, places)])
    talk.conversation.refuse(Refused(408, "too slow"))
    talk.go_on()
    assert talk.events == before
    assert talk.conversation.phase is Phase.DONE
    assert [event for event in before if event[0] == "refused"] == before[-1:] or before[-1][0] != "refused"
    assert talk.budget.used == 0


@given(stream, cuts)
def test_a_request_is_not_looked_at_before_the_one_in_front_is_answered(data: bytes, places: list[int]) -> None:
    talk = Talk()
    seen: list[Request] = []
    conversation = Conversation(Limits(), talk.budget, lambda one: seen.append(one) or admit(one))  # type: ignore[func-returns-value]
    for piece in cut(request(b"first") + data, places):
        conversation.receive(piece)
        while conversation.next() is not None:
            pass
    assert len(seen) <= 1


@given(stream, cuts, st.booleans())
def test_what_is_held_is_bounded_and_counted(data: bytes, places: list[int], answered: bool) -> None:
    talk = Talk()
    conversation, held = talk.conversation, 0
    for piece in cut(data, places):
        if conversation.full:
            break
        conversation.receive(piece)
        if answered:
            talk.go_on()
        else:
            while (event := conversation.next()) is CONTINUE:
                pass
            held = event.held if isinstance(event, Request) else held
        in_memory = len(conversation._ahead) + len(conversation._body)
        assert in_memory <= max(Limits.max_head + KEEP, AHEAD) + len(piece)
        assert talk.budget.used == in_memory + held
    conversation.close()
    assert talk.budget.used == held


@given(stream, st.integers(0, 3 * OVERHEAD))
def test_what_does_not_fit_is_refused_and_nothing_stays_counted(data: bytes, most: int) -> None:
    talk = Talk(most)
    talk.feed([data[at : at + 7] for at in range(0, len(data), 7)])
    talk.conversation.close()
    assert talk.budget.used == 0


class Reference:
    """The same bytes, read by httptools alone."""

    def __init__(self, data: bytes) -> None:
        self.bodies: list[bytes] = []
        self._body = b""
        with suppress(httptools.HttpParserError, httptools.HttpParserUpgrade):
            httptools.HttpRequestParser(self).feed_data(data)

    def on_message_begin(self) -> None:
        self._body = b""

    def on_body(self, data: bytes) -> None:
        self._body += data

    def on_message_complete(self) -> None:
        self.bodies.append(self._body)


@given(st.lists(st.one_of(good, mutated()), min_size=1, max_size=3).map(b"".join))
def test_what_is_served_is_what_a_strict_parser_reads(data: bytes) -> None:
    """A proxy in front that uses another parser must not see other requests than we do."""
    ours = [one.body for one in serve(data)]
    theirs = [body[:KEEP] for body in Reference(data).bodies]
    assert theirs[: len(ours)] == ours


def serve(data: bytes) -> list[Request]:
    talk = Talk()
    talk.feed([data])
    return talk.served


@pytest.mark.parametrize(
    ("head_", "status"),
    [
        (b"POST /q HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501),
        (b"POST /q HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n", 400),
        (b"BREW / HTTP/1.1\r\nHost: h\r\n\r\n", 501),
        (b"GET / HTTP/2.0\r\nHost: h\r\n\r\n", 505),
    ],
)
def test_what_is_not_understood_is_not_taken_for_something_else(head_: bytes, status: int) -> None:
    assert Talk().feed([head_, request(b"x")])[-1] == ("refused", status)


def test_http_1_0_in_chunks_is_served_and_was_the_last() -> None:
    one = b"POST /q HTTP/1.0\r\nConnection: keep-alive\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n"
    assert [served.body for served in serve(one + request(b"y"))] == [b"x"]


def test_a_body_of_small_chunks_takes_no_more_memory_than_its_bytes() -> None:
    size = 100_000
    conversation = Conversation(Limits(max_body=size), Budget(1 << 30), lambda _: size)
    conversation.receive(b"POST /q HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n")
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(size // 100):
            conversation.receive(b"2\r\nxy\r\n" * 50)
            assert conversation.next() is None
        assert tracemalloc.get_traced_memory()[0] - before < 1.5 * size
    finally:
        tracemalloc.stop()


def test_the_number_of_chunks_has_a_limit() -> None:
    conversation = Conversation(Limits(max_body=1 << 30), Budget(1 << 30), lambda _: 0)
    conversation.receive(b"POST /q HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n")
    event: Any = None
    for _ in range(MOST_CHUNKS // 1000 + 1):
        assert event is None
        conversation.receive(b"1\r\nx\r\n" * 1000)
        event = conversation.next()
    assert event.error.status == 413


def test_nothing_long_is_remembered() -> None:
    """A cache of 1,000 heads of 16 KiB would hold megabytes."""
    head._short_line.cache_clear()
    head._short_block.cache_clear()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for number in range(1000):
            long = b"x" * 15_000 + b"%d" % number
            head.read_line(b"GET /%b HTTP/1.1" % long)
            head.read_fields(b"Host: h\r\nX: %b\r\n" % long, b"1.1")
        assert tracemalloc.get_traced_memory()[0] - before < 500_000
    finally:
        tracemalloc.stop()
