"""Penstock as an application of Django: a table of results, and the command ``penstock_worker``."""

from __future__ import annotations

from django.apps import AppConfig


class PenstockConfig(AppConfig):
    name = "penstock.contrib.django"
    label = "penstock"
    default_auto_field = "django.db.models.BigAutoField"
