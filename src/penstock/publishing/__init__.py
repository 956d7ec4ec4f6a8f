"""Publishing a writer's batches exactly once, with their messages in segments."""
