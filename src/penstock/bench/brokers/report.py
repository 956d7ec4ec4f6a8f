"""The results as a page of Markdown and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from statistics import median
from typing import Any

from penstock.bench.brokers.comparison import ROWS, SIZE, Results, Row
from penstock.bench.brokers.targets import CLIENT, EMBEDDED, ON_POSTGRESQL, OURS, SERVE
from penstock.bench.report import AcceptanceLine, fact_lines, joined, over, si

FULL = 0.9
"""The share of a core from which the generator may be what limits a rate."""
QUORUM, REDIS, POSTGRESQL = "rabbitmq-quorum", "redis", "postgresql"
BATCH = Row("send", 1, 100)
WANTED: tuple[tuple[str, Row, str, float], ...] = (
    (SERVE, Row("send", 1), EMBEDDED, 0.6),
    (SERVE, Row("send", 8), REDIS, 1.0),
    (SERVE, Row("send", 32), REDIS, 1.0),
    (SERVE, Row("send", 8), QUORUM, 1.5),
    (SERVE, Row("send", 32), QUORUM, 1.5),
    (CLIENT, Row("send", 32), QUORUM, 1.0),
    (CLIENT, Row("send", 32), REDIS, 0.7),
    (SERVE, Row("cycle", 8), QUORUM, 1.2),
    (SERVE, Row("cycle", 32), QUORUM, 1.2),
    (SERVE, Row("cycle", 8), REDIS, 1.2),
    (SERVE, Row("cycle", 32), REDIS, 1.2),
    (ON_POSTGRESQL, Row("cycle", 32), POSTGRESQL, 0.5),
    (SERVE, BATCH, EMBEDDED, 0.6),
    (CLIENT, BATCH, EMBEDDED, 0.6),
)
"""Whose rate, in which row, is to be which share of whose."""
WAKE_UP_WITHIN = 0.005


def rate(results: Results, row: Row, name: str) -> float | None:
    turns = results.turns.get((row, name))
    return median(turn.rate for turn in turns) if turns else None


def ratio(results: Results, row: Row, name: str, other: str) -> float | None:
    """The median of the ratios of the rounds: what slows the machine for some seconds slows both."""
    mine, theirs = results.turns.get((row, name), []), results.turns.get((row, other), [])
    pairs = list(zip(mine, theirs, strict=False))  # one that has failed on the way has fewer
    return median(over(one.rate, another.rate) for one, another in pairs) if pairs else None


def quantile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def markdown(results: Results, facts: dict[str, str]) -> str:
    parts = ["# Penstock beside brokers", *fact_lines(facts), *_reading(results)]
    if results.turns:
        parts += ["## Messages a second", *_table(results, _rate_cell), *_ratios(results)]
        parts += ["## Milliseconds of a call: p50 / p99", *_table(results, _latency_cell)]
        parts += ["## Cores in use: generator / server", *_table(results, _cores_cell)]
        parts += ["## Microseconds of processor a message: generator / server", *_table(results, _cost_cell)]
    parts += _others(results)
    parts += ["## Acceptance", *map(str, acceptance(results))]
    return "\n\n".join(joined(parts)) + "\n"


def _reading(results: Results) -> Iterator[str]:
    plan = results.plan
    yield (
        f"Messages of {SIZE} bytes. A row is verb-connections, -10x: messages in each call; a cycle is send, receive, settle. "
        f"All take turns of {plan.seconds:g} s, in {plan.rounds} rounds; a number is the median of the rounds, a ratio the "
        "median of the ratios within the rounds. Every target answers a send when the message is on the disk, unless the "
        "line below says otherwise. The clients are Python, one process for each target."
    )
    for target in results.targets:
        server = results.servers[target.name]
        yield f"* {target.name}: " + "; ".join(filter(None, (server.version, target.client(), server.settings, target.note)))
    yield from (f"* {note}" for note in results.notes)


def _rows(results: Results) -> list[Row]:
    return [row for row in ROWS if any(known is row for known, _ in results.turns)]


def _table(results: Results, cell: Any) -> Iterator[str]:
    names = [target.name for target in results.targets]
    yield f"| row | {' | '.join(names)} |"
    yield f"|---|{'---:|' * len(names)}"
    for row in _rows(results):
        yield f"| {row.name} | {' | '.join(cell(results, row, name) or '–' for name in names)} |"


def _rate_cell(results: Results, row: Row, name: str) -> str:
    turns = results.turns.get((row, name))
    if not turns:
        return ""
    full = median(turn.generator for turn in turns) >= FULL
    return si(median(turn.rate for turn in turns)) + (" g" if full else "")


def _latency_cell(results: Results, row: Row, name: str) -> str:
    turns = results.turns.get((row, name))
    if not turns:
        return ""
    return " / ".join(f"{1000 * median(values):.3g}" for values in ([t.p50 for t in turns], [t.p99 for t in turns]))


def _cores_cell(results: Results, row: Row, name: str) -> str:
    turns = results.turns.get((row, name))
    if not turns:
        return ""
    server = f"{median(turn.server for turn in turns):.2f}" if results.servers[name].roots else "–"
    return f"{median(turn.generator for turn in turns):.2f} / {server}"


def _cost_cell(results: Results, row: Row, name: str) -> str:
    """What a message costs, however many others share the machine."""
    turns = results.turns.get((row, name))
    if not turns:
        return ""
    server = f"{median(1e6 * turn.server / turn.rate for turn in turns):.0f}" if results.servers[name].roots else "–"
    return f"{median(1e6 * turn.generator / turn.rate for turn in turns):.0f} / {server}"


def _ratios(results: Results) -> Iterator[str]:
    yield (
        f"g: the generator used {FULL:.0%} of a core or more, so that the server could perhaps do more. A peer's rate and ours "
        "are then those of a Python program, not those of the servers."
    )
    names = [target.name for target in results.targets]
    for mine in (name for name in OURS if name in names and name != EMBEDDED):
        others = [name for name in names if name != mine]
        if others:
            yield f"### {mine} / each of the others"
            yield f"| row | {' | '.join(others)} |"
            yield f"|---|{'---:|' * len(others)}"
            for row in _rows(results):
                found = [ratio(results, row, mine, other) for other in others]
                yield f"| {row.name} | {' | '.join('–' if one is None else f'{one:.2f}' for one in found)} |"


def _others(results: Results) -> Iterator[str]:
    names = [target.name for target in results.targets]
    columns: dict[str, dict[str, str]] = {
        "wake-up ms, p50 / p99": {
            name: f"{1000 * quantile(took, 0.5):.3g} / {1000 * quantile(took, 0.99):.3g}"
            for name, took in results.wakes.items()
        },
        "syncs a message, 1 connection": {name: _synced(found, 1) for name, found in results.syncs.items()},
        "32 connections": {name: _synced(found, 32) for name, found in results.syncs.items()},
        f"{results.plan.waiters} waiters, % of a core: server + clients": {
            name: f"{100 * server:.1f} + {100 * clients:.1f}" for name, (server, clients) in results.idle.items()
        },
        "memory, empty → at a backlog": {
            name: f"{empty >> 20} → {full >> 20} MiB" + ("" if count == results.plan.backlog else f" ({si(count)})")
            for name, (empty, full, count) in results.memory.items()
        },
    }
    shown = {title: cells for title, cells in columns.items() if cells}
    if shown:
        yield "## Wake-up, syncs, idle cost, memory"
        yield f"| | {' | '.join(shown)} |"
        yield f"|---|{'---:|' * len(shown)}"
        for name in names:
            yield f"| {name} | {' | '.join(cells.get(name, '–') for cells in shown.values())} |"
        yield (
            "Wake-up: from just before a send until a consumer in another process, which waits, has the message. Syncs: calls "
            "that wait for the disk while single messages are sent, counted by strace; with several connections, several "
            f"messages may share one. Memory: of the server's processes, shared pages once, at {results.plan.backlog} messages "
            "(or as many as in parentheses); embedded: of the process that sent them."
        )
        yield from (
            f"* **{name} is not as durable as the others: it synced less often than it answered**" for name in lax(results)
        )


def lax(results: Results) -> list[str]:
    """Those that have answered single sends, one after the other, with fewer syncs than messages."""
    return [name for name, found in results.syncs.items() if sum(found[1][1].values()) < found[1][0]]


def _synced(found: dict[int, tuple[int, dict[str, int]]], connections: int) -> str:
    sent, calls = found[connections]
    names = ", ".join(sorted(calls))
    return f"{sum(calls.values()) / sent:.2f}" + (f" ({names})" if names else "")


def acceptance(results: Results) -> list[AcceptanceLine]:
    lines = []
    for name, row, other, least in WANTED:
        found = ratio(results, row, name, other)
        text = f"{name}: {row.name}: at least {least:.2f} of {other}"
        lines.append(AcceptanceLine(text, "" if found is None else f"{found:.2f}", None if found is None else found >= least))
    for name in OURS:
        took = results.wakes.get(name)
        middle = quantile(took, 0.5) if took else None
        text = f"{name}: a waiting consumer is woken within {1000 * WAKE_UP_WITHIN:g} ms (p50)"
        shown = "" if middle is None else f"{1000 * middle:.3g} ms"
        lines.append(AcceptanceLine(text, shown, None if middle is None else middle <= WAKE_UP_WITHIN))
    return lines


def document(results: Results, facts: dict[str, str]) -> dict[str, Any]:
    """Everything for other programs, with every turn."""
    names = [target.name for target in results.targets]
    rows = []
    for row in _rows(results):
        found = {}
        for name in names:
            if turns := results.turns.get((row, name)):
                ratios = {other: ratio(results, row, name, other) for other in names if other != name} if name in OURS else {}
                found[name] = {"rate": rate(results, row, name), "ratios": ratios, "turns": [asdict(turn) for turn in turns]}
        rows.append({"name": row.name, **asdict(row), "targets": found})
    return {
        "machine": facts,
        "plan": asdict(results.plan),
        "targets": {
            target.name: {
                "server": results.servers[target.name].version,
                "client": target.client(),
                "settings": results.servers[target.name].settings,
                "synced": results.servers[target.name].synced,
                "note": target.note,
            }
            for target in results.targets
        },
        "notes": results.notes,
        "rows": rows,
        "wake-up": results.wakes,
        "syncs": {
            name: {str(connections): {"messages": sent, "calls": calls} for connections, (sent, calls) in found.items()}
            for name, found in results.syncs.items()
        },
        "idle": {name: {"server": server, "clients": clients} for name, (server, clients) in results.idle.items()},
        "memory": {
            name: {"empty": empty, "full": full, "messages": count} for name, (empty, full, count) in results.memory.items()
        },
        "acceptance": [asdict(line) for line in acceptance(results)],
    }
