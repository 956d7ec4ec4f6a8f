"""Queues kept as files, in two formats: VSQS and spool (MQ-Core)."""
