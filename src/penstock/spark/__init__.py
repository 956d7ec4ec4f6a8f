"""Penstock's queues in Spark, exactly once: `format("penstock")` for streams and batches, reading and writing.

datasource  what Spark asks for by name; options.py and columns.py: what can be said to it, and what it answers with
stream      a stream from a queue, by named claims
browse      a batch look at a queue, or at its history; filters.py: what it leaves out at once
reading     how executors read, for both
sink        rows to messages: executors stage, the driver publishes once
"""
