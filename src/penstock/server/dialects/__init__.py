"""The dialects that the server speaks on one port. Each parses a request, calls the queue once and renders the answer."""
