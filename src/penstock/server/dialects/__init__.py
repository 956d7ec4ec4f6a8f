"""The dialects that the server speaks, side by side on one port; each parses, makes one call of the queue and renders."""
