"""The figures of a report as one page of HTML that needs nothing else: no network, and no script but our own.

It looks like the page of the server, and draws like it: it embeds that page's stylesheet and chart module.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Sequence
from datetime import datetime
from functools import cache
from html import escape
from importlib.resources import files
from typing import Any

PER = ((1, "second"), (60, "minute"), (3600, "hour"), (86400, "day"))
MODULES = ("dom.js", "format.js", "charts.js")
"""Files of the server's page that draw the charts, in an order in which each needs only those before it."""

Points = Sequence[tuple[int, float]]


def render(figures: dict[str, Any], title: str) -> str:
    whole = figures["all"]
    step = figures["step"]
    cards = [
        _throughput(figures),
        _times_curve("Waiting time: sent to first received", figures["times"]["waiting"], step),
        _times_curve("Handling time: received to settled", figures["times"]["handling"], step),
        _bars("Dead letters by reason", figures["deaths"], "d", "no message died"),
        _bars("Biggest producers", figures["producers"], "a", "no message names its producer"),
        _table(figures["queues"], figures["at"]),
    ]
    period = f"{_day(whole['first_at'])} to {_day(whole['last_at'])}" if whole["first_at"] else "no messages"
    style, script = _style(), _script()
    policy = f"default-src 'none'; style-src '{_digest(style)}'; script-src '{_digest(script)}'"
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, '
        f'initial-scale=1"><meta http-equiv="Content-Security-Policy" content="{policy}">'
        f'<title>{escape(title)}</title><style>{style}</style></head><body><main class="view"><div><h1>{escape(title)}</h1>'
        f'<p class="soft">{escape(period)}, UTC; counted on {_day(figures["at"])}</p></div>{_tiles(whole, figures)}'
        f'<div class="cards">{"".join(cards)}</div></main><script type="module">{script}</script></body></html>\n'
    )


@cache
def _style() -> str:
    """The stylesheet of the server's page, without its comments."""
    return re.sub(r"/\*.*?\*/\s*", "", _asset("style.css"), flags=re.DOTALL)


@cache
def _script() -> str:
    """The chart module and what it needs as one script: without imports and exports, which join them on the server's page."""
    text = "".join(_asset(name) for name in MODULES) + files(__package__).joinpath("report.js").read_text(encoding="utf-8")
    return re.sub(r"^(import .*\n|export )", "", text, flags=re.MULTILINE)


