"""Faults in what the page shows, which a real browser notices at once."""

from __future__ import annotations

from planted import Mutant

ASSETS = "server/page/assets/"


def seen(name: str, tests: str, *changes: tuple[str, str, str]) -> Mutant:
    return Mutant(name, tests, changes, ("tests/test_page_browser_lists.py",))


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
    Mutant(
        "a report hands its names to the browser as HTML",
        "no_script_but_ours",
        (("spark/pipelines/page.py", "{escape(json.dumps(", "{(json.dumps("),),
        ("tests/spark/pipelines/test_report.py",),
    ),
]
