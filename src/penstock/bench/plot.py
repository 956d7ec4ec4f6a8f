"""The results as a picture: ratios to the limit, rates next to the peers', and cost by backlog."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from penstock.bench.report import cell
from penstock.bench.runs import Results
from penstock.bench.targets import BARE, OURS
from penstock.bench.workloads import Verb, Workload

COLOURS = ("#1b6ca8", "#8fb8de", "#555555", "#bbbbbb", "#e08e45", "#c0504d", "#7a9a4f", "#8064a2", "#4bacc6")


def draw(results: Results, path: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    size = max((row.size for row in results.rows), default=0)
    colours = {target.name: COLOURS[place % len(COLOURS)] for place, target in enumerate(results.targets)}
    figure, panels = pyplot.subplots(2, 3, figsize=(20, 10), layout="constrained")
    figure.suptitle("Penstock: every commit synced; messages a second beside the machine's limit and the peers")
    _draw_ratios(panels[0][0], results, size)
    _draw_rates(panels[0][1], results, size, Verb.CYCLE, colours)
    _draw_rates(panels[0][2], results, size, Verb.SEND, colours)
    for panel, verb in zip(panels[1], (Verb.RECEIVE, Verb.DELETE, Verb.SEND), strict=True):
        _draw_backlogs(panel, results, verb, colours)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _single(results: Results, verb: Verb, size: int) -> list[Workload]:
    return [r for r in results.rows if (r.verb, r.size, r.processes, r.backlog) == (verb, size, 1, None)]


def _draw_ratios(panel: Any, results: Results, size: int) -> None:
    ours = [target for target in results.targets if target.name == OURS]
    verbs = [verb for verb in Verb if _single(results, verb, size)]
    batches = sorted({row.batch for row in results.rows})
    width = 0.8 / max(1, len(batches))
    for place, batch in enumerate(batches):
        cells = [cell(results, Workload(verb, batch, size), target) for target in ours for verb in verbs]
        heights = [found.ratio or 0 if found else 0 for found in cells]
        places = [index + place * width for index in range(len(heights))]
        bars = panel.bar(places, heights, width, label=f"by {batch}", color=f"C{place}")
        panel.bar_label(bars, [f"{height:.2f}" if height else "" for height in heights], fontsize=7)
    panel.axhline(1, color="black", linewidth=1)
    panel.set_xticks([index + 0.4 - width / 2 for index in range(len(verbs))], verbs)
    panel.set_title(f"{OURS} as a ratio to {BARE} (1 = the limit), {size} B")
    panel.set_ylabel("ratio")
    panel.margins(y=0.2)
    _legend(panel)


def _draw_rates(panel: Any, results: Results, size: int, verb: Verb, colours: dict[str, str]) -> None:
    rows = _single(results, verb, size)
    targets = [target for target in results.targets if any(cell(results, row, target) for row in rows)]
    width = 0.85 / max(1, len(targets))
    for place, target in enumerate(targets):
        cells = [cell(results, row, target) for row in rows]
        bars = panel.bar(
            [index + place * width for index in range(len(rows))],
            [found.rate if found else 0 for found in cells],
            width,
            label=target.name,
            color=colours[target.name],
        )
        for bar, found in zip(bars, cells, strict=True):
            if found and found.single:
                bar.set_hatch("//")
    panel.set_yscale("log")
    panel.margins(y=0.25)  # room for the legend
    panel.set_xticks([index + 0.425 - width / 2 for index in range(len(rows))], [f"by {row.batch}" for row in rows])
    panel.set_title(f"{verb}, {size} B (hatched: no batches, rate of single calls)")
    panel.set_ylabel("messages a second")
    panel.grid(axis="y", alpha=0.3)
    _legend(panel)


def _draw_backlogs(panel: Any, results: Results, verb: Verb, colours: dict[str, str]) -> None:
    """The cost of a single call as the queue grows; ideally a flat line."""
    rows = [row for row in results.rows if row.backlog is not None and row.batch == 1 and row.verb is verb]
    for target in results.targets:
        found = [(row.backlog, known.rate) for row in rows if (known := cell(results, row, target)) and known.rate]
        if found:
            costs = [1e6 / rate for _, rate in found]
            panel.plot([x for x, _ in found], costs, color=colours[target.name], marker="o", label=target.name)
    panel.set_xscale("symlog", linthresh=100)
    panel.set_yscale("log")
    panel.set_title(f"cost of a single {verb} by backlog")
    panel.set_xlabel("messages in the queue beforehand")
    panel.set_ylabel("microseconds a message")
    panel.grid(alpha=0.3)
    _legend(panel, "best")


def _legend(panel: Any, place: str = "upper left") -> None:
    if panel.get_legend_handles_labels()[0]:  # a run of few rows leaves panels empty
        panel.legend(fontsize=8, loc=place)
