"""A writer's batches, published exactly once, and their messages as segments."""
