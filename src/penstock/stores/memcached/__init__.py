"""Queues in memcached."""
