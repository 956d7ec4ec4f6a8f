"""The results as a page of Markdown and as JSON, with the acceptance lines checked."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import Any

from penstock.bench import postgresql
from penstock.bench.runs import BODY, Results
from penstock.bench.workloads import Target, Verb, Workload
from penstock.operations.doctor.file_systems import UNJOURNALED


@dataclass(frozen=True, slots=True)
class Cell:
    """A median rate and its ratio to the limit. ``single``: the target has no batches, so this is the rate of single calls."""

    rate: float
    ratio: float | None
    single: bool = False

    def __str__(self) -> str:
        text = si(self.rate) if self.ratio is None else f"{si(self.rate)} ({self.ratio:.2f})"
        return text + "*" if self.single else text


@dataclass(frozen=True, slots=True)
class AcceptanceLine:
    """An acceptance line; ``met`` is None when the run did not measure it."""

    text: str
    found: str
    met: bool | None

    def __str__(self) -> str:
        answer = {True: "met", False: "NOT met", None: "not measured"}[self.met]
        return f"* {self.text}: {self.found or '–'}: **{answer}**"


def cell(results: Results, row: Workload, target: Target) -> Cell | None:
    rates = results.rates.get((row, target.name))
    single = rates is None and row.verb in target.verbs and row.batch > 1
    if single:
        rates = results.rates.get((replace(row, batch=1), target.name))
    if not rates:
        return None
    limits = results.rates.get((row, target.limit or ""))
    if target.limit == target.name or not limits:
        return Cell(median(rates), None, single)
    if single:
        return Cell(median(rates), over(median(rates), median(limits)), single)
    # Compare neighbours in time: a slow moment of the machine slows both.
    return Cell(median(rates), median(map(over, rates, limits)))


def over(rate: float, other: float) -> float:
    """The ratio. A process that stood still for a whole measurement has a rate of 0."""
    return rate / other if other else math.inf


def markdown(results: Results, facts: dict[str, str]) -> str:
    parts = ["# Penstock's benchmark", *fact_lines(facts), *_about_journal(facts), *_reading(results)]
    sections = {
        "One process": [row for row in results.rows if row.processes == 1 and row.backlog is None],
        "Several processes": [row for row in results.rows if row.processes > 1],
        "At a backlog": [row for row in results.rows if row.backlog is not None],
    }
    for title, rows in sections.items():
        if rows:
            parts += [f"## {title}", *_table(results, rows)]
    parts += ["## Acceptance", *map(str, acceptance(results))]
    return "\n\n".join(joined(parts)) + "\n"


def joined(parts: list[str]) -> Iterator[str]:
    """Join the lines of one table or list; separate everything else."""
    block: list[str] = []
    for part in parts:
        if block and not (part[0] == block[-1][0] and part[0] in "|*"):
            yield "\n".join(block)
            block = []
        block.append(part)
    yield "\n".join(block)


def fact_lines(facts: dict[str, str]) -> Iterator[str]:
    yield from (f"* {name}: {value}" for name, value in facts.items())
    if facts["file system"] in ("tmpfs", "ramfs"):
        yield f"**The files were on {facts['file system']}, where a sync does nothing: these are not rates of a disk.**"


def _about_journal(facts: dict[str, str]) -> Iterator[str]:
    if facts["file system"] == UNJOURNALED:
        yield (
            "**The files were on ext4 without a journal, where to create a file means to look at every inode that was freed in "
            "the last minutes: the stores of files, and their limit, are far slower there than elsewhere.**"
        )


def _reading(results: Results) -> Iterator[str]:
    on_server = any(target.limit == postgresql.BARE for target in results.targets)
    limit = postgresql.BARE if on_server else "bare sqlite3, bare files for stores of files, bare memcached"
    yield (
        f"Cells are messages a second and, in parentheses, the ratio to the limit ({limit}) in the same row and run (1.00 is "
        "as fast as the limit). A name is verb-batch×body in bytes, -4p: processes together, -at-N: messages that lay in the "
        "queue beforehand. A star: no batches there, so this is the rate of single calls."
    )
    yield (
        "Every commit of every target waits for the disk, claims too."
        if on_server
        else "Every commit of every target is synced (WAL, synchronous=FULL), but for Penstock's receive: a claim is no "
        "promise, so it waits for no sync of its own, and can be faster than the limit, which syncs it. The memory and "
        "memcached stores sync nothing."
    )
    for target in results.targets:
        settings = results.settings.get(target.name, "")
        if settings or target.note:
            yield f"* {target.name}: " + "; ".join(filter(None, (settings and f"read back {settings}", target.note)))
    yield from (f"* {note}" for note in results.notes)


def _table(results: Results, rows: list[Workload]) -> Iterator[str]:
    targets = [target for target in results.targets if any(cell(results, row, target) for row in rows)]
    yield f"| row | {' | '.join(target.name for target in targets)} |"
    yield f"|---|{'---:|' * len(targets)}"
    for row in rows:
        cells = (cell(results, row, target) for target in targets)
        yield f"| {row.name} | {' | '.join('–' if found is None else str(found) for found in cells)} |"


@dataclass(frozen=True, slots=True)
class Goals:
    """What a store must reach: shares of its limit, and the cost of a verb at a large backlog over a small one."""

    shares: tuple[tuple[Verb, int, float], ...]
    flatness: dict[Verb, float]
    near: int
    far: int
    both: float | None = None
    """The share of receive and delete by 100 together."""


FILES = Goals(((Verb.SEND, 100, 0.6), (Verb.SEND, 1, 0.8)), {Verb.SEND: 1.5, Verb.RECEIVE: 2}, 0, 100_000)
WANTED = {
    "penstock sqlite": Goals(
        ((Verb.SEND, 100, 0.6), (Verb.CYCLE, 100, 0.4), (Verb.SEND, 1, 0.7)),
        {Verb.RECEIVE: 1.3, Verb.DELETE: 1.3},
        100,
        1_000_000,
    ),
    "penstock memcached": Goals(
        ((Verb.CYCLE, 1, 0.6), (Verb.SEND, 1, 0.6)),
        {Verb.SEND: 1.3, Verb.RECEIVE: 1.3, Verb.DELETE: 1.3},
        100,
        1_000_000,
    ),
    "penstock vsqs": FILES,
    "penstock spool": FILES,
    postgresql.OURS: Goals(
        ((Verb.SEND, 100, 0.6), (Verb.SEND, 1, 0.7)), {Verb.RECEIVE: 1.3, Verb.DELETE: 1.3}, 100, 1_000_000, both=0.6
    ),
}


def acceptance(results: Results) -> list[AcceptanceLine]:
    return [line for target in results.targets if target.name in WANTED for line in _lines(results, target)]


def _lines(results: Results, ours: Target) -> Iterator[AcceptanceLine]:
    wanted = WANTED[ours.name]
    for size in sorted({row.size for row in results.rows}):
        for verb, batch, least in wanted.shares:
            found = cell(results, Workload(verb, batch, size), ours)
            yield _share(f"{verb} by {batch}, {size} B", found.ratio if found else None, least, ours)
        if wanted.both:
            yield _share(f"receive and delete by 100, {size} B", _both(results, size, ours), wanted.both, ours)
    batches = sorted({row.batch for row in results.rows if row.backlog is not None})
    for verb, most in wanted.flatness.items():
        yield from (_flatness(results, ours, verb, batch, most) for batch in batches)
    for peer in results.targets:
        if peer.peer and peer.limit == ours.limit:
            yield _ahead(results, ours, peer)


def _share(what: str, ratio: float | None, least: float, ours: Target) -> AcceptanceLine:
    text = f"{ours.name}: {what}: at least {least:.0%} of {ours.limit}"
    return AcceptanceLine(text, f"{ratio:.0%}" if ratio else "", None if ratio is None else ratio >= least)


def _both(results: Results, size: int, ours: Target) -> float | None:
    """The ratio of the time that receive and delete take together."""
    spent = []
    for name in (ours.limit or "", ours.name):
        rates = [results.rates.get((Workload(verb, 100, size), name)) for verb in (Verb.RECEIVE, Verb.DELETE)]
        if not all(rates):
            return None
        spent.append([sum(1 / rate for rate in pair) for pair in zip(*filter(None, rates), strict=True)])
    return median(map(over, *spent))


def _flatness(results: Results, ours: Target, verb: Verb, batch: int, most: float) -> AcceptanceLine:
    wanted = WANTED[ours.name]

    def cost(name: str) -> float | None:
        backlogs = (wanted.near, wanted.far)
        near, far = (results.rates.get((Workload(verb, batch, BODY, backlog=backlog), name)) for backlog in backlogs)
        return median(map(over, near, far)) if near and far else None

    mine, bare = cost(ours.name), cost(ours.limit or "")
    found = "" if mine is None else f"{mine:.2f}×" + ("" if bare is None else f" ({ours.limit}: {bare:.2f}×)")
    text = f"{ours.name}: {verb} by {batch} at a backlog of {wanted.far} costs at most {most} × that at {wanted.near}"
    return AcceptanceLine(text, found, None if mine is None else mine <= most)


def _ahead(results: Results, ours: Target, peer: Target) -> AcceptanceLine:
    both = [(row, cell(results, row, ours), cell(results, row, peer)) for row in results.rows]
    shared = [(row, over(mine.rate, theirs.rate)) for row, mine, theirs in both if mine and theirs]
    behind = [f"{row.name} ({times:.2f}×)" for row, times in shared if times < 1]
    found = f"ahead on {len(shared) - len(behind)} of {len(shared)} rows" if shared else ""
    if behind:
        found += "; behind on " + ", ".join(behind)
    return AcceptanceLine(f"{ours.name}: ahead of {peer.name} on every row", found, not behind if shared else None)


def document(results: Results, facts: dict[str, str]) -> dict[str, Any]:
    """Everything for other programs, with every repeat."""
    rows = []
    for row in results.rows:
        found = {}
        for target in results.targets:
            if known := cell(results, row, target):
                found[target.name] = {**asdict(known), "repeats": results.rates.get((row, target.name), [])}
        rows.append({"name": row.name, **asdict(row), "targets": found})
    return {
        "machine": facts,
        "settings": results.settings,
        "notes": [*(f"{target.name}: {target.note}" for target in results.targets if target.note), *results.notes],
        "rows": rows,
        "acceptance": [asdict(line) for line in acceptance(results)],
    }


def si(rate: float) -> str:
    for factor, unit in ((1e6, " M"), (1e3, " k")):
        if rate >= factor:
            return f"{rate / factor:.3g}{unit}"
    return f"{rate:.3g}"
