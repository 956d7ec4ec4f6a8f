"""Tasks: functions that run for each message of a queue, called from wherever their broker can be reached."""
