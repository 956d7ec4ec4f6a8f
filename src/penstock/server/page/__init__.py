"""The page: what people see of the queues in a browser."""
