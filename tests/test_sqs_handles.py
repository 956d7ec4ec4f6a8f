"""Receipt handles of SQS: no text but a handle is one, and with tokens or keys only its own receiver can use it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.broker import LocalBroker, open_local
from penstock.message import FOREVER, Message, Receipt, Settings, State
from penstock.server import BackgroundServer, ServerSettings
from penstock.server.dialects.sqs.errors import SqsError
from penstock.server.dialects.sqs.handles import handle_of, read_handle
from penstock.server.dialects.sqs.message_attributes import (
    Filter,
    attach,
    body_of,
    first_forbidden,
    is_text,
    recall,
    remember,
    show,
)
from penstock.server.dialects.sqs.rules import BY_GROUP, BY_QUEUE, WINDOW, change_scope, read_rules
from penstock.server.http.request_response import EVERYTHING, Grant, Scope
from penstock.server.tokens import read_tokens
from penstock.stores.ids import Ids, number_of
from penstock.testing.sqs_receiving import receive
from penstock.testing.sqs_sending import SqsClient

A, B, NEW, ADMIN = (letter * 16 for letter in "abnx")
names = st.text(min_size=1, max_size=40).filter(lambda name: name.isprintable())
texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=30)


def message(queue: str = "orders", id: str = "7", delivery: int = 5, **fields: Any) -> Message:
    given = {"body": b"", "content_type": "text/plain; charset=utf-8", "attributes": {}, **fields}
    return Message(
        id, 1, queue, state=State.CONSUMED, receives=1, delivery=delivery, sent_at=0, visible_at=0, expires_at=0, **given
    )


# the text of a handle


@given(names, names, st.integers(0, FOREVER))
def test_a_handle_is_read_as_the_receipt_that_it_was_made_of(queue: str, id: str, delivery: int) -> None:
    handle = handle_of(EVERYTHING, message(queue, id, delivery))
    assert handle.isascii()
    assert " " not in handle
    assert read_handle(EVERYTHING, queue, handle) == (Receipt(queue, id, delivery), 1)
    with pytest.raises(SqsError, match="not a valid receipt handle"):
        read_handle(EVERYTHING, queue + "2", handle)


@given(st.data())
def test_a_handle_with_another_character_is_none(data: st.DataObject) -> None:
    handle = handle_of(EVERYTHING, message(id="265f77f7-bace-83d7-8000-000000000001", delivery=1_800_000_000_000_000))
    place = data.draw(st.integers(0, len(handle.rstrip("=")) - 2))  # the last has bits that mean nothing
    other = data.draw(st.characters(codec="utf-8").filter(lambda character: character != handle[place]))
    with pytest.raises(SqsError, match="not a valid receipt handle"):
        read_handle(EVERYTHING, "orders", handle[:place] + other + handle[place + 1 :])


@given(st.text(max_size=200))
def test_no_other_text_is_a_handle(text: str) -> None:
    with pytest.raises(SqsError) as refused:
        read_handle(EVERYTHING, "orders", text)
    assert refused.value.shape == "ReceiptHandleIsInvalid"


def test_with_tokens_a_handle_is_only_good_for_its_receiver_and_those_who_may_change_the_queue() -> None:
    def grant(*keys: bytes, scopes: tuple[Scope, ...] = (Scope.RECEIVE,)) -> Grant:
        return Grant("x", frozenset(scopes), ("*",), keys=keys)

    handle = handle_of(grant(b"old", b"mine"), message())
    assert read_handle(grant(b"mine"), "orders", handle).receipt.id == "7"
    assert read_handle(grant(b"mine", b"new"), "orders", handle).receipt.id == "7"
    assert read_handle(grant(b"other", scopes=(Scope.ADMIN,)), "orders", handle).receipt.id == "7"
    for other in (grant(b"other"), grant(b"old")):
        with pytest.raises(SqsError, match="not a valid receipt handle"):
            read_handle(other, "orders", handle)
    with pytest.raises(SqsError, match="not a valid receipt handle"):
        read_handle(grant(b"mine"), "orders", handle_of(EVERYTHING, message()))


# through a server


@pytest.fixture
def broker() -> Iterator[LocalBroker]:
    with open_local("memory:") as broker:
        broker.create("orders").send_many([b"1", b"2", b"3"])
        yield broker


def client(server: BackgroundServer, secret: str) -> SqsClient:
    return SqsClient(server.url, "query", token=secret)


def test_what_a_token_has_received_no_other_deletes_or_hides(broker: LocalBroker) -> None:
    tables = [
        {"name": "a", "secret": A, "scopes": ["receive"]},
        {"name": "b", "secret": B, "scopes": ["receive"]},
        {"name": "x", "secret": ADMIN, "scopes": ["receive", "admin"]},
    ]
    with BackgroundServer(broker, ServerSettings(port=0, tokens=read_tokens(tables, "test", ""))) as server:
        a, b, admin = client(server, A), client(server, B), client(server, ADMIN)
        handle = receive(a)["ReceiptHandle"]
        assert b.refusal("DeleteMessage", "orders", ReceiptHandle=handle)[0] == "ReceiptHandleIsInvalid"
        refused = b.refusal("ChangeMessageVisibility", "orders", ReceiptHandle=handle, VisibilityTimeout=0)
        assert refused[0] == "ReceiptHandleIsInvalid"
        (failed,) = b("DeleteMessageBatch", "orders", Entries=[{"Id": "1", "ReceiptHandle": handle}])["Failed"]
        assert failed["Code"] == "ReceiptHandleIsInvalid"
        assert broker["orders"].stats().in_flight == 1
        a("DeleteMessage", "orders", ReceiptHandle=handle)
        admin("DeleteMessage", "orders", ReceiptHandle=receive(a)["ReceiptHandle"])
        assert broker["orders"].stats().messages == 1


def test_a_token_is_the_sender_of_what_it_sends(broker: LocalBroker) -> None:
    tables = [{"name": "shop", "secret": A}]
    with BackgroundServer(broker, ServerSettings(port=0, tokens=read_tokens(tables, "test", ""))) as server:
        shop = client(server, A)
        shop("CreateQueue", QueueName="sent")
        shop("SendMessage", "sent", MessageBody="x")
        assert receive(shop, "sent", AttributeNames=["SenderId"])["Attributes"] == {"SenderId": "shop"}


# ids, attributes and rules


@given(st.integers(1, 2**62 - 1), st.integers(0, 2**60 - 1))
def test_an_id_tells_its_number(number: int, salt: int) -> None:
    assert number_of(Ids(salt).make(number)) == number


@pytest.mark.parametrize(
    "id", ["", "7", "x" * 36, "265f77f7-bace-43d7-8000-000000000001", "265f77f7-bace-83d7-zzzz-000000000001"]
)
def test_another_id_tells_no_number(id: str) -> None:
    assert number_of(id) is None


@given(st.text())
def test_text_is_allowed_if_each_of_its_characters_is(text: str) -> None:
    allowed = all(first_forbidden(character) is None for character in text)
    try:
        assert is_text(text.encode()) == allowed
    except UnicodeEncodeError:
        assert not allowed


@given(st.binary())
def test_every_body_has_a_text_that_sqs_allows(body: bytes) -> None:
    text, raw, encoded = body_of(message(body=body))
    assert text.encode() == raw
    assert is_text(raw)
    assert encoded or raw == body


values = st.one_of(
    st.tuples(
        st.just("StringValue"), st.sampled_from(["String", "String.x"]), texts.filter(lambda text: is_text(text.encode()))
    ),
    st.tuples(st.just("StringValue"), st.sampled_from(["Number", "Number.int"]), st.integers().map(str)),
    st.tuples(st.just("BinaryValue"), st.sampled_from(["Binary", "Binary.png"]), st.binary(min_size=1)),
).map(lambda value: {"DataType": value[1], value[0]: value[2]})


@given(st.dictionaries(st.from_regex(r"[a-z][\w-]{0,9}", fullmatch=True), values, max_size=10))
def test_attributes_are_shown_as_they_were_given(given: dict[str, Any]) -> None:
    attached = attach(given)
    kept = message(attributes=remember(attached))
    assert show(kept, recall(kept), Filter(["All"]), False) == (given, attached.digest)


def test_a_scope_that_is_changed_twice_within_the_window_is_the_first() -> None:
    first = Settings(groups=True, deduplicate=300)
    assert change_scope(first, BY_QUEUE, 0) == {"sqs.DeduplicationScope": BY_QUEUE}
    second = Settings(groups=True, deduplicate=300, labels=change_scope(first, BY_GROUP, 10))
    third = Settings(groups=True, deduplicate=300, labels={**second.labels, **change_scope(second, BY_QUEUE, 20)})
    end = 20 + WINDOW * 1_000_000
    for settings, now, told in ((second, 11, True), (second, end, False), (third, 21, True), (third, end, True)):
        assert read_rules(settings).key("g", "d", now)[1] is told
