"""One client's connection to each of the queues that are compared, by the client library that a Python user would take."""
