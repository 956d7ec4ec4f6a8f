"""The results as a page of Markdown and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from statistics import median
from typing import Any

from penstock.bench.report import AcceptanceLine, fact_lines, joined, over, si
from penstock.bench.sqs.comparison import BOTO, JSON, MOTO, MQS, PENSTOCK, SIZE, TARGETS, VERBS, Results, Timing

ELASTICMQ = 2500
"""Messages a second, as ElasticMQ's authors have published; it is not measured here."""
MOST = 1.5
"""What SQS in JSON may cost the server, of the same work in mqs."""


def markdown(results: Results, facts: dict[str, str]) -> str:
    parts = ["# Penstock as Amazon SQS", *fact_lines(facts), _reading(results), "## Messages a second", *_rates(results)]
    parts += [f"* {note}" for note in sorted(set(results.notes))]
    parts += ["## Microseconds of the server's processor a message", *_costs(results)]
    parts += ["## Acceptance", *map(str, acceptance(results))]
    return "\n\n".join(joined(parts)) + "\n"


def _reading(results: Results) -> str:
    plan = results.plan
    return (
        f"Messages of {SIZE} bytes. A row is verb-connections; -10x: ten messages in each call. In a turn, a client sends "
        f"about {plan.messages} messages one by one and as many in batches, then receives and deletes all of them. All take "
        f"turns, in {plan.rounds} rounds; a number is the median of the rounds, a ratio the median of the ratios within the "
        "rounds. Penstock serves a file of SQLite, and answers a send when the message is on the disk; moto keeps messages in "
        "memory. JSON: plain requests over asyncio's streams; boto3: a thread for each connection; mqs: the same work in the "
        "dialect mqs, which deletes one message in each request. `g`: the clients used 90 % of a core or more, so that the "
        "client is measured as much as the server. moto has a tenth of the messages, because every message that it holds "
        f"slows it. ElasticMQ, in memory, is published to reach about {si(ELASTICMQ)} messages a second; it is not "
        "measured here."
    )


def _rows(results: Results) -> Iterator[tuple[str, str, int]]:
    for connections in results.plan.connections:
        for verb in VERBS:
            yield f"{verb}-{connections}c", verb, connections


def _ratio(mine: list[Timing], theirs: list[Timing], of: str) -> float:
    return median(over(getattr(one, of), getattr(other, of)) for one, other in zip(mine, theirs, strict=True))


def _rates(results: Results) -> Iterator[str]:
    names = [target.name for target in TARGETS]
    titles = [*names, f"{PENSTOCK} ÷ {MOTO}, {JSON}", f"{PENSTOCK} ÷ {MOTO}, {BOTO}", "JSON ÷ ElasticMQ as published"]
    yield f"| row | {' | '.join(titles)} |"
    yield f"|---|{'---:|' * len(titles)}"
    for name, verb, connections in _rows(results):
        found = {target: results.timings[verb, connections, target] for target in names}
        cells = [_rate(timings) for timings in found.values()]
        cells += [f"{_ratio(found[f'{PENSTOCK} {c}'], found[f'{MOTO} {c}'], 'rate'):.1f} ×" for c in (JSON, BOTO)]
        cells.append(f"{median(one.rate for one in found[f'{PENSTOCK} {JSON}']) / ELASTICMQ:.1f} ×")
        yield f"| {name} | {' | '.join(cells)} |"


def _rate(timings: list[Timing]) -> str:
    full = median(one.clients / one.seconds for one in timings) >= 0.9
    return si(median(one.rate for one in timings)) + (" g" if full else "")


def _costs(results: Results) -> Iterator[str]:
    names = [target.name for target in TARGETS]
    yield f"| row | {' | '.join(names)} | {JSON} ÷ {MQS} |"
    yield f"|---|{'---:|' * (len(names) + 1)}"
    for name, verb, connections in _rows(results):
        cells = [_cost(results.timings[verb, connections, target]) for target in names]
        yield f"| {name} | {' | '.join(cells)} | {_overhead(results, verb, connections):.2f} × |"


def _cost(timings: list[Timing]) -> str:
    return f"{1e6 * median(one.server / one.messages for one in timings):.0f}"


def _overhead(results: Results, verb: str, connections: int) -> float:
    found = [results.timings[verb, connections, f"{PENSTOCK} {client}"] for client in (JSON, MQS)]
    return _ratio(found[0], found[1], "server")


def acceptance(results: Results) -> list[AcceptanceLine]:
    lines = []
    for name, verb, connections in _rows(results):
        found = _overhead(results, verb, connections)
        text = f"{name}: JSON costs the server at most {MOST} × the processor time of mqs"
        lines.append(AcceptanceLine(text, f"{found:.2f} ×", found <= MOST))
    return lines


def document(results: Results, facts: dict[str, str]) -> dict[str, Any]:
    """Everything for other programs, with every turn."""
    rows = [
        {
            "name": name,
            "verb": verb,
            "connections": connections,
            "targets": {
                target.name: [asdict(one) for one in results.timings[verb, connections, target.name]] for target in TARGETS
            },
        }
        for name, verb, connections in _rows(results)
    ]
    return {
        "machine": facts,
        "plan": asdict(results.plan),
        "published": {"ElasticMQ": ELASTICMQ},
        "notes": sorted(set(results.notes)),
        "rows": rows,
        "acceptance": [asdict(line) for line in acceptance(results)],
    }
