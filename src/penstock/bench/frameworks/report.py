"""The results as a page of Markdown and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from statistics import median
from typing import Any

from penstock.bench.frameworks.comparison import Results
from penstock.bench.frameworks.targets import OURS, PROCESSES, Target
from penstock.bench.report import AcceptanceLine, fact_lines, joined, over, si

PENSTOCK = " penstock-"
"""In the name of a target on Penstock."""
WITHIN = 1.5
"""How many times as fast the fastest may be."""
MICRO = 1e6
COLUMNS = (
    "sent",
    "worked off",
    "both",
    "both, of the fastest",
    "µs of processor a task: sender + workers + broker",
    "syncs a send",
    "can lose",
)


def markdown(results: Results, facts: dict[str, str]) -> str:
    parts = ["# Penstock under frameworks", *fact_lines(facts), *_reading(results), "## Tasks a second", *_table(results)]
    parts += [f"* **{name} is not as durable as the others: it synced less often than it answered**" for name in lax(results)]
    parts += ["## Acceptance", *map(str, acceptance(results))]
    return "\n\n".join(joined(parts)) + "\n"


def _reading(results: Results) -> Iterator[str]:
    plan = results.plan
    yield (
        f"An empty task, {plan.tasks} of them in a turn. One process sends them one by one, each safe when its call returns; "
        f"then workers with {PROCESSES} processes start and work them off, as each framework's own command does, with its own "
        "defaults. The start of a worker and the first tenth of the tasks are not timed. Both: tasks a second, if one after "
        f"the other is sent and worked off. All take turns, in {plan.rounds} rounds; a number is the median of the rounds, a "
        "ratio the median of the ratios within the rounds. Celery acknowledges late, without gossip, mingle and heartbeat, "
        "on every broker. Processor time is steadier than rates on a busy machine. Syncs: calls that wait for the disk while "
        f"{plan.synced} tasks are sent one by one, counted by strace: below 1, a task that was sent is not on the disk yet."
    )
    for target in results.targets:
        if server := results.servers.get(target.name):
            yield f"* {target.name}: {target.version()}; {server.version}, {server.settings}; {target.note}"
    yield from (f"* {note}" for note in sorted(set(results.notes)))


def _measured(results: Results) -> list[Target]:
    return [target for target in results.targets if target.name not in results.missing and target.name in results.turns]


def rate(results: Results, name: str, of: str = "cycles") -> float:
    rates: list[float] = [getattr(turn, of) for turn in results.turns[name]]
    return median(rates)


def ratio(results: Results, name: str, other: str) -> float:
    """Of the rates of both steps: the median of the ratios of the rounds."""
    pairs = zip(results.turns[name], results.turns[other], strict=True)
    return median(over(mine.cycles, theirs.cycles) for mine, theirs in pairs)


def fastest(results: Results, targets: list[Target]) -> Target:
    return max(targets, key=lambda target: rate(results, target.name))


def lax(results: Results) -> list[str]:
    """Those that have answered single sends, one after the other, with fewer syncs than tasks."""
    return [name for name, (sent, calls) in results.syncs.items() if sum(calls.values()) < sent]


def loses(results: Results, target: Target) -> str:
    return "what was sent last, when the power fails" if target.name in lax(results) else target.loses


def _table(results: Results) -> Iterator[str]:
    measured = _measured(results)
    first = fastest(results, measured) if measured else None
    yield f"| | {' | '.join(COLUMNS)} |"
    yield f"|---|{'---:|' * (len(COLUMNS) - 1)}---|"
    for target in sorted(measured, key=lambda target: -rate(results, target.name)):
        assert first
        name = target.name
        costs = [f"{MICRO * rate(results, name, of):.0f}" for of in ("sender", "worker", "server")]
        sent, calls = results.syncs.get(name, (0, {}))
        cells = [si(rate(results, name, of)) for of in ("sends", "works", "cycles")]
        cells += [f"{ratio(results, name, first.name):.2f}", " + ".join(costs)]
        cells += [f"{sum(calls.values()) / sent:.2f}" if sent else "–", loses(results, target)]
        yield f"| {name} | {' | '.join(cells)} |"
    for name, why in results.missing.items():
        yield f"| {name} | not measured: {' '.join(why.replace('|', '/').split())} |{' |' * (len(COLUMNS) - 1)}"


def acceptance(results: Results) -> list[AcceptanceLine]:
    measured = _measured(results)
    lines = []
    for ours in OURS:
        if ours not in [target.name for target in measured]:
            lines.append(AcceptanceLine(f"{ours}: within {WITHIN} × of the fastest", "", None))
            continue
        groups = {
            "": measured,
            " of Celery's brokers": [target for target in measured if target.name.startswith("celery")],
        }
        for words, group in groups.items():
            first = fastest(results, group)
            behind = ratio(results, first.name, ours)
            found = f"{behind:.2f} × ({first.name})"
            lines.append(AcceptanceLine(f"{ours}: within {WITHIN} × of the fastest{words}", found, behind <= WITHIN))
    safe = [target for target in measured if loses(results, target) == "nothing"]
    if safe and any(target.name in OURS for target in safe):
        celery = [target for target in safe if target.name.startswith("celery")]
        for words, group in {"those": safe, "Celery's brokers": celery}.items():
            leads = fastest(results, group).name
            lines.append(AcceptanceLine(f"the first of {words} that lose nothing is on Penstock", leads, PENSTOCK in leads))
    return lines


def document(results: Results, facts: dict[str, str]) -> dict[str, Any]:
    """Everything for other programs, with every turn."""
    targets = {}
    for target in _measured(results):
        sent, calls = results.syncs.get(target.name, (0, {}))
        targets[target.name] = {
            "library": target.version(),
            "server": results.servers[target.name].version,
            "settings": results.servers[target.name].settings,
            "note": target.note,
            "loses": loses(results, target),
            "syncs": {"tasks": sent, "calls": calls},
            "turns": [asdict(turn) | {"cycles": turn.cycles} for turn in results.turns[target.name]],
        }
    return {
        "machine": facts,
        "plan": asdict(results.plan),
        "targets": targets,
        "missing": results.missing,
        "notes": results.notes,
        "acceptance": [asdict(line) for line in acceptance(results)],
    }
