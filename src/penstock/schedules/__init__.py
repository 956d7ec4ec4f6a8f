"""Schedules: messages that the queues of a store send to themselves, again and again."""
