"""Faults in how the page shows messages, and in what it lets people do to them."""

from __future__ import annotations

from planted import Mutant

ASSETS = "server/page/assets/"
LOOKING = "server/page/messages.py"


def browsed(name: str, tests: str, *changes: tuple[str, str, str], part: str = "") -> Mutant:
    """A fault that a real browser shows."""
    return Mutant(name, tests, changes, (f"tests/test_page_browser{part}.py",))


def looked(name: str, tests: str, *changes: tuple[str, str, str]) -> Mutant:
    """A fault in what the server finds."""
    return Mutant(name, tests, changes, ("tests/test_page_messages.py", "tests/test_dialects.py"))


FAULTS = [
    browsed(
        "a body is shown as a page",
        "never_a_page and page",
        (f"{ASSETS}message.js", "code.textContent = write(from, to);", "code.innerHTML = write(from, to);"),
        part="_hostile",
    ),
    browsed(
        "characters that turn the direction do so in a body",
        "shown_by_their_numbers",
        (
            f"{ASSETS}message.js",
            'searchable(shown(chosen === "json" ? json : words)',
            'searchable((chosen === "json" ? json : words)',
        ),
        part="_hostile",
    ),
    browsed(
        "a large body is shown at once",
        "mebibyte",
        (f"{ASSETS}message.js", "const PART = 1 << 15;", "const PART = 1 << 25;"),
        part="_hostile",
    ),
    browsed(
        "what a content type calls an image is shown as one",
        "raster_image",
        (
            f"{ASSETS}message.js",
            "IMAGES.find(([, magic]) => magic.test(begins))?.[0]",
            "/^image\\//.test(message.content_type) && message.content_type",
        ),
    ),
    browsed(
        "JSON loses its digits and its order",
        "json_text_and_bytes",
        (
            f"{ASSETS}message.js",
            "const json = words === null ? null : laidOut(words)",
            "const json = words === null ? null : laidOut(words) && JSON.stringify(JSON.parse(words), null, 2)",
        ),
    ),
    browsed(
        "a purge needs no typed name", "typed_name", (f"{ASSETS}actions.js", "danger: true, typed: queue }", "danger: true }")
    ),
    browsed(
        "the list of messages does not follow its queue",
        "follows_the_queue",
        (f"{ASSETS}messages.js", "found.changed(row); } });", "found.changed; } });"),
    ),
    browsed(
        "a filter is not in the address",
        "counted_first",
        (f"{ASSETS}messages.js", "    remember(toQuery(filter));\n", ""),
    ),
    browsed(
        "what a token may not do is shown",
        "may_not_do",
        (f"{ASSETS}actions.js", "may.includes(ACTIONS[name].scope) && ", ""),
        part="_rights",
    ),
    browsed(
        "a link to the sign-in leads to another site",
        "no_other_address",
        (f"{ASSETS}signin.js", "origin === location.origin && ", ""),
        (f"{ASSETS}signin.js", "return pathname + search;", "return to;"),
        part="_rights",
    ),
    browsed(
        "a button that opens a dialog does not get the focus back",
        "each_dialog and light",
        (
            f"{ASSETS}actions.js",
            "export async function purge(pressed, queue, done) {\n",
            "export async function purge(pressed, queue, done) {\n  pressed.blur();\n",
        ),
        part="_access",
    ),
    looked("a part of a count counts a message again", "add_up", (LOOKING, "(message.number + 1,)", "(message.number,)")),
    looked(
        "a token that may only count looks at messages",
        "may_read",
        (
            LOOKING,
            '"/penstock/queues/{queue}/messages/{id}", Scope.READ',
            '"/penstock/queues/{queue}/messages/{id}", Scope.COUNT',
        ),
    ),
    looked(
        "a look keeps what it held",
        "given_back",
        (
            LOOKING,
            "            finally:\n                budget.give(count * room)\n",
            "            finally:\n                pass\n",
        ),
    ),
    looked(
        "a group of NaN breaks the answer",
        "no_browser_can_read",
        (LOOKING, "ensure_ascii=False, allow_nan=False)", "ensure_ascii=False)"),
    ),
    looked(
        "a message of a file store is not found by its id",
        "found_by_its_id",
        (LOOKING, "(0, FOREVER) if number is None", "(0, 0) if number is None"),
    ),
]
