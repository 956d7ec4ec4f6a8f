"""A backend for Django's task framework on any store: ``"BACKEND": "penstock.contrib.django.PenstockBackend"``.

On Django 5 the framework is the package django-tasks, its backport.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.contrib.django.backend import PenstockBackend

__all__ = ["PenstockBackend"]


def __getattr__(name: str) -> Any:
    """The backend is imported when a setting names it: Django imports this package before its applications are ready."""
    if name != "PenstockBackend":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from penstock.contrib.django import framework  # noqa: F401 (first: it tells what is missing)
    from penstock.contrib.django.backend import PenstockBackend

    return PenstockBackend
