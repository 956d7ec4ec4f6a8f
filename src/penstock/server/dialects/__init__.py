"""The dialects that the server speaks, side by side on one port. Each parses a request, makes one call of the queue and renders
the answer."""
