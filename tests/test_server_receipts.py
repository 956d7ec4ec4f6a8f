"""Receipts over HTTP: with tokens, nobody can guess one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import penstock
from penstock import BadInput, Broker, Receipt
from penstock.server import BackgroundServer, ServerSettings
from penstock.server.receipts import seal, unseal
from penstock.server.tokens import read_tokens

A, B, NEW, ADMIN = (letter * 16 for letter in "abnx")


def table(name: str, secret: str | list[str], *scopes: str) -> dict[str, object]:
    return {"name": name, "secret": secret, "scopes": list(scopes)}


def serve(broker: Broker, *tables: dict[str, object]) -> BackgroundServer:
    return BackgroundServer(broker, ServerSettings(port=0, tokens=read_tokens(tables, "test", "")))  # type: ignore[arg-type]


TABLES = [table("a", A, "receive", "count"), table("b", B, "receive", "read"), table("x", ADMIN, "receive", "read", "admin")]


@pytest.fixture
def broker() -> Iterator[Broker]:
    with penstock.open("memory:") as broker:
        broker.create("orders", visibility=3600).send_many([b"1", b"2", b"3"])
        yield broker


def test_what_a_token_holds_no_other_can_settle(broker: Broker) -> None:
    with serve(broker, *TABLES) as server, penstock.open(server.url, token=A) as a, penstock.open(server.url, token=B) as b:
        (message,) = a["orders"].receive()
        (held,) = broker["orders"].peek(state="consumed")
        guesses: list[Receipt | str] = [
            message.id,
            Receipt("orders", message.id, None),
            held.receipt,
            message.receipt,
            Receipt("orders", message.id, message.delivery ^ 1),
            Receipt("orders", message.id, message.delivery + (1 << 64)),
            Receipt("orders", message.id, held.delivery << 64),
        ]
        for receipt in guesses:
            for settle in (
                lambda queue, receipt=receipt: queue.delete_many([receipt]),
                lambda queue, receipt=receipt: queue.extend(receipt, 0),
                lambda queue, receipt=receipt: queue.extend_many([receipt], 0),
                lambda queue, receipt=receipt: queue.release(receipt),
                lambda queue, receipt=receipt: queue.fail(receipt),
                lambda queue, receipt=receipt: queue.finish([receipt]),
                lambda queue, receipt=receipt: queue.exchange([receipt], 1),
            ):
                with pytest.raises(BadInput, match="that it has received"):
                    settle(b["orders"])
        assert broker["orders"].stats().in_flight == 1
        assert message.extend(60)
        assert message.release()
        again = a["orders"].receive(3)
        assert message.delete() is False, "stale"
        broker["orders"].send(b"4")
        settled, more = a["orders"].exchange(again, 2)
        assert (settled, len(more)) == ([True] * 3, 1)
        assert a["orders"].delete_many(more) == [True]
    assert broker["orders"].stats().messages == 0


def test_a_receipt_outlives_a_restart_and_holds_on_every_server(broker: Broker) -> None:
    with serve(broker, *TABLES) as server, penstock.open(server.url, token=A) as a:
        (message,) = a["orders"].receive()
    with serve(broker, *TABLES) as server, penstock.open(server.url, token=A) as a:
        assert a["orders"].delete(message.receipt)


def test_a_receipt_outlives_a_change_of_the_secret(broker: Broker) -> None:
    def serving(*known: str) -> BackgroundServer:
        return serve(broker, table("a", list(known), "receive", "count"))

    def receive(secret: str, *known: str) -> Receipt:
        with serving(*known) as server, penstock.open(server.url, token=secret) as a:
            return a["orders"].receive()[0].receipt

    def delete(receipt: Receipt, secret: str, *known: str) -> bool:
        with serving(*known) as server, penstock.open(server.url, token=secret) as a:
            return a["orders"].delete(receipt)

    assert delete(receive(A, A), NEW, A, NEW)
    assert delete(receive(A, A, NEW), NEW, NEW)
    late = receive(A, A)
    with pytest.raises(BadInput, match="that it has received"):
        delete(late, NEW, NEW)


def test_a_token_with_admin_settles_by_id_and_by_any_receipt(broker: Broker) -> None:
    with serve(broker, *TABLES) as server, penstock.open(server.url, token=A) as a:
        first, second, third = a["orders"].receive(3)
        plain = {message.id: message.receipt for message in broker["orders"].peek(3, state="consumed")}
        with penstock.open(server.url, token=ADMIN) as admin:
            assert admin["orders"].delete(first.id)
            assert admin["orders"].delete(second.receipt)
            assert admin["orders"].delete(plain[third.id])


def test_without_tokens_a_receipt_is_the_stores_own(broker: Broker) -> None:
    with BackgroundServer(broker) as server, penstock.open(server.url) as remote:  # type: ignore[arg-type]
        (message,) = remote["orders"].receive()
        assert broker["orders"].delete(message.receipt)


def test_a_message_that_no_client_got_is_given_back_under_its_own_receipt(broker: Broker) -> None:
    """The client gets a copy with a proof; the server gives back the original."""
    (message,) = broker["orders"].receive()
    (grant,) = [token.grant for token in read_tokens([table("a", A, "receive")], "test", "")]
    (sealed,) = seal(grant, [message])
    assert (sealed.delivery >> 64, sealed.body) == (message.delivery, message.body)
    assert unseal(grant, "orders", sealed) == message.receipt
    assert message.release()
