"""Queues in MariaDB."""
