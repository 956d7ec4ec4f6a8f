"""The checks of a declared pipeline, as its file has them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from penstock.pipeline_reports import ACTIONS

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}")
KEYS = {"where": str, "reason": str, "name": str, "action": str, "stop_above": int, "stop_share": float}
BODY = "body"
"""The name of a source's own check, that its bodies are of the form that it declares."""


@dataclass(frozen=True, slots=True)
class DeclaredCheck:
    table: str
    place: int
    name: str
    where: str
    reason: str
    action: str = ACTIONS[0]
    stop_above: int | None = None
    """The rows that may fail in a batch. If ``stop_share`` is given, too, a batch with more of both stops the pipeline."""
    stop_share: float | None = None

    @property
    def full_name(self) -> str:
        return f"{self.table}.{self.name}"

    @property
    def of_bodies(self) -> bool:
        return not self.where

    @property
    def limited(self) -> bool:
        return self.stop_above is not None or self.stop_share is not None

    def allows(self, rows: int, failed: int) -> bool:
        """Whether a batch may have so many rows that fail."""
        above = self.stop_above is None or failed > self.stop_above
        share = self.stop_share is None or failed > self.stop_share * rows
        return not (self.limited and above and share)

    @property
    def limit(self) -> str:
        """What a batch may have, for people."""
        above = [] if self.stop_above is None else [f"{self.stop_above:,}"]
        return " and more than ".join(above + ([] if self.stop_share is None else [f"{100 * self.stop_share:g} % of them"]))


def of_bodies(table: str, form: str) -> DeclaredCheck:
    """The check that a source makes without being told."""
    return made(table, 0, {"name": BODY}, form)


def made(table: str, place: int, given: Mapping[str, Any], form: str | None) -> DeclaredCheck:
    where = given.get("where", "")
    return DeclaredCheck(
        table,
        place,
        given.get("name", f"check_{place + 1}"),
        where,
        given.get("reason", f"not so: {where}" if where else f"the body is not JSON of the form {form}"),
        given.get("action", ACTIONS[0]),
        given.get("stop_above"),
        given.get("stop_share"),
    )


def problem(given: Mapping[str, Any], *, has_bodies: bool) -> tuple[str | None, str] | None:
    """The key that is wrong, and what is wrong with it."""
    name, above, share = given.get("name", "check"), given.get("stop_above", 0), given.get("stop_share", 0.0)
    if not NAME.fullmatch(name):
        return "name", f"{name!r:.80} cannot name a check: use letters, digits and _"
    if name == BODY and ("where" in given or not has_bodies):
        return "name", "body is the check that the bodies of a queue are such JSON: it has no where, and its source has json"
    if not given.get("where") and name != BODY:
        return None, "the key 'where' is missing"
    if given.get("action", ACTIONS[0]) not in ACTIONS:
        return "action", f"it is {given['action']!r:.80}, and must be one of {', '.join(ACTIONS)}"
    if above < 0:
        return "stop_above", f"it is {above}, and must be 0 or more"
    if not 0 <= share < 1:
        return "stop_share", f"it is {share}, and must be from 0 to less than 1"
    return None
