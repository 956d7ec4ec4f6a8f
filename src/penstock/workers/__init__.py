"""Programs that work on a queue: producers, consumers, and what keeps a consumer alive."""