def _asset(name: str) -> str:
    return files("penstock.server.page").joinpath("assets", name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    """What a browser compares with a style or a script before it uses it."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _tiles(whole: dict[str, Any], figures: dict[str, Any]) -> str:
    share = f"{100 * whole['redelivered'] / whole['messages']:.1f} %" if whole["messages"] else "-"
    tiles = [
        (_number(whole["messages"]), f"messages, {_bytes(whole['bytes'])}"),
        *[_time_tile(name, whole[name]) for name in ("waiting", "handling")],
        (share, f"redelivered ({_number(whole['redeliveries'] or 0)} times)"),
        (_number(whole["dead"]), "dead letters"),
        (_age(whole["oldest_at"], figures["at"]), f"oldest of {_number(whole['unsettled'])} unsettled"),
    ]
    shown = (f'<div class="tile"><b>{escape(big)}</b><span>{escape(small)}</span></div>' for big, small in tiles)
    return f'<div class="tiles roomy">{"".join(shown)}</div>'


def _time_tile(name: str, found: dict[str, float] | None) -> tuple[str, str]:
    return (
        ("-", f"{name} time")
        if found is None
        else (duration(found["p50"]), f"{name} time, median; 99 %: {duration(found['p99'])}")
    )


def _throughput(figures: dict[str, Any]) -> str:
    most = max((row[event] for row in figures["throughput"] for event in ("sent", "received", "settled", "died")), default=0)
    per, unit = next((pair for pair in PER if most * pair[0] / figures["step"] >= 2), PER[-1])
    step = figures["step"] / per
    names = (("sent", "sent", "a"), ("received", "first received", "b"), ("settled", "settled", "c"), ("died", "died", "d"))
    found = [(name, colour, [(row["at"], row[event] / step) for row in figures["throughput"]]) for event, name, colour in names]
    seen = [line for line in found if any(value for _, value in line[2])]
    return _curve(f"Throughput: messages per {unit}", seen, figures["step"], "wide", say="number", height=220)


def _times_curve(title: str, rows: Sequence[dict[str, Any]], step: int) -> str:
    names = (("p50", "median", "a"), ("p90", "90 %", "b"), ("p99", "99 %", "d"))
    lines = [(told, colour, [(row["at"], row[key]) for row in rows]) for key, told, colour in names if rows]
    return _curve(title, lines, step, say="duration", log=True)


def _curve(title: str, lines: Sequence[tuple[str, str, Points]], step: int, more: str = "", **options: Any) -> str:
    if not lines:
        return _card(title, '<p class="soft">nothing to show</p>', more)
    told = [{"name": name, "colour": colour, "points": points} for name, colour, points in lines]
    return _chart(title, {"kind": "curve", "lines": told, "step": step, **options}, more)


def _bars(title: str, rows: Sequence[dict[str, Any]], colour: str, nothing: str) -> str:
    if not rows:
        return _card(title, f'<p class="soft">{nothing}</p>')
    told = [
        {
            "name": str(row["name"]),
            "value": row["messages"],
            "told": f"{_number(row['messages'])}" + (f", {_bytes(row['bytes'])}" if row["bytes"] else ""),
        }
        for row in rows
    ]
    return _chart(title, {"kind": "bars", "rows": told, "colour": colour})


def _chart(title: str, chart: dict[str, Any], more: str = "") -> str:
    """Where the script draws a chart."""
    place = f'<div data-chart="{escape(json.dumps({"title": title, **chart}))}"></div>'
    return _card(title, f'{place}<noscript><p class="soft">a chart, which needs JavaScript</p></noscript>', more)


def _card(title: str, content: str, more: str = "") -> str:
    return f'<section class="card {more}"><h2>{title}</h2>{content}</section>'


def _table(queues: Sequence[dict[str, Any]], now: str) -> str:
    heads = (
        "queue",
        "messages",
        "size",
        "unsettled",
        "oldest",
        "redelivered",
        "dead",
        "waiting median / 99 %",
        "handling median / 99 %",
    )
    rows = [
        (
            str(queue["queue"]),
            _number(queue["messages"]),
            _bytes(queue["bytes"]),
            _number(queue["unsettled"]),
            _age(queue["oldest_at"], now),
            _number(queue["redelivered"]),
            _number(queue["dead"]),
            _times(queue["waiting"]),
            _times(queue["handling"]),
        )
        for queue in queues
    ]
    body = "".join(f"<tr>{_cells('td', row)}</tr>" for row in rows)
    table = f"<table><thead><tr>{_cells('th', heads)}</tr></thead><tbody>{body}</tbody></table>"
    return _card("Queues", f'<div class="scroll" tabindex="0" role="region" aria-label="Queues">{table}</div>', "wide")


def _cells(tag: str, texts: Sequence[str]) -> str:
    """The first is a name, the others are numbers."""
    return "".join(f"<{tag} class='{'num' if place else ''}'>{escape(text)}</{tag}>" for place, text in enumerate(texts))


def duration(seconds: float) -> str:
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.3g} {unit}"
    if seconds >= 1:
        return f"{seconds:.3g} s"
    return f"{seconds * 1000:.3g} ms" if seconds >= 0.001 else f"{seconds * 1_000_000:.3g} µs"


def _times(found: dict[str, float] | None) -> str:
    return "-" if found is None else f"{duration(found['p50'])} / {duration(found['p99'])}"


def _age(at: str | None, now: str) -> str:
    return "-" if at is None else duration((datetime.fromisoformat(now) - datetime.fromisoformat(at)).total_seconds())


def _number(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) or value >= 100 else f"{value:.2g}"


def _bytes(size: float | None) -> str:
    if size is None:
        return "size unknown"
    for unit in ("B", "KB", "MB", "GB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:,.3g} TB"


def _day(text: str) -> str:
    return datetime.fromisoformat(text).strftime("%Y-%m-%d %H:%M")
