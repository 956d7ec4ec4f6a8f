"""The figures of a report as one page of HTML: curves and bars in SVG, no scripts, no network, light and dark."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Any

WIDTH, HEIGHT = 520, 200
LEFT, RIGHT, TOP, BOTTOM = 58, 14, 10, 28
TICKS = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1, 10, 60, 600, 3600, 36000, 864000, 8640000, 1e9)
"""Durations that a logarithmic scale may show."""
CLOCK = (1, 5, 15, 30, 60, 300, 900, 1800, 3600, 7200, 4 * 3600, 6 * 3600, 12 * 3600, 86400, 2 * 86400, 7 * 86400, 30 * 86400)
PER = ((1, "second"), (60, "minute"), (3600, "hour"), (86400, "day"))
STYLE = """
:root{color-scheme:light dark;--paper:#fff;--card:#f6f7f9;--ink:#1c2330;--soft:#667085;--rule:#dfe3ea;
--a:#1769aa;--b:#c26a12;--c:#2e7d4f;--d:#b3261e}
@media(prefers-color-scheme:dark){:root{--paper:#12161d;--card:#1b212b;--ink:#e6e9ef;--soft:#98a2b3;--rule:#323a48;
--a:#6cb2f0;--b:#f0a860;--c:#70c995;--d:#f2857c}}
*{box-sizing:border-box}body{margin:0 auto;max-width:1180px;padding:28px 22px;background:var(--paper);color:var(--ink);
font:15px/1.45 system-ui,sans-serif}h1{font-size:25px;margin:0 0 2px}h2{font-size:16px;margin:0 0 8px}
p{margin:0;color:var(--soft)}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(150px,1fr));gap:12px;margin:20px 0}
.cards{display:grid;grid-template-columns:repeat(auto-fit,minmax(460px,1fr));gap:14px}
.tile,.card{background:var(--card);border-radius:8px;padding:14px 16px}.tile b{display:block;font-size:23px;font-weight:600}
.tile span{color:var(--soft);font-size:13px}.wide{grid-column:1/-1}svg{width:100%;height:auto;display:block}
text{fill:var(--soft);font:12px system-ui,sans-serif}.grid{stroke:var(--rule);stroke-width:1}.name{fill:var(--ink)}
.line{fill:none;stroke-width:2;stroke-linejoin:round}.a{stroke:var(--a)}.b{stroke:var(--b)}.c{stroke:var(--c)}.d{stroke:var(--d)}
.dot.a,.bar.a,i.a{fill:var(--a);background:var(--a);stroke:none}.dot.b,.bar.b,i.b{fill:var(--b);background:var(--b);stroke:none}
.dot.c,.bar.c,i.c{fill:var(--c);background:var(--c);stroke:none}.dot.d,.bar.d,i.d{fill:var(--d);background:var(--d);stroke:none}
.key{font-size:13px;color:var(--soft);margin-bottom:6px}.key i{display:inline-block;width:11px;height:11px;border-radius:3px;
margin:0 5px 0 12px}.key i:first-child{margin-left:0}table{border-collapse:collapse;width:100%;font-size:14px}
th,td{text-align:right;padding:5px 8px;border-bottom:1px solid var(--rule);font-variant-numeric:tabular-nums}
th{color:var(--soft);font-weight:500}th:first-child,td:first-child{text-align:left}.scroll{overflow-x:auto}
@media(max-width:560px){.cards{grid-template-columns:1fr}}
"""

Points = Sequence[tuple[int, float]]


def render(figures: dict[str, Any], title: str) -> str:
    whole = figures["all"]
    cards = [
        _throughput(figures),
        _curve("Waiting time: sent to first received", _percentiles(figures, "waiting"), duration, figures["step"], log=True),
        _curve("Handling time: received to settled", _percentiles(figures, "handling"), duration, figures["step"], log=True),
        _bars("Dead letters by reason", figures["deaths"], "d", "no message died"),
        _bars("Biggest producers", figures["producers"], "a", "no message names its producer"),
        _table(figures["queues"], figures["at"]),
    ]
    period = f"{_day(whole['first_at'])} to {_day(whole['last_at'])}" if whole["first_at"] else "no messages"
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body><h1>{escape(title)}</h1>"
        f"<p>{escape(period)}, UTC; counted on {_day(figures['at'])}</p>{_tiles(whole, figures)}"
        f'<main class="cards">{"".join(cards)}</main></body></html>\n'
    )


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
    return f'<div class="tiles">{"".join(shown)}</div>'


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
    return _curve(f"Throughput: messages per {unit}", seen, _number, figures["step"], "wide")


def _percentiles(figures: dict[str, Any], name: str) -> list[tuple[str, str, Points]]:
    rows = figures["times"][name]
    names = (("p50", "median", "a"), ("p90", "90 %", "b"), ("p99", "99 %", "d"))
    return [(told, colour, [(row["at"], row[key]) for row in rows]) for key, told, colour in names if rows]


def _curve(
    title: str,
    lines: Sequence[tuple[str, str, Points]],
    say: Callable[[float], str],
    step: int,
    more: str = "",
    *,
    log: bool = False,
) -> str:
    if not lines:
        return f'<section class="card {more}"><h2>{title}</h2><p>nothing to show</p></section>'
    width = 2 * WIDTH + 60 if more else WIDTH  # so that all letters have one size
    times = [at for _, _, points in lines for at, _ in points]
    values = [value for _, _, points in lines for _, value in points]
    first, last = min(times), max(times)
    ticks = _decades(values) if log else _round_ticks(max(values))
    low, high = ticks[0], ticks[-1]

    def x(at: int) -> float:
        return LEFT + (width - LEFT - RIGHT) * ((at - first) / (last - first) if last > first else 0.5)

    def y(value: float) -> float:
        share = math.log(max(value, low) / low) / math.log(high / low) if log else value / high
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * share

    parts = []
    for tick in ticks:
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{width - RIGHT}" y1="{y(tick):.1f}" y2="{y(tick):.1f}"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y(tick) + 4:.1f}" text-anchor="end">{say(tick)}</text>')
    parts += [
        f'<text x="{min(x(at), width - 32):.1f}" y="{HEIGHT - 8}" text-anchor="middle">{_clock(at, last - first)}</text>'
        for at in _instants(first, last, 9 if more else 5)
    ]
    for name, colour, points in lines:
        before = [points[0][0], *(at for at, _ in points)]
        path = " ".join(  # no line across a long gap
            f"{'L' if 0 < at - earlier <= 3 * step else 'M'}{x(at):.1f} {y(value):.1f}"
            for earlier, (at, value) in zip(before, points, strict=False)
        )
        parts.append(f'<path class="line {colour}" d="{path}"/>')
        size = 2.5 if len(points) > 1 else 4
        parts += [
            f'<circle class="dot {colour}" cx="{x(at):.1f}" cy="{y(value):.1f}" r="{size}">'
            f"<title>{_clock(at, 0)}: {name} {say(value)}</title></circle>"
            for at, value in points
        ]
    key = "".join(f'<i class="{colour}"></i>{name}' for name, colour, _ in lines)
    return (
        f'<section class="card {more}"><h2>{title}</h2><div class="key">{key}</div>'
        f'<svg viewBox="0 0 {width} {HEIGHT}" role="img" aria-label="{title}">{"".join(parts)}</svg></section>'
    )


def _bars(title: str, rows: Sequence[dict[str, Any]], colour: str, nothing: str) -> str:
    if not rows:
        return f'<section class="card"><h2>{title}</h2><p>{nothing}</p></section>'
    most, parts = max(row["messages"] for row in rows), []
    for place, row in enumerate(rows):
        top, length = place * 40, max(3, 380 * row["messages"] / most)
        name = str(row["name"])
        shown = name if len(name) <= 78 else f"{name[:77]}…"
        parts.append(f'<text class="name" x="0" y="{top + 13}">{escape(shown)}<title>{escape(name)}</title></text>')
        parts.append(f'<rect class="bar {colour}" x="0" y="{top + 19}" width="{length:.0f}" height="12" rx="3"/>')
        told = f"{_number(row['messages'])}" + (f", {_bytes(row['bytes'])}" if row["bytes"] else "")
        parts.append(f'<text x="{length + 8:.0f}" y="{top + 29}">{told}</text>')
    height = len(rows) * 40
    return (
        f'<section class="card"><h2>{title}</h2><svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{title}">'
        f"{''.join(parts)}</svg></section>"
    )


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
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    table = f"<table><thead><tr>{''.join(f'<th>{head}</th>' for head in heads)}</tr></thead><tbody>{body}</tbody></table>"
    return f'<section class="card wide"><h2>Queues</h2><div class="scroll">{table}</div></section>'


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


def _clock(at: float, span: float) -> str:
    form = (
        "%Y-%m-%d %H:%M:%S"
        if not span
        else "%Y-%m-%d"
        if span > 10 * 86400
        else "%d %b %H:%M"
        if span > 86400
        else "%H:%M"
        if span > 1200
        else "%H:%M:%S"
    )
    return datetime.fromtimestamp(at, UTC).strftime(form)


def _round_ticks(most: float) -> list[float]:
    """About four round steps from 0 to above the highest value."""
    if most <= 0:
        return [0, 1]
    rough = most / 4
    size = 10 ** math.floor(math.log10(rough))
    step = next(size * times for times in (1, 2, 2.5, 5, 10) if size * times >= rough)
    return [step * place for place in range(math.ceil(most / step - 1e-9) + 1)]


def _decades(values: Sequence[float]) -> list[float]:
    """About five durations from below the smallest to above the largest."""
    low = max((place for place, tick in enumerate(TICKS) if tick <= min(values)), default=0)
    high = min((place for place, tick in enumerate(TICKS) if tick >= max(values)), default=len(TICKS) - 1)
    if low == high:
        low, high = max(0, low - 1), min(high + 1, len(TICKS) - 1)
    step = -(-(high - low) // 5)
    return [TICKS[place] for place in range(low, high, step)] + [TICKS[high]]


def _instants(first: int, last: int, most: int) -> list[int]:
    """Round times of the day, at most ``most``."""
    step = next((step for step in CLOCK if (last - first) / step <= most), CLOCK[-1])
    found = list(range(-(-first // step) * step, last + 1, step))
    return found or [first]
