"""Faults in what the page shows, which a real browser notices at once."""

from __future__ import annotations

from planted import Mutant

ASSETS = "server/page/assets/"


def seen(name: str, tests: str, *changes: tuple[str, str, str], part: str = "lists") -> Mutant:
    return Mutant(name, tests, changes, (f"tests/test_page_browser_{part}.py",))


FAULTS = [
    seen(
        "a row moves away from the pointer",
        "move_away",
        (f"{ASSETS}overview.js", 'this.body.matches(":hover") || ', ""),
    ),
    seen("going back leads to the top", "going_back", (f"{ASSETS}app.js", "scrollTo(0, scroll)", "scrollTo(0, 0)")),
    seen(
        "a reader who scrolls early is thrown back",
        "thrown_back",
        (f"{ASSETS}app.js", "if (scroll && !scrollY) scrollTo", "scrollTo"),
    ),
    seen(
        "a view that lives loses the selection",
        "selected",
        (f"{ASSETS}dom.js", "  match(node, fresh);\n}", "  node.replaceChildren(...fresh.childNodes);\n}"),
    ),
    seen("a hidden page goes on listening", "hidden_page", (f"{ASSETS}live.js", "if (!document.hidden) open();", "open();")),
    seen(
        "a hidden view asks again and again",
        "while_it_is_hidden and schedules",
        (f"{ASSETS}live.js", "if (document.hidden || running", "if (running"),
    ),
    seen(
        "a paused queue looks like any other",
        "paused_queue",
        (f"{ASSETS}overview.js", "row.paused ? badge", "false ? badge"),
        part="actions",
    ),
    seen(
        "a queue does not say that it is paused",
        "paused_queue",
        (f"{ASSETS}queue.js", "const lines = paused ?", "const lines = false ?"),
        part="actions",
    ),
    seen(
        "a button pauses schedules that the token may not change",
        "remove_a_schedule",
        (f"{ASSETS}schedules.js", 'can("send") ? deed(', "true ? deed("),
        part="rights",
    ),
    seen(
        "redrive is offered for messages that are no dead letters",
        "from_its_own_view and redriven",
        (f"{ASSETS}actions.js", '&& (name !== "redrive" || dead)', ""),
        part="actions",
    ),
    Mutant(
        "a report hands its names to the browser as HTML",
        "no_script_but_ours",
        (("spark/pipelines/page.py", "{escape(json.dumps(", "{(json.dumps("),),
        ("tests/spark/pipelines/test_report.py",),
    ),
]
