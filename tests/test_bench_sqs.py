"""`penstock bench sqs` measures the service as SQS beside moto's server, and what its dialects cost."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

import penstock
from penstock import bench
from penstock.bench.sqs.comparison import RECEIVE, SEND, TARGETS, VERBS, Clients, Plan, Results, Timing, processor_seconds
from penstock.bench.sqs.report import acceptance, markdown
from penstock.bench.sqs.sessions import BotoSession, JsonSession, MqsSession, Session, Unexpected
from penstock.server import BackgroundServer


def test_a_quick_run_measures_all_clients_on_both_servers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    arguments = ["sqs", "--quick", "--messages", "20", "--connections", "1", "2", "--out", str(out), "--folder", str(tmp_path)]
    assert bench.main(arguments) == 0
    page = (out / "sqs.md").read_text()
    assert page in capsys.readouterr().out
    found = json.loads((out / "sqs.json").read_text())
    rows = {row["name"]: row["targets"] for row in found["rows"]}
    assert rows.keys() == {f"{verb}-{connections}c" for verb in VERBS for connections in (1, 2)}
    for name, targets in rows.items():
        assert f"| {name} |" in page
        assert targets.keys() == {target.name for target in TARGETS}
        assert all(turn["messages"] > 0 and turn["seconds"] > 0 for turns in targets.values() for turn in turns)
    assert found["machine"].keys() >= {"moto", "boto3", "load"}
    assert not list(tmp_path.glob(".penstock-bench-*")), "the queues are cleared away"


@pytest.mark.parametrize("kind", [JsonSession, BotoSession, MqsSession])
def test_the_clients_send_receive_and_delete_what_they_count(kind: type[Session], tmp_path: Path) -> None:
    async def turn(url: str) -> Clients:
        sessions = [await kind.open(url, "bench") for _ in range(2)]  # type: ignore[attr-defined]
        await sessions[0].create()
        clients = Clients(sessions)
        for verb in VERBS:
            await clients.run(verb, 20)
            counts[verb] = broker["bench"].stats().messages
        await clients.close()
        return clients

    counts: dict[str, int] = {}
    with penstock.open(f"sqlite:///{tmp_path}/queue.db") as broker, BackgroundServer(broker) as server:
        clients = asyncio.run(turn(server.url))
    assert list(counts.values()) == [40, 80, 80, 0]
    assert (clients.errors, list(clients.faults())) == ([], [])


class Odd(JsonSession):
    """A server that answers sends with an error, or gives every message twice."""

    def __init__(self, *, fails: bool) -> None:
        self._fails = fails

    async def send(self, bodies: Sequence[str]) -> None:
        if self._fails:
            raise Unexpected("500")

    async def receive(self) -> list[str]:
        return ["a", "a"]


def test_a_server_that_answers_with_errors_is_named() -> None:
    clients = Clients([Odd(fails=True)])
    asyncio.run(clients.run(SEND, 10))
    assert list(clients.faults()) == ["it answered with errors"]


def test_a_server_that_gives_a_message_twice_is_named() -> None:
    clients = Clients([Odd(fails=False)])
    for verb in (SEND, RECEIVE):
        asyncio.run(clients.run(verb, 1))
    assert list(clients.faults()) == ["it gave one message to two clients"]


def test_the_processor_time_of_another_process_is_read_from_its_clock() -> None:
    before, mine = processor_seconds(os.getpid()), time.process_time()
    while time.process_time() < mine + 0.05:
        pass
    assert 0.04 < processor_seconds(os.getpid()) - before < 5


def test_json_may_cost_half_as_much_again_as_mqs() -> None:
    results = Results(Plan(rounds=1, connections=(1,)))
    for target in TARGETS:
        for verb in VERBS:
            cost = {"penstock JSON": 1.6 if verb == "send" else 1.4}.get(target.name, 1.0)
            results.timings[verb, 1, target.name] = [Timing(10, 1.0, cost, 0.95)]
    assert [line.met for line in acceptance(results)] == [False, True, True, True]
    assert "10 g" in markdown(results, {"file system": "ext4"})


@pytest.mark.parametrize("flag", ["--rounds", "--messages", "--connections"])
def test_a_count_that_is_not_positive_is_refused(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main(["sqs", flag, "0"]) == 2
    assert f"{flag} is " in (told := capsys.readouterr().err)
    assert "must be more than 0" in told
