"""Penstock under frameworks that other projects make: Celery, Dramatiq, Django, OpenTelemetry. Each has an extra of its own."""
