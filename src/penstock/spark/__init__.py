"""Penstock's queues in Spark, exactly once: `format("penstock")` for streams and batches, reading and writing.

datasource  what Spark finds by name; options.py and columns.py: its options and its columns
stream      a stream from a queue, by named claims
browse      a batch read of a queue, or of its history; filters.py: the filters that it evaluates
reading     how executors read for both
sink        rows to messages: executors stage, the driver publishes once
"""
