"""Reads the SQL texts: the schema's steps, and the statements by name."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from importlib.resources import files

from penstock.stores.sql.rows import COLUMNS

HELD = ", ".join(f"penstock_message.{column}" for column in COLUMNS.split(", "))
SHARED = {
    "columns": COLUMNS,
    "given": ", ".join(f":{column}" for column in COLUMNS.split(", ")),
    "columns_settled": COLUMNS.replace(" state,", " :state,"),
    "columns_before": COLUMNS.replace(
        "visible_at, state, receives, delivery", "picked.visible_at, picked.state, receives - 1, picked.before"
    ),
    "all_settled_columns": f"{COLUMNS}, settled_at, reason",
    "by_queue": "queue",
    "first_of_these": "ORDER BY number LIMIT :limit",
    "held_columns": HELD,
    "asleep_columns": HELD.replace("penstock_message.visible_at", "penstock_claim.lapses_at"),
}

Steps = dict[int, list[str]]


def read_sql(words: Mapping[str, str], parts: Sequence[tuple[str, str]]) -> tuple[Steps, dict[str, str]]:
    """The schema's steps and all statements of a database: the shared ones, and those in ``parts`` (package, file). ``words``
    replace the words in braces."""
    texts = [(files(package) / name).read_text() for package, name in (*COMMON, *parts)]
    known = {**SHARED, **words}
    filled = re.sub(r"\{(\w+)\}", lambda found: known[found[1]], "\n".join(texts))
    steps: Steps = {}
    statements: dict[str, str] = {}
    for kind, name, body in re.findall(r"^-- (step|name): (\w+)\n(.*?)(?=^-- |\Z)", filled, re.M | re.S):
        if kind == "step":
            steps[int(name)] = [part.strip() for part in body.split(";") if part.strip()]
        else:
            assert name not in statements, f"two statements are named {name}"
            statements[name] = body.strip()
    return steps, statements


COMMON = tuple(("penstock.stores.sql", f"{name}.sql") for name in ("schema", "common", "whole"))


def parameters_of(text: str) -> list[str]:
    """The names of a statement's parameters, in the order of their first use."""
    return list(dict.fromkeys(re.findall(r"(?<!:):(\w+)", text)))
