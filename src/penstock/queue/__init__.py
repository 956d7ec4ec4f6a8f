"""A queue: send, receive, settle, look; named claims and sets are beside it."""
