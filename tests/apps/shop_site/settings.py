"""Settings: Django's own database is a file, or PostgreSQL; the tasks are in that database, or where APP_URL says."""

from __future__ import annotations

import os
from urllib.parse import urlsplit

import django

FOLDER = os.environ["APP_FOLDER"]
SECRET_KEY = "test"
USE_TZ = True
INSTALLED_APPS = ["penstock.contrib.django", *(["django_tasks"] if django.VERSION < (6,) else [])]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": f"{FOLDER}/site.db", "OPTIONS": {"timeout": 60}}}
OPTIONS: dict[str, object] = {"url": os.environ["APP_URL"], "visibility": float(os.environ.get("APP_VISIBILITY", "30"))}
if database := os.environ.get("APP_DATABASE"):
    parts = urlsplit(database)
    DATABASES["default"] = {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": parts.path[1:],
        "USER": parts.username,
        "HOST": parts.hostname,
        "PORT": parts.port,
        "OPTIONS": {"options": os.environ["APP_SEARCH"]},
    }
    OPTIONS = {"database": "default"}
TASKS = {
    "default": {
        "BACKEND": "penstock.contrib.django.PenstockBackend",
        "QUEUES": ["default", "slow"],
        "OPTIONS": OPTIONS,
    }
}
