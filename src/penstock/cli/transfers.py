"""The pipelines archive, load, move and dedupe."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.cli.pipeline import Pipelines


def add(pipeline: Pipelines) -> None:
    pass
