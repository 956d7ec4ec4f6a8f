"""The results as a picture: rates of sends and of cycles, Penstock's ratios to the others, wake-up, idle cost and memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from penstock.bench.brokers.comparison import ROWS, Results, Row
from penstock.bench.brokers.report import quantile, rate, ratio
from penstock.bench.brokers.targets import CLIENT, EMBEDDED, ON_POSTGRESQL, SERVE

COLOURS = {
    SERVE: "#1b6ca8",
    CLIENT: "#5b9bd5",
    EMBEDDED: "#bbbbbb",
    ON_POSTGRESQL: "#12406a",
    "rabbitmq-quorum": "#e08e45",
    "rabbitmq-classic": "#f2c28f",
    "redis": "#c0504d",
    "nats": "#7a9a4f",
    "beanstalkd": "#8064a2",
    "postgresql": "#4bacc6",
}


def draw(results: Results, path: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot
    from matplotlib.patches import Patch

    figure, panels = pyplot.subplots(2, 3, figsize=(20, 10), layout="constrained")
    figure.suptitle(f"Penstock beside brokers: every answer after a sync; turns of {results.plan.seconds:g} s, Python clients")
    single = [row for row in ROWS if row.verb == "send" and row.batch == 1]
    other = [row for row in ROWS if row not in single]
    _draw_rates(panels[0][0], results, single, "sends of 1 KB by connections")
    _draw_rates(panels[0][1], results, other, "batches and cycles")
    _draw_ratios(panels[0][2], results)
    wakes = {name: 1000 * quantile(took, 0.5) for name, took in results.wakes.items()}
    _draw_bars(panels[1][0], wakes, "waking a consumer in another process (p50)", "ms")
    idle = {name: 100 * (server + clients) for name, (server, clients) in results.idle.items()}
    _draw_bars(panels[1][1], idle, f"{results.plan.waiters} waiters, server and clients", "% of a core")
    full = {name: full / 2**20 for name, (_, full, _) in results.memory.items()}
    _draw_bars(panels[1][2], full, f"memory at a backlog of {results.plan.backlog}", "MiB")
    handles = [Patch(color=COLOURS[target.name]) for target in results.targets]
    figure.legend(handles, [t.name for t in results.targets], loc="outside lower center", ncols=len(COLOURS), frameon=False)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _draw_rates(panel: Any, results: Results, rows: list[Row], title: str) -> None:
    rows = [row for row in rows if any((row, target.name) in results.turns for target in results.targets)]
    width = 0.85 / max(1, len(results.targets))
    for place, target in enumerate(results.targets):
        heights = [rate(results, row, target.name) or 0 for row in rows]
        panel.bar([index + place * width for index in range(len(rows))], heights, width, color=COLOURS[target.name])
    if rows:
        panel.set_yscale("log")
    panel.set_xticks([index + 0.425 - width / 2 for index in range(len(rows))], [row.name for row in rows], rotation=20)
    panel.set_title(title)
    panel.set_ylabel("messages a second")
    panel.grid(axis="y", alpha=0.3)


def _draw_ratios(panel: Any, results: Results) -> None:
    """A line for each peer: above 1, Penstock's service is ahead."""
    rows = [row for row in ROWS if (row, SERVE) in results.turns]
    for target in results.targets:
        found = [ratio(results, row, SERVE, target.name) for row in rows]
        if target.name != SERVE and any(found):
            panel.plot(range(len(rows)), found, color=COLOURS[target.name], marker="o")
            panel.set_yscale("log")
    panel.axhline(1, color="black", linewidth=1)
    panel.set_xticks(range(len(rows)), [row.name for row in rows], rotation=20)
    panel.set_title("serve / each of the others (above 1: serve is faster)")
    panel.grid(alpha=0.3)


def _draw_bars(panel: Any, values: dict[str, float], title: str, unit: str) -> None:
    names = list(values)
    bars = panel.barh(names[::-1], [values[name] for name in names[::-1]], color=[COLOURS[name] for name in names[::-1]])
    panel.bar_label(bars, [f"{values[name]:.3g}" for name in names[::-1]], padding=3)
    panel.margins(x=0.15)
    panel.set_title(title)
    panel.set_xlabel(unit)
