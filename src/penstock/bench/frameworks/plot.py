"""The results as a picture: the rates of each target, and the processor time of a task."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from penstock.bench.frameworks.comparison import Results
from penstock.bench.frameworks.report import MICRO, rate
from penstock.bench.frameworks.targets import OURS

RATES = {"sends": "#bbbbbb", "works": "#5b9bd5", "cycles": "#1b6ca8"}
COSTS = {"sender": "#bbbbbb", "worker": "#5b9bd5", "server": "#e08e45"}


def draw(results: Results, path: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    names = sorted((name for name in results.turns if name not in results.missing), key=lambda name: rate(results, name))
    figure, (rates, costs) = pyplot.subplots(1, 2, figsize=(16, 1.5 + 0.6 * max(3, len(names))), layout="constrained")
    figure.suptitle(f"An empty task: {results.plan.tasks} in a turn, each safe when its send returns")
    height = 0.8 / len(RATES)
    for place, (of, colour) in enumerate(RATES.items()):
        at = [index + (1 - place) * height for index in range(len(names))]
        rates.barh(at, [rate(results, name, of) for name in names], height, color=colour, label=of)
    rates.set_title("tasks a second: sent, worked off, both one after the other")
    left = [0.0] * len(names)
    for of, colour in COSTS.items():
        values = [MICRO * rate(results, name, of) for name in names]
        costs.barh(range(len(names)), values, 0.6, left=left, color=colour, label=of)
        left = [sum(pair) for pair in zip(left, values, strict=True)]
    costs.set_title("microseconds of a processor for a task")
    for panel in (rates, costs):
        _label(panel, names)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _label(panel: Any, names: list[str]) -> None:
    panel.set_yticks(range(len(names)), names)
    for label, name in zip(panel.get_yticklabels(), names, strict=True):
        label.set_fontweight("bold" if name in OURS else "normal")
    panel.grid(axis="x", alpha=0.3)
    if names:
        panel.legend(loc="lower right")
