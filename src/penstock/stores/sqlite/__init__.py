"""Queues in an SQLite database."""
